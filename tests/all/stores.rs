//! Several stores in one process: whose messages are where, and what one that is down means for the others.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::gateway::{Gateway, command};
use super::support::postgres;
use super::support::receiver::{Answer, Receiver};
use super::support::{eventually, run, when};

const DEADLINE: Duration = Duration::from_secs(45);

/// Keys of an operator without a tenant, and of one per tenant: `acme` and `nobodys`.
const KEYS: &str = r#"
[auth.keys.root]
secrets = ["root-secret"]
grants = ["publish:*", "operate", "claim:*"]
[auth.keys.acme]
secrets = ["acme-secret"]
tenant = "acme"
grants = ["publish:*", "operate", "claim:*", "invoke:*"]
[auth.keys.other]
secrets = ["other-secret"]
tenant = "in-no-list"
grants = ["publish:*", "operate", "claim:*"]
[messages."order.created"]
deduplicate = { required = false, window = "1h" }
"#;

pub(super) const ROOT: &str = "root-secret";
pub(super) const ACME: &str = "acme-secret";
pub(super) const OTHER: &str = "other-secret";

/// A store, seen from behind.
pub(super) struct Database {
    url: String,
}

impl Database {
    pub fn at(url: String) -> Self {
        Self { url }
    }

    pub fn sqlite() -> Self {
        let path = run::fresh_dir("stores").join("store.db");
        Self::at(format!("sqlite:{}", path.display()))
    }

    /// How many rows a table has.
    pub async fn count(&self, table: &str) -> i64 {
        let sql = |prefix: &str| sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {prefix}{table}"));
        if self.url.starts_with("sqlite") {
            let pool = sqlx::SqlitePool::connect(&self.url).await.unwrap();
            let count = sqlx::query_scalar(sql("oncegate_")).fetch_one(&pool).await.unwrap();
            pool.close().await;
            return count;
        }
        let pool = sqlx::PgPool::connect(&self.url).await.unwrap();
        let count = sqlx::query_scalar(sql("oncegate.")).fetch_one(&pool).await.unwrap();
        pool.close().await;
        count
    }
}

/// Everybody's store, and acme's: two files, or one of each engine.
async fn pairs() -> Vec<(Database, Database)> {
    let mut pairs = vec![(Database::sqlite(), Database::sqlite())];
    if let Some(server) = postgres::shared().await {
        pairs.push((Database::at(server.fresh_database().await), Database::sqlite()));
        pairs.push((Database::sqlite(), Database::at(server.fresh_database().await)));
    }
    pairs
}

pub(super) fn config(main: &Database, acme: &Database, rest: &str) -> String {
    format!(
        "[stores.main]\nurl = \"{}\"\n[stores.acme]\nurl = \"{}\"\ntenants = [\"acme\"]\n{KEYS}\n{rest}",
        main.url, acme.url
    )
}

pub(super) fn to_receiver(receiver: &Receiver) -> String {
    format!(
        "[destinations.out]\ntransport = \"webhook\"\nurl = \"{}\"\nallow_private = true\n\
         [[routes]]\ntypes = [\"*\"]\ndestinations = [\"out\"]\n",
        receiver.url("/")
    )
}

pub(super) async fn call(
    gateway: &Gateway,
    method: &str,
    path: &str,
    key: &str,
    body: Option<Value>,
) -> (u16, Value) {
    let mut request = gateway.client().request(method.parse().unwrap(), gateway.url(path)).bearer_auth(key);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.timeout(Duration::from_secs(30)).send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or(Value::Null))
}

pub(super) async fn publish(gateway: &Gateway, key: &str, message: Value) -> (u16, Value) {
    call(gateway, "POST", "/v1/publish", key, Some(message)).await
}

pub(super) async fn get(gateway: &Gateway, key: &str, path: &str) -> (u16, Value) {
    call(gateway, "GET", path, key, None).await
}

pub(super) fn order(id: &str) -> Value {
    json!({"type": "order.created", "id": id, "deduplicationId": id, "data": {"id": id}})
}

