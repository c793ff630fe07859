//! What NOTIFY costs those who commit at the same time.

use std::time::{Duration, Instant};

use sqlx::Connection;

use super::support::gateway::Gateway;
use super::support::postgres::Postgres;
use super::support::{eventually, when};
use super::{connect, data, database};

const WRITERS: u32 = 16;
const ROUND: Duration = Duration::from_secs(6);

pub fn config(url: &str, notify: bool, hook: &str) -> String {
    format!(
        "[stores.main]\nurl = \"{url}\"\n[intake]\nnotify = {notify}\n[telemetry]\nlog_level = \"warn\"\n\
         [destinations.out]\ntransport = \"webhook\"\nurl = \"{hook}\"\nallow_private = true\n\
         [[routes]]\ntypes = [\"*\"]\ndestinations = [\"out\"]\n"
    )
}

/// Waits until the database tells the nodes of commits, or does not any more.
pub async fn switched(url: &str, notify: bool) {
    let mut connection = connect(url).await;
    eventually(Duration::from_secs(30), "the trigger is switched", async || {
        let sql = "SELECT tgenabled <> 'D' FROM pg_trigger WHERE tgname = 'intake_notify'";
        let on: bool = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        when(on == notify)
    })
    .await;
    // The connection that listens may still be on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
}

pub async fn measure(server: &Postgres) {
    println!(
        "\n| {WRITERS} writers, each an order and a message, a gateway moving them | commits | 99 of 100 within |"
    );
    println!("|---|---|---|");
    let mut totals = [(0.0, Vec::new()), (0.0, Vec::new())];
    for _ in 0..2 {
        for (notify, (rate, times)) in [false, true].into_iter().zip(&mut totals) {
            let mut round = commits(server, notify).await;
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let per_second = round.len() as f64 / ROUND.as_secs_f64();
            *rate += per_second / 2.0;
            times.append(&mut round);
        }
    }
    let off = totals[0].0;
    for (name, (rate, times)) in ["polled", "`intake.notify`"].into_iter().zip(totals) {
        let (_, most) = super::percentiles(times);
        println!("| {name} | {rate:.0}/s, {:.2} of the polled | {} |", rate / off, super::ms(most));
    }
}

/// How long each transaction took.
async fn commits(server: &Postgres, notify: bool) -> Vec<Duration> {
    let url = database(server).await;
    let paused =
        config(&url, notify, "http://127.0.0.1:9/").replace("allow_private", "paused = true\nallow_private");
    let _gateway = Gateway::start(&paused).await;
    switched(&url, notify).await;
    let mut writing = Vec::new();
    for _ in 0..WRITERS {
        let mut connection = connect(&url).await;
        writing.push(tokio::spawn(async move {
            let (mut times, began) = (Vec::new(), Instant::now());
            while began.elapsed() < ROUND {
                let started = Instant::now();
                let mut transaction = connection.begin().await.unwrap();
                sqlx::query("INSERT INTO orders (note) VALUES ('an order')")
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                let publish = sqlx::query("SELECT oncegate.publish('order.created', $1)").bind(data());
                publish.execute(&mut *transaction).await.unwrap();
                transaction.commit().await.unwrap();
                times.push(started.elapsed());
            }
            times
        }));
    }
    let mut all = Vec::new();
    for writing in writing {
        all.append(&mut writing.await.unwrap());
    }
    all
}
