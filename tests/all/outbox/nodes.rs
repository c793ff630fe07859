//! Several nodes at one intake.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{Engine, PAUSED};
use crate::support::gateway::Gateway;
use crate::support::postgres;

/// Three nodes, one of which dies over and over; writers that publish every identity twice; and one large
/// transaction. Every row is moved once, and every identity is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_several_nodes_move_each_row_once() {
    const WRITERS: u32 = 6;
    const EACH: u32 = 30;
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    engine.migrate();
    let config = engine.config(PAUSED);
    let (first, second, mut mortal) =
        tokio::join!(Gateway::start(&config), Gateway::start(&config), Gateway::start(&config));
    engine
        .run("SELECT count(oncegate.publish('bulk', to_jsonb(n))) FROM generate_series(1, 3000) n")
        .await
        .unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let url = url.clone();
            tokio::spawn(async move {
                let mut connection = PgConnection::connect(&url).await.unwrap();
                for n in 0..EACH {
                    // Its neighbour publishes the same identity.
                    let id = format!("{}-{n}", writer / 2);
                    let sql = format!(
                        "BEGIN; SELECT oncegate.publish('strict', '{n}', deduplication_id => '{id}');
                         SELECT oncegate.publish('order.plain', '{n}'); COMMIT"
                    );
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(u64::from(n * 13 % 90))).await;
                }
            })
        })
        .collect();
    for n in 0..4_u64 {
        tokio::time::sleep(Duration::from_millis(100 + n * 211 % 500)).await;
        mortal.kill9();
        mortal.restart().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    engine.intake_is_empty().await;
    let (identities, plain) = (i64::from(WRITERS / 2 * EACH), i64::from(WRITERS * EACH));
    let of = |kind: &str| format!("SELECT count(*) FROM oncegate.deliveries WHERE type = '{kind}'");
    assert_eq!(engine.number(&of("bulk")).await, 3_000);
    assert_eq!(engine.number(&of("order.plain")).await, plain);
    assert_eq!(engine.number(&of("strict")).await, identities);
    let distinct = "SELECT count(DISTINCT coalesce(message_id, row_id::text)) FROM oncegate.deliveries";
    assert_eq!(engine.number(distinct).await, 3_000 + plain + identities);
    let ids = "SELECT count(DISTINCT deduplication_id) FROM oncegate.deliveries";
    assert_eq!(engine.number(ids).await, identities);
    assert_eq!(engine.count("dead_letters").await, 0);
    drop((first, second, mortal));
}