/// A tenant's messages are in its store and nowhere else, are delivered from there, and are seen by it alone; the
/// same deduplication id in two tenants' stores is two works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tenant_is_served_from_its_store() {
    for (main, acme) in pairs().await {
        let receiver = Receiver::start().await;
        let gateway = Gateway::start(&config(&main, &acme, &to_receiver(&receiver))).await;
        for key in [ROOT, ACME, OTHER] {
            let (status, answer) = publish(&gateway, key, order("same")).await;
            assert_eq!((status, &answer["outcome"]), (202, &json!("accepted")), "{key}: {answer}");
            let (status, answer) = publish(&gateway, key, order("same")).await;
            assert_eq!((status, &answer["outcome"]), (200, &json!("duplicate")), "{key}: {answer}");
        }
        eventually(DEADLINE, "all three arrive", async || when(receiver.count() == 3)).await;
        let tenants: Vec<_> =
            receiver.received().iter().map(|request| request.header("tenant-id").to_owned()).collect();
        for tenant in ["", "acme", "in-no-list"] {
            assert!(tenants.iter().any(|told| told == tenant), "{tenants:?}");
        }
        eventually(DEADLINE, "receipts are where the messages were", async || {
            when(main.count("receipts").await == 2 && acme.count("receipts").await == 1)
        })
        .await;
        assert_eq!((main.count("deduplication").await, acme.count("deduplication").await), (2, 1));

        // Status, claims and explain look where the tenant's messages are.
        let (status, answer) = get(&gateway, ACME, "/v1/messages/same").await;
        assert_eq!((status, &answer["destinations"][0]["state"]), (200, &json!("sent")), "{answer}");
        let (_, explained) = call(&gateway, "POST", "/v1/explain", ACME, Some(order("same"))).await;
        assert_eq!(explained["claim"]["messageId"], json!("same"), "{explained}");
        let claim = json!({"scope": "mail", "id": "1"});
        for key in [ROOT, ACME] {
            assert_eq!(call(&gateway, "POST", "/v1/claims", key, Some(claim.clone())).await.0, 201, "{key}");
        }
        assert_eq!(acme.count("deduplication").await, 2);
        assert_eq!(get(&gateway, ACME, "/v1/claims?scope=mail&id=1").await.0, 200);
        assert_eq!(get(&gateway, OTHER, "/v1/claims?scope=mail&id=1").await.0, 404);
    }
}

/// What operators see and do: everything of all stores without a tenant, their store's with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_are_told_and_paused_per_store() {
    for (main, acme) in pairs().await {
        let receiver = Receiver::start().await;
        let gateway = Gateway::start(&config(&main, &acme, &to_receiver(&receiver))).await;
        assert_eq!(call(&gateway, "POST", "/v1/targets/out/pause", ACME, None).await.0, 204);
        assert_eq!(publish(&gateway, ACME, order("held")).await.0, 202);
        assert_eq!(publish(&gateway, ROOT, order("sent")).await.0, 202);
        eventually(DEADLINE, "the other store's arrives", async || when(receiver.count() == 1)).await;

        eventually(DEADLINE, "it is settled", async || when(main.count("receipts").await == 1)).await;
        let (_, all) = get(&gateway, ROOT, "/v1/targets").await;
        let out = &all["items"][0];
        assert_eq!(
            (&out["name"], &out["depth"], &out["paused"]),
            (&json!("out"), &json!(1), &json!(false)),
            "{all}"
        );
        let of_acme =
            out["stores"].as_array().unwrap().iter().find(|store| store["store"] == "acme").unwrap();
        assert_eq!((&of_acme["depth"], &of_acme["paused"]), (&json!(1), &json!(true)), "{all}");
        let (_, own) = get(&gateway, ACME, "/v1/targets").await;
        assert_eq!(
            (&own["items"][0]["depth"], &own["items"][0]["paused"]),
            (&json!(1), &json!(true)),
            "{own}"
        );
        assert!(own["items"][0].get("stores").is_none(), "{own}");
        let (_, others) = get(&gateway, OTHER, "/v1/targets").await;
        assert_eq!(others["items"][0]["paused"], json!(false), "{others}");

        let metrics =
            gateway.client().get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
        for line in [
            r#"oncegate_backlog{kind="destination",store="acme",target="out"} 1"#,
            r#"oncegate_backlog{kind="destination",store="main",target="out"} 0"#,
            r#"oncegate_messages_accepted_total{store="acme"} 1"#,
            r#"oncegate_store_up{store="acme"} 1"#,
        ] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }

        // The operator without a tenant resumes it everywhere.
        assert_eq!(call(&gateway, "POST", "/v1/targets/out/resume", ROOT, None).await.0, 204);
        eventually(DEADLINE, "what was held arrives", async || when(receiver.count() == 2)).await;
    }
}

