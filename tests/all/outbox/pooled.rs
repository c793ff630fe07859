//! With a pooler in transaction mode before the database: for those who publish, and for the gateway itself.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{Engine, SOON, hook};
use crate::support::gateway::{Gateway, command};
use crate::support::pgbouncer::Pgbouncer;
use crate::support::postgres;
use crate::support::receiver::Receiver;

const SHOP: &str = "
    CREATE ROLE shop;
    CREATE TABLE orders (id integer PRIMARY KEY);
    GRANT ALL ON orders TO shop;
    CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM oncegate.publish('order.trigger', to_jsonb(NEW));
        RETURN NULL;
    END $$;
    CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW WHEN (NEW.id >= 1000) EXECUTE FUNCTION tell();
    CREATE PROCEDURE buy(id integer) LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO orders VALUES (id);
        PERFORM oncegate.publish('order.plpgsql', jsonb_build_object('id', id));
    END $$";

async fn run(connection: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql.clone()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// One customer's transactions, one of each kind, on a connection that is another at each of them.
async fn shop(mut connection: PgConnection, n: u32) {
    run(
        &mut connection,
        format!(
            "BEGIN; INSERT INTO orders VALUES ({n}); SELECT oncegate.publish('order.function', '{n}'); COMMIT"
        ),
    )
    .await;
    run(&mut connection, format!("BEGIN; SELECT oncegate.publish('order.never', '{n}'); ROLLBACK")).await;
    run(&mut connection, format!("CALL buy({})", 100 + n)).await;
    run(&mut connection, format!("INSERT INTO orders VALUES ({})", 1_000 + n)).await;
    let many =
        format!("[{{\"type\": \"order.many\", \"data\": {n}}}, {{\"type\": \"order.many\", \"data\": {n}}}]");
    run(&mut connection, format!("SELECT oncegate.publish_many('{many}')")).await;
    // Whose transaction it is, is said within it.
    run(
        &mut connection,
        format!("BEGIN; SET LOCAL ROLE shop; SELECT oncegate.publish('order.role', '{n}'); COMMIT"),
    )
    .await;
    let mut transaction = connection.begin().await.unwrap();
    let mut copy = transaction.copy_in_raw("COPY oncegate.outbox (type, data) FROM STDIN").await.unwrap();
    copy.send(format!("order.copy\t{n}\n").into_bytes()).await.unwrap();
    copy.finish().await.unwrap();
    transaction.commit().await.unwrap();
    // A prepared statement with parameters, as drivers send it.
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query("SELECT oncegate.publish('order.parameters', $1, deduplication_id => $2)")
        .persistent(false)
        .bind(serde_json::json!(n))
        .bind(format!("p-{n}"))
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_in_works_through_a_transaction_pooler_and_so_does_the_gateway() {
    let Some(server) = postgres::private(&[]).await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    engine.migrate();
    engine.run(SHOP).await.unwrap();
    let Some(pooler) = Pgbouncer::start(&server, &url).await else { return };
    let through =
        |rest: &str| format!("[stores.main]\nurl = \"{}\"\npooler = \"transaction\"\n{rest}", pooler.url);
    let granted = command(&["storage", "grant", "--role", "shop", "--tenant", "acme"], Some(&through("")));
    assert!(granted.status.success(), "{}", String::from_utf8_lossy(&granted.stderr));
    let receiver = Receiver::start().await;
    let strict = "[messages.\"order.parameters\"]\ndeduplicate = { window = \"1h\" }\n";
    let gateway = Gateway::start(&through(&format!("{}{strict}", hook(&receiver)))).await;
    let mut customers = Vec::new();
    for n in 0..6 {
        customers.push(tokio::spawn(shop(pooler.connect().await, n)));
    }
    for customer in customers {
        customer.await.unwrap();
    }
    // One identity once more, and one that lacks it.
    engine.run("SELECT oncegate.publish('order.parameters', '0', deduplication_id => 'p-0')").await.unwrap();
    engine.run("SELECT oncegate.publish('order.parameters', '0')").await.unwrap();
    engine.intake_is_empty().await;
    let received = receiver.wait_for(6 * 8, SOON).await;
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for request in &received {
        *kinds.entry(request.header("message-type")).or_default() += 1;
        let tenant = if request.header("message-type") == "order.role" { "acme" } else { "" };
        assert_eq!(request.header("tenant-id"), tenant);
    }
    let expected = [
        ("order.copy", 6),
        ("order.function", 6),
        ("order.many", 12),
        ("order.parameters", 6),
        ("order.plpgsql", 6),
        ("order.role", 6),
        ("order.trigger", 6),
    ];
    assert_eq!(kinds, BTreeMap::from(expected), "{}", gateway.stderr());
    assert_eq!(engine.count_of("MissingDeduplicationId").await, 1);
    assert_eq!(engine.count("dead_letters").await, 1);
    assert_eq!(gateway.stderr().matches("duplicate in the intake").count(), 1, "{}", gateway.stderr());
}

/// What a pooler cannot carry is refused by its key, not found out by its silence.
#[tokio::test]
async fn a_pooler_and_notify_are_not_both_configured() {
    let config =
        "[stores.main]\nurl = \"postgres://h/d\"\npooler = \"transaction\"\n[intake]\nnotify = true\n";
    let refused = command(&["config", "check"], Some(config));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("intake.notify"), "{said}");
}
