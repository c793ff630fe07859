//! The serverless modes and the pass under load, kills and silence.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::bed::Bed;
use super::support::daemon::{Daemon, Life, Scope};
use super::support::gateway::Gateway;
use super::support::receiver::{Answer, Receiver};
use super::support::{eventually, postgres, rabbitmq, run, when};

const DEADLINE: Duration = Duration::from_secs(120);

fn with_outbox(store: &str, more: &str) -> String {
    format!(
        "{store}migrate = true\n[durability]\nmode = 'serverless-with-outbox'\noutbox_stale_time = '1s'\n\
         [endpoints.durability]\nauthorize = 'anonymous'\n{more}"
    )
}

/// What a scheduler runs: passes as long as there is more to do, with curl. Every pass ends in bounded time.
fn curl_while_there_is_more(gateway: &Gateway) -> u64 {
    let script = format!(
        "sent=0\n\
         while :; do\n\
             report=$(curl -sS --max-time 30 --noproxy '*' -X POST '{}') || exit 1\n\
             sent=$((sent + $(printf %s \"$report\" | sed 's/.*\"outgoingSent\":\\([0-9]*\\).*/\\1/')))\n\
             case $report in *'\"hasMoreWork\":true'*) ;; *) break ;; esac\n\
         done\n\
         echo $sent\n",
        gateway.url("/v1/durability/pass?maxDuration=5&batchSize=1000")
    );
    let output = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().expect("run sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// 10,000 messages accepted while the broker is down; then it is back, and passes of two processes and live requests
/// run against each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_passes_send_what_was_accepted_while_the_broker_was_down() {
    const MESSAGES: usize = 10_000;
    const BATCH: usize = 500;
    let (Some(server), Some(broker)) = (postgres::shared().await, rabbitmq::private().await) else { return };
    let queue = broker.fresh_queue().await;
    let store = format!("[stores.main]\nurl = '{}'\n", server.fresh_database().await);
    let config = with_outbox(
        &store,
        &format!(
            "[destinations.out]\ntransport = 'rabbitmq'\nurl = '{}'\nexchange = ''\nrouting_key = '{queue}'\n\
             timeout = '5s'\nbreaker = {{ open = '1s' }}\n[[routes]]\ntypes = ['*']\ndestinations = ['out']\n",
            broker.url()
        ),
    );
    let first = Gateway::start(&config).await;
    let second = Gateway::start(&config).await;
    broker.stop();
    for batch in 0..MESSAGES / BATCH {
        let ids = (0..BATCH).map(|n| format!("m{}", batch * BATCH + n));
        let batch: Vec<Value> = ids.map(|id| json!({"type": "t", "id": id, "data": 1})).collect();
        let (status, answer) = first.post("/v1/publish-batch", json!(batch)).await;
        assert_eq!(status, 202, "{answer}");
        assert_eq!(answer["messages"][0]["outcomes"]["out"], "pending");
    }
    broker.start().await;
    let live = {
        let (client, url) = (first.client().clone(), first.url("/v1/publish"));
        tokio::spawn(async move {
            for n in 0..200 {
                let message = json!({"type": "t", "id": format!("live{n}"), "data": 1});
                let answer = client.post(&url).json(&message).send().await.unwrap();
                assert_eq!(answer.status(), 202);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    };
    let began = Instant::now();
    let tables = super::support::tables::Tables::of(store.split('\'').nth(1).unwrap());
    loop {
        let sent = tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| curl_while_there_is_more(&second));
                curl_while_there_is_more(&first) + other.join().unwrap()
            })
        });
        if live.is_finished() && tables.deliveries().await == 0 {
            break;
        }
        assert!(
            began.elapsed() < DEADLINE,
            "{sent} sent by the last passes; {} left",
            tables.deliveries().await
        );
        // What failed last is due again later.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    live.await.unwrap();
    assert_eq!(tables.dead_letters().await, 0);
    let mut times: HashMap<String, u32> = HashMap::new();
    for message in broker.open().await.drain(&queue, Duration::from_secs(3)).await {
        *times.entry(rabbitmq::message_id(&message)).or_default() += 1;
    }
    assert_eq!(times.len(), MESSAGES + 200, "none is lost");
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "sent more than once: {twice:?}");
}