/// Dead letters are the tenant's, over HTTP and on the command line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_found_in_the_tenants_store() {
    for (main, acme) in pairs().await {
        let receiver = Receiver::start().await;
        receiver.script(|_, _| Answer::status(400));
        let config = config(&main, &acme, &to_receiver(&receiver));
        let gateway = Gateway::start(&config).await;
        assert_eq!(publish(&gateway, ACME, order("refused")).await.0, 202);
        let id = eventually(DEADLINE, "it is dead", async || {
            let (_, page) = get(&gateway, ACME, "/v1/dead-letters").await;
            page["items"][0]["id"].as_str().map(str::to_owned)
        })
        .await;
        let (_, none) = get(&gateway, ROOT, "/v1/dead-letters").await;
        assert_eq!(none["items"], json!([]));
        assert_eq!(get(&gateway, ROOT, &format!("/v1/dead-letters/{id}")).await.0, 404);

        let list = |args: &[&str]| {
            let output = command(&[&["dead-letters", "list", "--json"], args].concat(), Some(&config));
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
            let page: Value = serde_json::from_slice(&output.stdout).unwrap();
            page["items"].as_array().unwrap().len()
        };
        assert_eq!(list(&[]), 0);
        assert_eq!(list(&["--tenant", "acme"]), 1);
        assert_eq!(list(&["--tenant", "acme", "--store", "acme"]), 1);
        assert_eq!(list(&["--tenant", "acme", "--store", "main"]), 0);
        let unknown = command(&["dead-letters", "list", "--store", "nix"], Some(&config));
        assert_eq!(unknown.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&unknown.stderr).contains("there are main, acme"));

        receiver.script(|_, _| Answer::status(200));
        let replay = json!({"ids": [id]});
        let (_, replayed) = call(&gateway, "POST", "/v1/dead-letters/replay", ACME, Some(replay)).await;
        assert_eq!(replayed["replayed"], json!(1), "{replayed}");
        eventually(DEADLINE, "it is made", async || when(acme.count("receipts").await == 1)).await;
    }
}

#[test]
fn schemas_are_brought_up_to_date_in_every_store() {
    let folder = run::fresh_dir("stores");
    let url = |name: &str| format!("sqlite:{}", folder.join(name).display());
    let (main, acme) = (Database::at(url("main.db")), Database::at(url("acme.db")));
    let config = config(&main, &acme, "");
    let output = command(&["storage", "migrate"], Some(&config));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "main: up to date\nacme: up to date\n");
    let printed = command(&["storage", "migrate", "--print"], Some(&config));
    assert_eq!(printed.status.code(), Some(2));
    let printed = command(&["storage", "migrate", "--print", "--store", "acme"], Some(&config));
    assert!(printed.status.success() && String::from_utf8_lossy(&printed.stdout).contains("CREATE TABLE"));

    // One that fails holds up no other, and is told.
    std::fs::write(folder.join("blocked"), "").unwrap();
    let blocked = Database::at(format!("sqlite:{}", folder.join("blocked/acme.db").display()));
    let fresh = Database::at(url("fresh.db"));
    let output = command(&["storage", "migrate"], Some(&self::config(&fresh, &blocked, "")));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "main: up to date\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("stores.acme"));
    assert!(Path::new(&folder.join("fresh.db")).exists());
}

/// A handler's claims, an invoke's answer and what both publish stay in the tenant's store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_and_invokes_work_in_the_tenants_store() {
    for (main, acme) in pairs().await {
        let receiver = Receiver::start().await;
        let handler = Receiver::scripted(|_, _| {
            let reply = json!({"response": 7, "messages": [{"type": "order.done", "data": 1}]});
            Answer::status(200)
                .header("content-type", "application/vnd.oncegate.reply+json")
                .body(&reply.to_string())
        })
        .await;
        let handlers = format!(
            "[handlers.work]\ntypes = [\"work.do\"]\nurl = \"{}\"\ndeduplicate = {{ window = \"1h\" }}\n\
             [messages.\"work.do\"]\ndeduplicate = {{ window = \"1h\" }}\n",
            handler.url("/work")
        );
        let rest = to_receiver(&receiver).replace("[\"*\"]", "[\"order.*\"]") + &handlers;
        let gateway = Gateway::start(&config(&main, &acme, &rest)).await;
        let work = json!({"type": "work.do", "id": "w", "deduplicationId": "w", "data": 1});
        assert_eq!(publish(&gateway, ACME, work).await.0, 202);
        let first = receiver.wait_for(1, DEADLINE).await;
        assert_eq!((first[0].header("tenant-id"), first[0].header("causation-id")), ("acme", "w"));
        for _ in 0..2 {
            let invoked = gateway
                .client()
                .post(gateway.url("/v1/invoke/work.do"))
                .bearer_auth(ACME)
                .header("Idempotency-Key", "k")
                .header("Deduplication-Id", "invoked")
                .send()
                .await
                .unwrap();
            assert_eq!((invoked.status().as_u16(), invoked.text().await.unwrap().as_str()), (200, "7"));
        }
        receiver.wait_for(2, DEADLINE).await;
        assert_eq!(handler.count(), 2);
        // The work of the message, of its handling, of the invoke, and the invoke's key.
        eventually(DEADLINE, "all is settled", async || when(acme.count("deliveries").await == 0)).await;
        assert_eq!((main.count("deduplication").await, acme.count("deduplication").await), (0, 4));
        assert_eq!(main.count("receipts").await, 0);
    }
}

