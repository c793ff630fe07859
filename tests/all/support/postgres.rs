//! A private PostgreSQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::daemon::{self, Daemon, Life, Scope};
use super::{missing, run};

/// How long a server may take to come up on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// A server of our own. Dropping a private one kills it; the shared one lives until the run ends.
#[derive(Debug)]
pub struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    user: Option<&'static str>,
    life: Life,
    daemon: Mutex<Option<Daemon>>,
}

/// How a server is shut down.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Rolls back and disconnects everybody, then ends in order.
    Fast,
    /// As if it crashed, but at once and whole.
    Immediate,
}

/// The run's server, for tests that need no more than a database. `None`: skip the test.
pub async fn shared() -> Option<Postgres> {
    let dir = run::dir().join("postgres");
    let _lock = run::lock(&run::dir().join("postgres.lock"));
    if let Ok(port) = fs::read_to_string(run::dir().join("postgres.port")) {
        let port = port.parse().expect("the shared server's port");
        return Some(Postgres {
            bin: bin()?,
            dir,
            port,
            user: None,
            life: Life::Run,
            daemon: Mutex::new(None),
        });
    }
    let server = Postgres::launch(dir, &[], Life::Run).await?;
    fs::write(run::dir().join("postgres.port"), server.port.to_string())
        .expect("note the shared server's port");
    Some(server)
}

/// A server for this test alone, with additional settings. `None`: skip the test.
pub async fn private(settings: &[(&str, &str)]) -> Option<Postgres> {
    Postgres::launch(run::fresh_dir("postgres"), settings, Life::Handle).await
}

impl Postgres {
    async fn launch(dir: PathBuf, settings: &[(&str, &str)], life: Life) -> Option<Self> {
        let bin = bin()?;
        // The server refuses to run as root.
        let user = daemon::is_root().then_some("postgres");
        fs::create_dir_all(&dir).expect("make the server's folder");
        if let Some(user) = user {
            own(&dir, user);
        }
        init(&bin, &dir, user);
        let port = run::free_port();
        configure(&dir, port, settings);
        let server = Self { bin, dir, port, user, life, daemon: Mutex::new(None) };
        server.start().await;
        Some(server)
    }

    /// Starts it (again) and waits until it answers.
    pub async fn start(&self) {
        let started = Instant::now();
        loop {
            let mut command = daemon::as_user(self.user, &self.bin.join("postgres"));
            command.arg("-D").arg(self.dir.join("data")).current_dir(&self.dir);
            // Message catalogs of languages that the machine does not have are looked for here as well.
            command.env("LOCPATH", self.dir.join("locales"));
            if !self.dir.join("locales").exists() {
                command.env_remove("LOCPATH");
            }
            let mut daemon = Daemon::start(command, &self.dir.join("log"), self.life);
            while daemon.alive() {
                if self.ready().await {
                    *self.daemon.lock().expect("the server's process") = Some(daemon);
                    return;
                }
                assert!(started.elapsed() < START_DEADLINE, "PostgreSQL is not up:\n{}", self.log());
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            // After a kill -9 the orphans of the old one may still hold its memory for a moment.
            assert!(started.elapsed() < START_DEADLINE, "PostgreSQL does not start:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ready(&self) -> bool {
        match PgConnection::connect(&self.url("postgres")).await {
            Ok(connection) => connection.close().await.is_ok(),
            Err(_) => false,
        }
    }

    /// Shuts it down and waits for the end.
    pub fn stop(&self, how: Stop) {
        let signal = match how {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        };
        self.end(signal, Scope::Process);
    }

    /// Kills every process of it.
    pub fn kill9(&self) {
        self.end("KILL", Scope::WithChildren);
    }

    fn end(&self, signal: &str, scope: Scope) {
        let mut daemon =
            self.daemon.lock().expect("the server's process").take().expect("a private server that runs");
        daemon.signal(signal, scope);
        daemon.wait(Duration::from_secs(30));
    }

    /// Stops every process of it where it stands: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, signal: &str) {
        self.daemon
            .lock()
            .expect("the server's process")
            .as_ref()
            .expect("a private server that runs")
            .signal(signal, Scope::WithChildren);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database; its URL.
    pub async fn fresh_database(&self) -> String {
        let name = run::unique("t");
        let mut connection =
            PgConnection::connect(&self.url("postgres")).await.expect("connect to PostgreSQL");
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0")))
            .execute(&mut connection)
            .await
            .expect("create a database");
        let _ = connection.close().await;
        self.url(&name)
    }

    /// What it logged, for a failure's text.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

/// Where the server's programs are: the newest of Debian's, else those of the PATH.
fn bin() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    folders.sort_by_key(|path| version(path));
    folders.reverse();
    match daemon::find("initdb", &folders) {
        Some(initdb) => initdb.parent().map(Path::to_path_buf),
        None => missing("PostgreSQL"),
    }
}

fn version(bin: &Path) -> u32 {
    bin.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// Makes the data folder, from a copy of the run's template: initdb takes longer than the copying.
fn init(bin: &Path, dir: &Path, user: Option<&str>) {
    let template = run::dir().join("postgres-template");
    {
        let _lock = run::lock(&run::dir().join("postgres-template.lock"));
        if !template.exists() {
            let making = run::dir().join("postgres-making");
            fs::create_dir_all(&making).expect("make the template's folder");
            if let Some(user) = user {
                own(&making, user);
            }
            let status = daemon::as_user(user, &bin.join("initdb"))
                .arg("-D")
                .arg(making.join("data"))
                .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
                .current_dir(&making)
                .stdout(Stdio::null())
                .status()
                .expect("run initdb");
            assert!(status.success(), "initdb failed");
            fs::rename(&making, &template).expect("put the template in its place");
        }
    }
    let status = Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(template.join("data"))
        .arg(dir.join("data"))
        .status()
        .expect("run cp");
    assert!(status.success(), "the template could not be copied");
}

fn configure(dir: &Path, port: u16, settings: &[(&str, &str)]) {
    let mut conf = format!(
        "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
         max_connections = 300\nshared_buffers = 64MB\n\
         # A crash of the server, which the tests make, loses nothing without it; a crash of the machine would.\n\
         fsync = off\nfull_page_writes = off\nautovacuum_naptime = 5s\n",
        dir.display()
    );
    for (name, value) in settings {
        if *name == "lc_messages" {
            make_locale(dir, value);
        }
        conf.push_str(&format!("{name} = '{value}'\n"));
    }
    let path = dir.join("data/postgresql.auto.conf");
    // Written in place, so that it stays the server's user's.
    fs::write(path, conf).expect("configure the server");
}

/// Compiles a locale into the server's own folder: no root needed, and nothing of the machine changed.
fn make_locale(dir: &Path, name: &str) {
    let (language, charset) = name.split_once('.').expect("a locale such as de_DE.UTF-8");
    let locales = dir.join("locales");
    fs::create_dir_all(&locales).expect("make the folder of locales");
    for (from, to) in [(language, name), ("C", "C.UTF-8")] {
        let status = Command::new("localedef")
            .args(["-i", from, "-f", charset])
            .arg(locales.join(to))
            .stderr(Stdio::null())
            .status()
            .expect("run localedef");
        assert!(locales.join(to).exists(), "localedef could not make {to} ({status})");
    }
}

fn own(dir: &Path, user: &str) {
    let status = Command::new("chown").arg(format!("{user}:")).arg(dir).status().expect("run chown");
    assert!(status.success(), "the folder could not be given to {user}");
}
