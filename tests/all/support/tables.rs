//! A look into the tables of a gateway on PostgreSQL, for counting what is stuck.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

/// The tables of one database.
#[derive(Clone, Debug)]
pub struct Tables {
    url: String,
}

impl Tables {
    pub fn of(url: &str) -> Self {
        Self { url: url.to_owned() }
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connect to the store")
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = self.connect().await;
        let count = sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("count");
        let _ = connection.close().await;
        count
    }

    /// Rows that are not delivered yet.
    pub async fn deliveries(&self) -> i64 {
        self.count("SELECT count(*) FROM oncegate.deliveries").await
    }

    pub async fn dead_letters(&self) -> i64 {
        self.count("SELECT count(*) FROM oncegate.dead_letters").await
    }

    /// Deliveries that were made.
    pub async fn receipts(&self) -> i64 {
        self.count("SELECT count(*) FROM oncegate.receipts").await
    }

    /// Kinds of the dead letters, in order of their failing.
    pub async fn dead_kinds(&self) -> Vec<String> {
        let mut connection = self.connect().await;
        let kinds = sqlx::query_scalar("SELECT error_kind FROM oncegate.dead_letters ORDER BY failed_at")
            .fetch_all(&mut connection)
            .await
            .expect("read the dead letters");
        let _ = connection.close().await;
        kinds
    }

    /// Waits until nothing is left to deliver.
    pub async fn drained(&self, deadline: Duration) {
        super::eventually(deadline, "no delivery left in the store", async || {
            super::when(self.deliveries().await == 0)
        })
        .await;
    }
}
