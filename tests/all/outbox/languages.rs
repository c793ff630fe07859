//! The examples of `docs/outbox.md`, as they stand there, against the real server.

#[path = "example.rs"]
mod example;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Engine, SOON, hook};
use crate::support::gateway::Gateway;
use crate::support::receiver::Receiver;
use crate::support::{daemon, missing, postgres, run};

/// The first block of this language in the document.
fn block(language: &str) -> String {
    let document = include_str!("../../../docs/outbox.md");
    let (_, rest) = document.split_once(&format!("```{language}\n")).expect("an example");
    rest.split_once("\n```").expect("its end").0.to_owned() + "\n"
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools")
}

/// A shop whose orders are told to a receiver.
struct Shop {
    url: String,
    engine: Engine,
    receiver: Receiver,
    _gateway: Gateway,
}

impl Shop {
    async fn open() -> Option<Self> {
        let url = postgres::shared().await?.fresh_database().await;
        let engine = Engine::Postgres(url.clone());
        let receiver = Receiver::start().await;
        let gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
        engine.run("CREATE TABLE orders (id integer PRIMARY KEY)").await.unwrap();
        Some(Self { url, engine, receiver, _gateway: gateway })
    }

    /// Runs a program that takes the order 42 twice, of which the second is refused.
    async fn runs(&self, mut program: Command) {
        program.env("DATABASE_URL", &self.url);
        let output = tokio::task::spawn_blocking(move || program.output().expect("run it")).await.unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        assert_eq!(out.trim(), "refused", "{err}");
    }

    /// One order, one message.
    async fn told_of_the_order(&self) {
        self.receiver.wait_for(1, SOON).await;
        self.engine.intake_is_empty().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let received = self.receiver.received();
        let told: Vec<_> =
            received.iter().map(|request| (request.header("deduplication-id"), request.text())).collect();
        assert_eq!(told, [("order-42", "{\"orderId\": 42}".to_owned())]);
        assert_eq!(received[0].header("message-type"), "order.created");
        assert_eq!(self.engine.number("SELECT count(*) FROM orders").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_rust_publishes() {
    assert_eq!(block("rust,ignore"), include_str!("example.rs"), "what runs here is what the document shows");
    let Some(shop) = Shop::open().await else { return };
    let pool = sqlx::PgPool::connect(&shop.url).await.unwrap();
    example::order(&pool, 42).await.unwrap();
    assert!(example::order(&pool, 42).await.is_err(), "there is one order of a number");
    pool.close().await;
    shop.told_of_the_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_python_publishes() {
    const TWICE: &str = r#"
order(42)
try:
    order(42)
except psycopg.errors.UniqueViolation:
    print("refused")
"#;
    let python = tools().join("python/bin/python");
    let has_driver = |python: &Path| {
        Command::new(python)
            .args(["-c", "import psycopg"])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !has_driver(&python) {
        missing::<()>("psycopg");
        return;
    }
    let Some(shop) = Shop::open().await else { return };
    let script = run::fresh_dir("python").join("order.py");
    std::fs::write(&script, block("python") + TWICE).unwrap();
    let mut program = Command::new(python);
    program.arg(&script);
    shop.runs(program).await;
    shop.told_of_the_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_typescript_publishes() {
    const TWICE: &str = r#"
import { createRequire } from "node:module";
const { Client: Connection } = createRequire(process.env.TOOLS + "/node_modules/")("pg");
const client = new Connection({ connectionString: process.env.DATABASE_URL });
await client.connect();
await order(client, 42);
await order(client, 42).catch((error: { code: string }) => {
  if (error.code !== "23505") throw error;
  console.log("refused");
});
await client.end();
"#;
    let Some(node) = daemon::find("node", &[]).or_else(|| missing("node")) else { return };
    let (esbuild, driver) =
        (tools().join("node_modules/esbuild/bin/esbuild"), tools().join("node_modules/pg"));
    if !esbuild.exists() || !driver.exists() {
        missing::<()>("esbuild and pg");
        return;
    }
    let Some(shop) = Shop::open().await else { return };
    let dir = run::fresh_dir("typescript");
    let (written, script) = (dir.join("order.ts"), dir.join("order.mjs"));
    std::fs::write(&written, block("typescript") + TWICE).unwrap();
    // A program, or a script that node runs, as its installation went.
    let path = format!(
        "{}:{}",
        node.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let stripped = Command::new(&esbuild)
        .env("PATH", path)
        .arg(&written)
        .args(["--target=node20", "--format=esm"])
        .arg(format!("--outfile={}", script.display()))
        .output()
        .expect("run esbuild");
    assert!(stripped.status.success(), "{}", String::from_utf8_lossy(&stripped.stderr));
    let mut program = Command::new(&node);
    program.arg(&script).env("TOOLS", tools());
    shop.runs(program).await;
    shop.told_of_the_order().await;
}
