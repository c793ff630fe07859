//! A private PgBouncer in transaction mode: every transaction may meet another process of the server.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::daemon::{self, Daemon, Life};
use super::postgres::Postgres;
use super::{eventually, missing, run};

/// Killed when it is dropped.
#[derive(Debug)]
pub struct Pgbouncer {
    /// The database's URL, through the pooler.
    pub url: String,
    _daemon: Daemon,
}

impl Pgbouncer {
    /// Before this server, for the database at `url`. It has three connections for all who come. `None`: skip the
    /// test.
    pub async fn start(server: &Postgres, url: &str) -> Option<Self> {
        let Some(program) = daemon::find("pgbouncer", &[PathBuf::from("/usr/sbin")]) else {
            return missing("PgBouncer");
        };
        let (folder, port) = (run::fresh_dir("pgbouncer"), run::free_port());
        let (users, settings) = (folder.join("users"), folder.join("pgbouncer.ini"));
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("write the users");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 3\nunix_socket_dir =\n",
            server.port(),
            users.display()
        );
        std::fs::write(&settings, text).expect("write the settings");
        // It refuses to run as root.
        let user = daemon::is_root().then_some("postgres");
        let mut command = daemon::as_user(user, &program);
        command.arg(&settings);
        let daemon = Daemon::start(command, &folder.join("log"), Life::Handle);
        let url = url.replace(&format!(":{}/", server.port()), &format!(":{port}/"));
        let pooler = Self { url, _daemon: daemon };
        eventually(Duration::from_secs(30), "PgBouncer answers", async || {
            pooler.try_connect().await.ok()?.close().await.ok()
        })
        .await;
        Some(pooler)
    }

    /// A client's connection, without what a pooler does not let through.
    pub async fn connect(&self) -> PgConnection {
        self.try_connect().await.expect("connect through PgBouncer")
    }

    async fn try_connect(&self) -> sqlx::Result<PgConnection> {
        let options: PgConnectOptions = self.url.parse()?;
        options.extra_float_digits(None).statement_cache_capacity(0).connect().await
    }
}
