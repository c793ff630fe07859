//! The real binary, on a port and with a configuration of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::daemon::{self, Daemon, Life, Scope};
use super::run;

/// How long it may take until `/readyz` is 200, on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Describes a gateway before it is started.
#[derive(Debug)]
pub struct Builder {
    config: String,
    env: Vec<(String, String)>,
    port: u16,
}

/// A running (or stopped, or killed) gateway. Killed on drop.
#[derive(Debug)]
pub struct Gateway {
    dir: PathBuf,
    port: u16,
    env: Vec<(String, String)>,
    daemon: Option<Daemon>,
    client: reqwest::Client,
}

impl Builder {
    /// A variable for its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Gateway {
        let mut gateway = self.spawn();
        gateway.wait_ready(START_DEADLINE).await;
        gateway
    }

    /// Starts it and does not wait.
    pub fn spawn(self) -> Gateway {
        let dir = run::fresh_dir("gateway");
        fs::write(dir.join("oncegate.toml"), &self.config).expect("write the configuration");
        let client = reqwest::Client::builder().no_proxy().build().expect("build the client");
        let mut gateway = Gateway { dir, port: self.port, env: self.env, daemon: None, client };
        gateway.spawn();
        gateway
    }
}

impl Gateway {
    /// A gateway with this configuration (TOML). `server.listen` is set by the harness.
    pub fn with(config: &str) -> Builder {
        Builder { config: config.to_owned(), env: Vec::new(), port: run::free_port() }
    }

    /// Starts one with this configuration and waits until it is ready.
    pub async fn start(config: &str) -> Self {
        Self::with(config).start().await
    }

    fn spawn(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command
            .arg("serve")
            .arg("--config")
            .arg(self.dir.join("oncegate.toml"))
            .current_dir(&self.dir)
            .env("ONCEGATE__SERVER__LISTEN", format!("127.0.0.1:{}", self.port));
        for (name, value) in &self.env {
            command.env(name, value);
        }
        self.daemon = Some(Daemon::start_split(
            command,
            &self.dir.join("stdout"),
            &self.dir.join("stderr"),
            Life::Handle,
        ));
    }

    /// Waits until `/readyz` is 200; panics with the log after `deadline`, or when the process ends.
    pub async fn wait_ready(&mut self, deadline: Duration) {
        let started = Instant::now();
        loop {
            let alive = self.daemon.as_mut().is_some_and(Daemon::alive);
            assert!(alive, "the gateway ended while starting:\n{}", self.stderr());
            if self.ready().await {
                return;
            }
            assert!(started.elapsed() < deadline, "the gateway is not ready:\n{}", self.stderr());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether `/readyz` is 200 just now.
    pub async fn ready(&self) -> bool {
        let answer = self.client.get(self.url("/readyz")).timeout(Duration::from_secs(5)).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    }

    /// `http://127.0.0.1:PORT` + `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Publishes one message in the native form; the status and the answer's body.
    pub async fn publish(&self, message: serde_json::Value) -> (u16, serde_json::Value) {
        self.post("/v1/publish", message).await
    }

    /// POSTs JSON; the status and the answer's body.
    pub async fn post(&self, path: &str, body: serde_json::Value) -> (u16, serde_json::Value) {
        let answer = self.client.post(self.url(path)).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("a JSON answer"))
    }

    /// GETs JSON; the status and the answer's body.
    pub async fn get(&self, path: &str) -> (u16, serde_json::Value) {
        let answer = self.client.get(self.url(path)).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("a JSON answer"))
    }

    /// A client without proxies, to be shared by a test's requests.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Its working folder; relative paths of the configuration begin here.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a gateway that runs").pid()
    }

    /// What it wrote to standard output so far, over all its lives.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.dir.join("stdout")).unwrap_or_default()
    }

    /// What it logged so far, over all its lives.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }

    /// Whether the process runs.
    pub fn alive(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(Daemon::alive)
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        let mut daemon = self.daemon.take().expect("a gateway that runs");
        daemon.signal("KILL", Scope::Process);
        daemon.wait(Duration::from_secs(10));
    }

    /// SIGTERM; waits for the end of the drain. Panics with the log after `deadline`.
    pub async fn term(&mut self, deadline: Duration) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("a gateway that runs");
        daemon.signal("TERM", Scope::Process);
        let started = Instant::now();
        while daemon.alive() {
            assert!(started.elapsed() < deadline, "the gateway did not drain:\n{}", self.stderr());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        daemon.wait(Duration::from_secs(1))
    }

    /// Sends another signal (`HUP`, `STOP`, `CONT`).
    pub fn signal(&self, signal: &str) {
        daemon::send(signal, &[self.pid()]);
    }

    /// Waits for it to end by itself.
    pub fn wait_end(&mut self, deadline: Duration) -> ExitStatus {
        self.daemon.as_mut().expect("a gateway that runs").wait(deadline)
    }

    /// Starts it again after it ended, on the same port and in the same folder, and waits until it is ready.
    pub async fn restart(&mut self) {
        self.spawn();
        self.wait_ready(START_DEADLINE).await;
    }
}

/// Runs the binary with these arguments to its end, in a folder of its own. For commands that do not serve.
pub fn command(args: &[&str], config: Option<&str>) -> std::process::Output {
    let dir = run::fresh_dir("command");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(args).current_dir(&dir).stdin(Stdio::null());
    if let Some(config) = config {
        fs::write(dir.join("oncegate.toml"), config).expect("write the configuration");
    }
    command.output().expect("run oncegate")
}

/// Another command of the binary that runs beside a test. Killed on drop.
#[derive(Debug)]
pub struct Tool {
    dir: PathBuf,
    _daemon: Daemon,
}

impl Tool {
    pub fn start(args: &[&str]) -> Self {
        let dir = run::fresh_dir("tool");
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.args(args).current_dir(&dir);
        let daemon = Daemon::start_split(command, &dir.join("stdout"), &dir.join("stderr"), Life::Handle);
        Self { dir, _daemon: daemon }
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.dir.join("stdout")).unwrap_or_default()
    }
}
