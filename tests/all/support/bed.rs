//! A store for the real binary, and a look behind its back: for tests that hold on every store.

use sqlx::{AssertSqlSafe, PgPool, SqlitePool};

use super::pgbouncer::Pgbouncer;
use super::postgres::{self, Postgres};
use super::run;

/// A store of its own for one test.
pub struct Bed {
    url: String,
    behind: Behind,
    /// A proxy before the server.
    pooler: Option<Pgbouncer>,
}

enum Behind {
    Sqlite,
    Postgres(Postgres),
}

/// Runs each of these functions, which take a [`Bed`], over every store.
macro_rules! on_every_store {
    ($($name:ident)*) => { $(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name(&$crate::support::bed::Bed::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(bed) = $crate::support::bed::Bed::postgres().await {
                    super::$name(&bed).await;
                }
            }
        }
    )* };
}
pub(crate) use on_every_store;

/// As [`on_every_store`], and on PostgreSQL behind a transaction-pooling proxy.
macro_rules! on_every_store_and_a_pooler {
    ($($name:ident)*) => {
        $crate::support::bed::on_every_store! { $($name)* }

        mod pooled { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(bed) = $crate::support::bed::Bed::pooled().await {
                    super::$name(&bed).await;
                }
            }
        )* }
    };
}
pub(crate) use on_every_store_and_a_pooler;

impl Bed {
    pub fn sqlite() -> Self {
        let path = run::fresh_dir("bed").join("store.db");
        Self { url: format!("sqlite:{}", path.display()), behind: Behind::Sqlite, pooler: None }
    }

    pub async fn postgres() -> Option<Self> {
        let server = postgres::shared().await?;
        Some(Self { url: server.fresh_database().await, behind: Behind::Postgres(server), pooler: None })
    }

    /// PostgreSQL behind PgBouncer in transaction mode; what looks behind the store's back does so directly.
    pub async fn pooled() -> Option<Self> {
        let bed = Self::postgres().await?;
        let Behind::Postgres(server) = &bed.behind else { return None };
        let pooler = Pgbouncer::start(server, &bed.url).await?;
        Some(Self { pooler: Some(pooler), ..bed })
    }

    pub fn engine(&self) -> &'static str {
        match self.behind {
            Behind::Sqlite => "sqlite",
            Behind::Postgres(_) => "postgres",
        }
    }

    /// The beginning of a configuration.
    pub fn config(&self) -> String {
        match &self.pooler {
            None => format!("[stores.main]\nurl = \"{}\"\n", self.url),
            Some(pooler) => format!("[stores.main]\nurl = \"{}\"\npooler = 'transaction'\n", pooler.url),
        }
    }

    async fn number(&self, sqlite: String, postgres: String) -> u64 {
        let number: i64 = match self.behind {
            Behind::Sqlite => {
                let pool = SqlitePool::connect(&self.url).await.unwrap();
                let number = sqlx::query_scalar(AssertSqlSafe(sqlite)).fetch_one(&pool).await.unwrap();
                pool.close().await;
                number
            }
            Behind::Postgres(_) => {
                let pool = PgPool::connect(&self.url).await.unwrap();
                let number = sqlx::query_scalar(AssertSqlSafe(postgres)).fetch_one(&pool).await.unwrap();
                pool.close().await;
                number
            }
        };
        u64::try_from(number).unwrap()
    }

    /// How many rows a table has.
    pub async fn count(&self, table: &str) -> u64 {
        let sql = |prefix: &str| format!("SELECT count(*) FROM {prefix}{table}");
        self.number(sql("oncegate_"), sql("oncegate.")).await
    }

    /// How often a delivery has been taken without being settled, at most.
    pub async fn most_takes(&self) -> u64 {
        let sql = |table: &str| format!("SELECT CAST(coalesce(max(taken), 0) AS bigint) FROM {table}");
        self.number(sql("oncegate_deliveries"), sql("oncegate.deliveries")).await
    }

    /// How many deliveries are due.
    pub async fn due(&self) -> u64 {
        self.number(
            "SELECT count(*) FROM oncegate_deliveries WHERE due_at <= unixepoch('subsec') * 1000000"
                .to_owned(),
            "SELECT count(*) FROM oncegate.deliveries WHERE due_at <= now()".to_owned(),
        )
        .await
    }

    /// A message that a transaction of the user's commits.
    pub async fn insert_intake(&self, kind: &str, data: &str) {
        let insert = |table: &str, data: &str| {
            format!(
                "INSERT INTO {table} (type, content_type, data) VALUES ('{kind}', 'application/json', {data}) RETURNING seq"
            )
        };
        self.number(
            insert("oncegate_intake", &format!("'{data}'")),
            insert("oncegate.intake", &format!("convert_to('{data}', 'UTF8')")),
        )
        .await;
    }

    /// How many different messages have deliveries, or receipts of them.
    pub async fn distinct_messages(&self) -> u64 {
        let sql = |prefix: &str| {
            format!(
                "SELECT count(*) FROM (SELECT message_id FROM {prefix}deliveries
                 UNION SELECT message_id FROM {prefix}receipts) AS ids"
            )
        };
        self.number(sql("oncegate_"), sql("oncegate.")).await
    }

    /// How many different messages have deliveries for this target.
    pub async fn distinct_of(&self, target: &str) -> u64 {
        let sql =
            |table: &str| format!("SELECT count(DISTINCT message_id) FROM {table} WHERE target = '{target}'");
        self.number(sql("oncegate_deliveries"), sql("oncegate.deliveries")).await
    }

    /// Writes so many dead letters for a destination: messages `m-1` and on, of 20 types and three kinds of
    /// errors.
    pub async fn fill_dead_letters(&self, count: usize, target: &str) {
        match self.behind {
            Behind::Sqlite => {
                let sql = format!(
                    "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})
                     INSERT INTO oncegate_dead_letters (id, row_id, target_no, kind, target, attempts, tenant,
                        message_id, type, accepted_at, failed_at, error_kind, error_text, envelope, body)
                     SELECT randomblob(16), randomblob(16), 0, 0, '{target}', 1, '', 'm-' || n, 'type-' || (n % 20),
                        1e15 + n, unixepoch() * 1000000 - n * 1000,
                        CASE n % 3 WHEN 0 THEN 'Refused' WHEN 1 THEN 'TooLarge' ELSE 'Expired' END, 'no', '{{}}',
                        CAST(printf('%.200c', 'x') AS BLOB)
                     FROM n"
                );
                let pool = SqlitePool::connect(&self.url).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Behind::Postgres(_) => {
                let sql = format!(
                    "INSERT INTO oncegate.dead_letters (id, row_id, target_no, kind, target, attempts, tenant,
                        message_id, type, accepted_at, failed_at, error_kind, error_text, envelope, body)
                     SELECT gen_random_uuid(), gen_random_uuid(), 0, 0, '{target}', 1, '', 'm-' || n,
                        'type-' || (n % 20), now() - n * interval '1 second', now() - n * interval '1 millisecond',
                        (ARRAY['Refused', 'TooLarge', 'Expired'])[n % 3 + 1], 'no', '{{}}', repeat('x', 200)::bytea
                     FROM generate_series(1, {count}) n"
                );
                let pool = PgPool::connect(&self.url).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
                pool.close().await;
            }
        }
    }
}