/// What is published in a transaction of the tenant's own is taken from its store, and found there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_intake_of_every_store_is_moved_on() {
    let (main, acme) = (Database::sqlite(), Database::sqlite());
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&config(&main, &acme, &to_receiver(&receiver))).await;
    for (database, tenant) in [(&main, ""), (&acme, "acme")] {
        let pool = sqlx::SqlitePool::connect(&database.url).await.unwrap();
        let insert =
            "INSERT INTO oncegate_intake (tenant, id, type, data) VALUES (?, 'own', 'order.created', '{}')";
        sqlx::query(insert).bind(tenant).execute(&pool).await.unwrap();
        pool.close().await;
    }
    receiver.wait_for(2, DEADLINE).await;
    for key in [ROOT, ACME] {
        let sent =
            async || get(&gateway, key, "/v1/messages/own").await.1["destinations"][0]["state"] == "sent";
        eventually(DEADLINE, "it is found", async || when(sent().await)).await;
    }
    assert_eq!(get(&gateway, OTHER, "/v1/messages/own").await.0, 404);
}

#[tokio::test]
async fn a_role_is_granted_a_tenant_in_its_store_alone() {
    let Some(server) = postgres::shared().await else { return };
    let (main, acme) =
        (Database::at(server.fresh_database().await), Database::at(server.fresh_database().await));
    let config = config(&main, &acme, "");
    assert!(command(&["storage", "migrate"], Some(&config)).status.success());
    let grant =
        |args: &[&str]| command(&[&["storage", "grant", "--role", "postgres"], args].concat(), Some(&config));
    let wrong = grant(&["--tenant", "acme", "--store", "main"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(text.contains("are in the store `acme`, not in `main`"), "{text}");
    let done = grant(&["--tenant", "acme"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "postgres may publish in the store acme\n");
    let publishers = async |database: &Database| {
        let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
        let tenants: Vec<String> =
            sqlx::query_scalar("SELECT tenant FROM oncegate.publishers").fetch_all(&pool).await.unwrap();
        pool.close().await;
        tenants
    };
    assert_eq!((publishers(&main).await, publishers(&acme).await), (vec![], vec!["acme".to_owned()]));
}

/// A destination is one to all stores of a node: what is in flight to it counts together, and each store has its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_share_what_a_destination_takes_at_once() {
    const TAKES: Duration = Duration::from_millis(50);
    let (main, acme) = (Database::sqlite(), Database::sqlite());
    let receiver = Receiver::scripted(|_, _| Answer::status(200).after(TAKES)).await;
    let rest = to_receiver(&receiver).replace("allow_private", "max_in_flight = 1\nallow_private");
    let gateway = Gateway::start(&config(&main, &acme, &rest)).await;
    for number in 0..20 {
        for key in [ROOT, ACME] {
            assert_eq!(publish(&gateway, key, order(&format!("{key}-{number}"))).await.0, 202);
        }
    }
    let received = receiver.wait_for(40, DEADLINE).await;
    let gaps = received.windows(2).map(|two| two[1].at - two[0].at);
    let least = gaps.min().unwrap();
    assert!(least >= TAKES, "two at once: {least:?}");
    let of_acme = received.iter().take(20).filter(|one| one.header("tenant-id") == "acme").count();
    assert!((3..=17).contains(&of_acme), "one store waited for the other: {of_acme} of the first 20");
}

/// The breaker of a destination is one to all stores of a node, and so is its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_share_a_destinations_breaker() {
    let (main, acme) = (Database::sqlite(), Database::sqlite());
    let receiver = Receiver::scripted(|_, _| Answer::status(503).header("retry-after", "3600")).await;
    let gateway = Gateway::start(&config(&main, &acme, &to_receiver(&receiver))).await;
    let breaker = async |key: &str| get(&gateway, key, "/v1/targets").await.1["items"][0]["breaker"].clone();
    assert_eq!(publish(&gateway, ROOT, order("opens")).await.0, 202);
    eventually(DEADLINE, "it is open", async || when(breaker(ACME).await == "open")).await;
    assert_eq!(publish(&gateway, ACME, order("waits")).await.0, 202);
    let (_, status) = get(&gateway, ACME, "/v1/messages/waits").await;
    assert_eq!(status["destinations"][0]["state"], "pending", "{status}");
    assert_eq!(receiver.count(), 1);

    let receiver = Receiver::failing_first(1, 503).await;
    let rest = to_receiver(&receiver).replace("allow_private", "breaker = { open = \"1s\" }\nallow_private");
    let gateway = Gateway::start(&config(&Database::sqlite(), &Database::sqlite(), &rest)).await;
    for key in [ROOT, ACME] {
        assert_eq!(publish(&gateway, key, order(key)).await.0, 202);
    }
    receiver.wait_for(3, DEADLINE).await;
}
