//! What it adds to a transaction.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::support::postgres::Postgres;
use super::{connect, data, database, run};

/// What is written in the user's transaction, beside the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    /// An INSERT of the same bytes into a plain table.
    Plain,
    Publish,
    /// A hundred rows by one INSERT.
    PlainMany,
    PublishMany,
}

const ROUNDS: u32 = 8;
const A_ROUND: Duration = Duration::from_millis(600);

pub async fn measure(server: &Postgres) {
    println!("\n| in one transaction, without the commit | each | |\n|---|---|---|");
    let url = database(server).await;
    let mut connection = connect(&url).await;
    let (plain, publish) = statements(&mut connection, [Way::Plain, Way::Publish], 4_000).await;
    row("plain `INSERT` of the bytes", plain, None);
    row("`oncegate.publish`", publish, Some(publish.as_secs_f64() / plain.as_secs_f64()));
    let (plain, publish) = statements(&mut connection, [Way::PlainMany, Way::PublishMany], 100).await;
    row("plain `INSERT` of 100 rows", plain, None);
    row("`oncegate.publish_many` of 100", publish, Some(publish.as_secs_f64() / plain.as_secs_f64()));

    println!("\n| whole transactions, with an order | 1 writer | 16 writers |\n|---|---|---|");
    let ways = [Way::Nothing, Way::Plain, Way::Publish];
    let one = transactions(&url, ways, 1).await;
    let sixteen = transactions(&url, ways, 16).await;
    for (n, name) in ["the order alone", "and a plain `INSERT`", "and `oncegate.publish`"].iter().enumerate()
    {
        let told =
            |figures: &[f64; 3]| format!("{:.0}/s, {:.2} of the plain", figures[n], figures[n] / figures[1]);
        println!("| {name} | {} | {} |", told(&one), told(&sixteen));
    }
}

fn row(name: &str, each: Duration, ratio: Option<f64>) {
    let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.1} × the plain"));
    println!("| {name} | {:.0} µs | {ratio} |", each.as_secs_f64() * 1e6);
}

/// What each of two ways takes, in turns, in transactions of `count` statements.
async fn statements(connection: &mut PgConnection, ways: [Way; 2], count: u32) -> (Duration, Duration) {
    let mut took = [Duration::ZERO; 2];
    for round in 0..=ROUNDS {
        for (way, took) in ways.iter().zip(&mut took) {
            let mut transaction = connection.begin().await.unwrap();
            let began = Instant::now();
            for _ in 0..count {
                write(&mut transaction, *way).await;
            }
            // The first one warms everything up.
            if round > 0 {
                *took += began.elapsed();
            }
            transaction.commit().await.unwrap();
        }
    }
    let each = |took: Duration| took / (ROUNDS * count);
    (each(took[0]), each(took[1]))
}

/// Transactions a second of each way, in turns.
async fn transactions(url: &str, ways: [Way; 3], writers: u32) -> [f64; 3] {
    let mut done = [0_u32; 3];
    let mut took = [Duration::ZERO; 3];
    for round in 0..=ROUNDS {
        for n in 0..3 {
            let began = Instant::now();
            let mut writing = Vec::new();
            for _ in 0..writers {
                let mut connection = connect(url).await;
                let way = ways[n];
                writing.push(tokio::spawn(async move {
                    let (mut count, began) = (0, Instant::now());
                    while began.elapsed() < A_ROUND {
                        let mut transaction = connection.begin().await.unwrap();
                        sqlx::query("INSERT INTO orders (note) VALUES ('an order')")
                            .execute(&mut *transaction)
                            .await
                            .unwrap();
                        write(&mut transaction, way).await;
                        transaction.commit().await.unwrap();
                        count += 1;
                    }
                    count
                }));
            }
            let mut count = 0;
            for writing in writing {
                count += writing.await.unwrap();
            }
            if round > 0 {
                done[n] += count;
                took[n] += began.elapsed();
            }
        }
        // What nobody moves here, does not pile up.
        run(&mut connect(url).await, "TRUNCATE oncegate.intake, plain, orders").await;
    }
    [0, 1, 2].map(|n| f64::from(done[n]) / took[n].as_secs_f64())
}

async fn write(connection: &mut PgConnection, way: Way) {
    let plain = "INSERT INTO plain (id, type, deduplication_id, data) VALUES (gen_random_uuid(), $1, $2, $3)";
    let many = "INSERT INTO plain (id, type, data)
         SELECT gen_random_uuid(), m ->> 'type', convert_to((m -> 'data')::text, 'UTF8')
         FROM jsonb_array_elements($1) m";
    let query = match way {
        Way::Nothing => return,
        Way::Plain => {
            sqlx::query(plain).bind("order.created").bind("order-4711").bind(data().to_string().into_bytes())
        }
        Way::Publish => sqlx::query("SELECT oncegate.publish($1, $3, deduplication_id => $2)")
            .bind("order.created")
            .bind("order-4711")
            .bind(data()),
        Way::PlainMany | Way::PublishMany => {
            let sql = if way == Way::PlainMany { many } else { "SELECT oncegate.publish_many($1)" };
            sqlx::query(AssertSqlSafe(sql)).bind(hundred())
        }
    };
    query.execute(connection).await.unwrap();
}

fn hundred() -> serde_json::Value {
    (0..100).map(|_| json!({ "type": "order.created", "data": data() })).collect()
}
