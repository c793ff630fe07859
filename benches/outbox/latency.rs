//! From the commit to the delivery.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::support::gateway::Gateway;
use super::support::postgres::Postgres;
use super::support::receiver::Receiver;
use super::{connect, database, ms, percentiles};

const COMMITS: u32 = 120;
/// Never in step with a poll.
const APART: Duration = Duration::from_millis(137);

pub async fn measure(server: &Postgres) {
    println!("\n| from the commit to the delivery | median | 99 of 100 |\n|---|---|---|");
    for (name, notify) in [("polled", false), ("`intake.notify`", true)] {
        let (median, most) = percentiles(of(server, notify).await);
        println!("| {name} | {} | {} |", ms(median), ms(most));
    }
}

async fn of(server: &Postgres, notify: bool) -> Vec<Duration> {
    let url = database(server).await;
    let receiver = Receiver::start().await;
    let config = super::notify::config(&url, notify, &receiver.url("/"));
    let _gateway = Gateway::start(&config).await;
    super::notify::switched(&url, notify).await;
    let mut connection = connect(&url).await;
    let mut committed = HashMap::new();
    for n in 0..COMMITS {
        sqlx::query("SELECT oncegate.publish('order.created', to_jsonb($1::integer))")
            .bind(i32::try_from(n).unwrap())
            .execute(&mut connection)
            .await
            .unwrap();
        committed.insert(n.to_string(), Instant::now());
        tokio::time::sleep(APART).await;
    }
    let received = receiver.wait_for(COMMITS as usize, Duration::from_secs(30)).await;
    let since = |at: Instant, text: &str| at.saturating_duration_since(committed[text]);
    received.iter().map(|request| since(request.at, &request.text())).collect()
}
