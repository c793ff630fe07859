//! A private RabbitMQ, and a look into its queues.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use super::daemon::{self, Daemon, Life, Scope};
use super::{missing, run};

/// It takes several seconds on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// A broker of our own. Dropping a private one kills it; the shared one lives until the run ends.
#[derive(Debug)]
pub struct RabbitMq {
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    ports: Ports,
    life: Life,
    daemon: Mutex<Option<Daemon>>,
    _epmd: Option<Daemon>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    epmd: u16,
    dist: u16,
}

/// The run's broker, for tests that need no more than queues of their own names. `None`: skip the test.
pub async fn shared() -> Option<RabbitMq> {
    let dir = run::dir().join("rabbitmq");
    let _lock = run::lock(&run::dir().join("rabbitmq.lock"));
    if let Ok(port) = fs::read_to_string(run::dir().join("rabbitmq.port")) {
        let port = port.parse().expect("the shared broker's port");
        let (program, ports) = (program()?, Ports::default());
        return Some(RabbitMq {
            program,
            dir,
            port,
            ports,
            life: Life::Run,
            daemon: Mutex::new(None),
            _epmd: None,
        });
    }
    let broker = RabbitMq::launch(dir, Life::Run, "").await?;
    fs::write(run::dir().join("rabbitmq.port"), broker.port.to_string())
        .expect("note the shared broker's port");
    Some(broker)
}

/// A broker for this test alone. `None`: skip the test.
pub async fn private() -> Option<RabbitMq> {
    private_with("").await
}

/// As [`private`], with these lines in its configuration.
pub async fn private_with(conf: &str) -> Option<RabbitMq> {
    RabbitMq::launch(run::fresh_dir("rabbitmq"), Life::Handle, conf).await
}

impl RabbitMq {
    async fn launch(dir: PathBuf, life: Life, conf: &str) -> Option<Self> {
        let program = program()?;
        let Some(epmd) = daemon::find("epmd", &[]) else { return missing("Erlang's epmd") };
        fs::create_dir_all(dir.join("home")).expect("make the broker's folder");
        let (port, ports) = (run::free_port(), Ports { epmd: run::free_port(), dist: run::free_port() });
        let conf = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\ndisk_free_limit.absolute = 50MB\n\
             vm_memory_high_watermark.absolute = 1GB\nlog.console = false\n{conf}"
        );
        fs::write(dir.join("rabbitmq.conf"), conf).expect("configure the broker");
        fs::write(dir.join("plugins"), "[].\n").expect("configure the broker's plugins");
        fs::write(dir.join("env.conf"), "# Nothing of the machine's.\n")
            .expect("configure the broker's environment");
        // A port mapper of our own: one that the broker starts by itself would outlive it.
        let mut command = Command::new(epmd);
        command.args(["-port", &ports.epmd.to_string(), "-address", "127.0.0.1"]);
        let epmd = Daemon::start(command, &dir.join("epmd.log"), life);
        let broker = Self { program, dir, port, ports, life, daemon: Mutex::new(None), _epmd: Some(epmd) };
        broker.start().await;
        Some(broker)
    }

    /// Starts it (again), with what it had, and waits until it answers.
    pub async fn start(&self) {
        let dir = &self.dir;
        let mut command = Command::new(&self.program);
        command
            .arg("-noinput")
            .current_dir(dir)
            .env("HOME", dir.join("home"))
            .env("ERL_EPMD_PORT", self.ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_CONF_ENV_FILE", dir.join("env.conf"))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
            .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", dir.join("log"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", dir.join("generated"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", dir.join("feature-flags"))
            .env("RABBITMQ_NODENAME", format!("oncegate{}@localhost", self.port))
            .env("RABBITMQ_DIST_PORT", self.ports.dist.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2");
        let mut daemon = Daemon::start(command, &dir.join("output"), self.life);
        let started = Instant::now();
        while !self.ready().await {
            assert!(
                daemon.alive() && started.elapsed() < START_DEADLINE,
                "RabbitMQ is not up:\n{}",
                fs::read_to_string(dir.join("output")).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        *self.daemon.lock().expect("the broker's process") = Some(daemon);
    }

    async fn ready(&self) -> bool {
        if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            return false;
        }
        match Connection::connect(&self.url(), ConnectionProperties::default()).await {
            Ok(connection) => connection.close(200, "".into()).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Shuts it down in order; its durable queues and messages stay.
    pub fn stop(&self) {
        self.end("TERM");
    }

    pub fn kill9(&self) {
        self.end("KILL");
    }

    fn end(&self, signal: &str) {
        let mut daemon =
            self.daemon.lock().expect("the broker's process").take().expect("a private broker that runs");
        daemon.signal(signal, Scope::Process);
        daemon.wait(Duration::from_secs(60));
    }

    /// Stops it where it stands: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let daemon = self.daemon.lock().expect("the broker's process");
        daemon.as_ref().expect("a private broker that runs").signal(signal, Scope::Process);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// A connection and a channel for a look into it.
    pub async fn open(&self) -> Probe {
        let connection = Connection::connect(&self.url(), ConnectionProperties::default())
            .await
            .expect("connect to RabbitMQ");
        let channel = connection.create_channel().await.expect("open a channel");
        Probe { connection, channel }
    }

    /// A durable queue of its own name, bound to the default exchange only; the name.
    pub async fn fresh_queue(&self) -> String {
        let name = run::unique("q");
        self.open().await.declare(&name).await;
        name
    }
}

/// A client's view of the broker.
#[derive(Debug)]
pub struct Probe {
    pub connection: Connection,
    pub channel: Channel,
}

impl Probe {
    /// Declares a durable queue.
    pub async fn declare(&self, queue: &str) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .expect("declare a queue");
    }

    /// Declares a durable topic exchange.
    pub async fn declare_exchange(&self, exchange: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        self.channel
            .exchange_declare(exchange.into(), ExchangeKind::Topic, options, FieldTable::default())
            .await
            .expect("declare an exchange");
    }

    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        self.channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                routing_key.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("bind the queue");
    }

    /// How many messages wait in a queue.
    pub async fn depth(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .expect("ask for the queue")
            .message_count()
    }

    /// Takes one message off, if there is one.
    pub async fn get(&self, queue: &str) -> Option<Delivery> {
        let message =
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("get");
        message.map(|message| message.delivery)
    }

    /// Takes messages off a queue until none has come for `quiet`.
    pub async fn drain(&self, queue: &str, quiet: Duration) -> Vec<Delivery> {
        let mut consumer = self
            .channel
            .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .expect("consume");
        let mut taken: Vec<Delivery> = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout(quiet, consumer.next()).await {
            let message = message.expect("a delivery");
            message.ack(BasicAckOptions::default()).await.expect("acknowledge");
            taken.push(message);
        }
        let tag = consumer.tag();
        self.channel
            .basic_cancel(tag, lapin::options::BasicCancelOptions::default())
            .await
            .expect("stop consuming");
        taken
    }
}

/// The `message_id` property of a delivery.
pub fn message_id(delivery: &Delivery) -> String {
    delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
}

fn program() -> Option<PathBuf> {
    // Debian's wrapper in /usr/sbin changes the user and the folders; what it wraps does not.
    match daemon::find("rabbitmq-server", &[PathBuf::from("/usr/lib/rabbitmq/bin")]) {
        Some(program) => Some(program),
        None => missing("RabbitMQ"),
    }
}