async fn a_killed_pass(bed: &Bed) {
    const MESSAGES: usize = 30;
    let receiver = Receiver::scripted(|_, _| Answer::status(500)).await;
    let config = with_outbox(
        &bed.config(),
        &format!(
            "[destinations.out]\ntransport = 'webhook'\nurl = '{}'\nallow_private = true\ntimeout = '2s'\n\
             max_in_flight = 2\nretry = {{ initial = '10ms', max = '10ms' }}\nbreaker = {{ failures = 1000 }}\n\
             [[routes]]\ntypes = ['*']\ndestinations = ['out']\n",
            receiver.url("/")
        ),
    );
    let gateway = Gateway::start(&config).await;
    let batch: Vec<Value> =
        (0..MESSAGES).map(|n| json!({"type": "t", "id": format!("m{n}"), "data": 1})).collect();
    assert_eq!(gateway.post("/v1/publish-batch", json!(batch)).await.0, 202);
    let failed = receiver.count();
    eventually(DEADLINE, "the rows are due", async || when(bed.due().await == MESSAGES as u64)).await;
    receiver.script(|_, _| Answer::status(204).after(Duration::from_millis(300)));
    let dir = run::fresh_dir("flush");
    std::fs::write(dir.join("oncegate.toml"), &config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["storage", "flush"]).current_dir(&dir);
    let mut flush = Daemon::start(command, &dir.join("log"), Life::Handle);
    receiver.wait_for(failed + 4, DEADLINE).await;
    flush.signal("KILL", Scope::Process);
    flush.wait(Duration::from_secs(10));
    receiver.script(|_, _| Answer::status(204));
    let pass = async || {
        let request = gateway.client().post(gateway.url("/v1/durability/pass"));
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    let report = pass().await;
    assert_eq!(report["skippedStores"], json!(["main"]), "the dead one's lock stands until its lease ends");
    assert_eq!(report["hasMoreWork"], true);
    eventually(DEADLINE, "the next pass goes on", async || when(pass().await["skippedStores"] == json!([])))
        .await;
    eventually(DEADLINE, "everything is sent", async || {
        pass().await;
        when(bed.count("deliveries").await == 0)
    })
    .await;
    let sent: std::collections::BTreeSet<String> =
        receiver.received()[failed..].iter().map(|request| request.header("id").to_owned()).collect();
    assert_eq!(sent.len(), MESSAGES, "nothing is lost");
    assert_eq!(bed.count("receipts").await, MESSAGES as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_a_killed_pass_is_gone_on_with_after_its_lease_on_sqlite() {
    a_killed_pass(&Bed::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_a_killed_pass_is_gone_on_with_after_its_lease_on_postgres() {
    if let Some(bed) = Bed::postgres().await {
        a_killed_pass(&bed).await;
    }
}

/// How often threads of a process were woken so far.
fn wakes(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process's threads");
    let of = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let line =
            status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
    };
    tasks.flatten().map(|task| of(task.path())).sum()
}

/// Nodes in both serverless modes that have served, on PostgreSQL and with RabbitMQ, and are left alone for a minute:
/// no statement, and no thread that wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_an_idle_node_in_the_serverless_modes_sleeps() {
    let settings = [("log_statement", "all"), ("log_line_prefix", "app=%a ")];
    let (Some(server), Some(broker)) = (postgres::private(&settings).await, rabbitmq::shared().await) else {
        return;
    };
    let queue = broker.fresh_queue().await;
    let mut nodes = Vec::new();
    for mode in ["serverless-with-outbox", "serverless"] {
        let store = format!("[stores.main]\nurl = '{}'\n", server.fresh_database().await);
        let config = with_outbox(
            &store,
            &format!(
                "[destinations.out]\ntransport = 'rabbitmq'\nurl = '{}'\nexchange = ''\nrouting_key = '{queue}'\n\
                 [[routes]]\ntypes = ['*']\ndestinations = ['out']\n[server.limits]\nheader_timeout = '2s'\n\
                 [messages.t]\ndeduplicate = {{ window = '1h' }}\n",
                broker.url()
            ),
        );
        let node = Gateway::start(&config.replace("'serverless-with-outbox'", &format!("'{mode}'"))).await;
        let (status, answer) = node.publish(json!({"type": "t", "deduplicationId": "d"})).await;
        assert_eq!(status, 202, "{answer}");
        nodes.push(node);
    }
    let statements = || server.log().lines().filter(|line| line.starts_with("app=oncegate ")).count();
    let counted = || (statements(), nodes.iter().map(|node| wakes(node.pid())).collect::<Vec<_>>());
    assert!(statements() > 0, "statements are counted");
    // What was used is closed first: the clients' connections, and those to the broker.
    let mut last = counted();
    eventually(DEADLINE, "the nodes have come to rest", async || {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let now = counted();
        when(std::mem::replace(&mut last, now.clone()) == now)
    })
    .await;
    let before = counted();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = counted();
    assert_eq!(after.0, before.0, "statements of an idle node");
    assert_eq!(after.1, before.1, "threads of an idle node were woken");
    for node in &nodes {
        let (status, answer) = node.publish(json!({"type": "t", "deduplicationId": "later"})).await;
        assert_eq!(status, 202, "it wakes when it is asked: {answer}");
    }
}
