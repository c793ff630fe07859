//! Rows that cannot be moved with their neighbours.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{Engine, PAUSED, SOON, engines};
use crate::support::gateway::Gateway;
use crate::support::{eventually, postgres, when};

const KEPT: usize = 55;

/// A row whose identity somebody's open transaction holds waits for that transaction, and nothing waits for it.
#[tokio::test]
async fn a_row_whose_identity_is_locked_waits_alone() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    let gateway = Gateway::start(&engine.config(PAUSED)).await;
    for id in ["freed", "kept"] {
        engine.run(&engine.publish("strict", "0", Some(id))).await.unwrap();
    }
    engine.intake_is_empty().await;
    // Two transactions of an operator's, neither of which has ended: whether these identities are taken, nobody
    // can know yet.
    let mut holders = Vec::new();
    for id in ["freed", "kept"] {
        let mut holder = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut holder).await.unwrap();
        let delete = sqlx::query("DELETE FROM oncegate.deduplication WHERE id = $1").bind(id);
        assert_eq!(delete.execute(&mut holder).await.unwrap().rows_affected(), 1);
        holders.push(holder);
    }
    let mut all = vec![
        engine.publish("order.before", "1", None),
        engine.publish("strict", "2", Some("freed")),
        engine.publish("strict", "3", Some("other")),
    ];
    // More than are tried one by one at once.
    all.extend(vec![engine.publish("strict", "4", Some("kept")); KEPT]);
    all.push(engine.publish("order.after", "5", None));
    engine.run(&format!("BEGIN; {}; COMMIT", all.join("; "))).await.unwrap();
    eventually(SOON, "its neighbours are moved", async || when(engine.count("deliveries").await == 2 + 3))
        .await;
    let left = 1 + i64::try_from(KEPT).unwrap();
    assert_eq!(engine.count("intake").await, left, "{}", gateway.stderr());
    // What comes later goes on as well.
    engine.run(&engine.publish("order.later", "6", None)).await.unwrap();
    eventually(SOON, "a later row is moved", async || when(engine.count("deliveries").await == 2 + 4)).await;
    assert_eq!(engine.count("intake").await, left);

    for (holder, end) in holders.iter_mut().zip(["COMMIT", "ROLLBACK"]) {
        sqlx::raw_sql(end).execute(holder).await.unwrap();
    }
    engine.intake_is_empty().await;
    // The one is free and was accepted, the other is taken and was dropped.
    let of = |id: &str| format!("SELECT count(*) FROM oncegate.deliveries WHERE deduplication_id = '{id}'");
    assert_eq!(engine.number(&of("freed")).await, 2);
    assert_eq!(engine.number(&of("kept")).await, 1);
    assert_eq!(engine.count("dead_letters").await, 0);
    assert_eq!(gateway.stderr().matches("duplicate in the intake").count(), KEPT, "{}", gateway.stderr());
}

/// A row that the database refuses, for whatever reason, goes to the dead letters alone, with its bytes.
#[tokio::test]
async fn a_row_that_the_store_refuses_goes_alone() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        engine
            .run(match &engine {
                Engine::Sqlite(_) => {
                    "CREATE TRIGGER refuse BEFORE INSERT ON oncegate_deliveries WHEN NEW.type = 'order.poison'
                     BEGIN SELECT RAISE(ABORT, 'no such thing'); END"
                }
                Engine::Postgres(_) => {
                    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                     BEGIN RAISE EXCEPTION 'no such thing' USING ERRCODE = 'data_exception'; END $$;
                     CREATE TRIGGER refuse BEFORE INSERT ON oncegate.deliveries FOR EACH ROW
                         WHEN (NEW.type = 'order.poison') EXECUTE FUNCTION refuse()"
                }
            })
            .await
            .unwrap();
        let mut all = Vec::new();
        for n in 0..40 {
            let kind = if n % 10 == 3 { "order.poison" } else { "order.fine" };
            all.push(engine.publish(kind, &format!("{{\"n\": {n}}}"), None));
        }
        engine.run(&format!("BEGIN; {}; COMMIT", all.join("; "))).await.unwrap();
        engine.intake_is_empty().await;
        assert_eq!(engine.count("deliveries").await, 36, "{}: {}", engine.name(), gateway.stderr());
        assert_eq!(engine.count_of("Unreadable").await, 4, "{}: {}", engine.name(), gateway.stderr());
        assert_eq!(engine.count("dead_letters").await, 4, "{}", engine.name());
        let (status, page) = gateway.get("/v1/dead-letters").await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().unwrap() {
            assert_eq!(item["type"], "order.poison", "{item}");
            assert_eq!(item["data"]["n"].as_u64().unwrap() % 10, 3, "{item}");
            assert!(item["errorText"].as_str().unwrap().contains("no such thing"), "{item}");
        }
    }
}

/// Whoever writes to the file holds it alone: the intake waits and goes on.
#[tokio::test]
async fn a_file_that_is_locked_holds_the_intake_up_and_loses_nothing() {
    let Some(engine) = engines().await.into_iter().next() else { return };
    let Engine::Sqlite(path) = &engine else { return };
    let gateway = Gateway::start(&engine.config(PAUSED)).await;
    let mut holder = sqlx::SqliteConnection::connect(&format!("sqlite:{path}")).await.unwrap();
    engine.run(&engine.publish("order.before", "1", None)).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await.unwrap();
    // Longer than a node waits for the file.
    tokio::time::sleep(Duration::from_secs(7)).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(engine.publish("order.inside", "2", None)))
        .execute(&mut holder)
        .await
        .unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    engine.intake_is_empty().await;
    assert_eq!(engine.count("deliveries").await, 2, "{}", gateway.stderr());
}
