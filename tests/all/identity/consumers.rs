//! The consumers of `docs/consumers.md`, as they stand there, against the real server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::bench::{Bench, Engine, SHOP, tell};
use crate::support::{daemon, missing, run};

/// The first block of this language in the document.
fn example(language: &str) -> String {
    let document = include_str!("../../../docs/consumers.md");
    let (_, rest) = document.split_once(&format!("```{language}\n")).expect("an example");
    rest.split_once("\n```").expect("its end").0.to_owned() + "\n"
}

/// What both are asked to do: a message twice, one whose work fails once, one that is held elsewhere.
async fn consumes(bench: &Bench, program: Command) {
    let held = json!({"scope": "billing", "id": "held", "lease": "1h"});
    tell(bench.send("/v1/claims", &held)).await.is(201);
    let mut program = program;
    program.env("ONCEGATE_URL", bench.gateway.url("")).env("ONCEGATE_KEY", SHOP);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        program.env_remove(name);
    }
    let output: Output =
        tokio::task::spawn_blocking(move || program.output().expect("run the consumer")).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&output.stdout)));
    assert_eq!(
        said,
        json!({"acknowledged": [true, true, false, true, false, true], "done": ["a", "b", "m"]})
    );
    for (id, state) in [("w", "confirmed"), ("f", "confirmed"), ("m", "confirmed"), ("held", "claimed")] {
        let url = bench.gateway.url(&format!("/v1/claims?scope=billing&id={id}"));
        let told = tell(bench.gateway.client().get(url).bearer_auth(SHOP)).await.is(200).json();
        assert_eq!(told["state"], state, "{id}");
    }
}

const PYTHON: &str = r#"
done, failed = [], []

def work(body):
    if body == "b" and not failed:
        failed.append(body)
        raise RuntimeError("once")
    done.append(body)

messages = [
    ({"id": "m1", "deduplication-id": "w"}, "a"), ({"id": "m2", "deduplication-id": "w"}, "a"),
    ({"id": "m3", "deduplication-id": "f"}, "b"), ({"id": "m3", "deduplication-id": "f"}, "b"),
    ({"id": "m4", "deduplication-id": "held"}, "c"), ({"id": "m"}, "m"),
]
print(json.dumps({"acknowledged": [process(headers, body, work) for headers, body in messages], "done": done}))
"#;

const TYPESCRIPT: &str = r#"
const done: string[] = [];
let failed = false;
async function work(body: string): Promise<void> {
  if (body === "b" && !failed) {
    failed = true;
    throw new Error("once");
  }
  done.push(body);
}
const messages: [Record<string, string>, string][] = [
  [{ id: "m1", "deduplication-id": "w" }, "a"], [{ id: "m2", "deduplication-id": "w" }, "a"],
  [{ id: "m3", "deduplication-id": "f" }, "b"], [{ id: "m3", "deduplication-id": "f" }, "b"],
  [{ id: "m4", "deduplication-id": "held" }, "c"], [{ id: "m" }, "m"],
];
const acknowledged: boolean[] = [];
for (const [headers, body] of messages) acknowledged.push(await handle(headers, body, work));
console.log(JSON.stringify({ acknowledged, done }));
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_in_python_does_its_work_once() {
    let Some(python) = daemon::find("python3", &[]).or_else(|| missing("python3")) else { return };
    let script = run::fresh_dir("python").join("consumer.py");
    fs::write(&script, example("python") + PYTHON).unwrap();
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let Some(bench) = Bench::on(engine).await else { continue };
        let mut program = Command::new(&python);
        program.arg(&script);
        consumes(&bench, program).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_in_typescript_does_its_work_once() {
    let Some(node) = daemon::find("node", &[]).or_else(|| missing("node")) else { return };
    let dir = run::fresh_dir("typescript");
    let (written, script) = (dir.join("consumer.ts"), dir.join("consumer.mjs"));
    fs::write(&written, example("typescript") + TYPESCRIPT).unwrap();
    if !strip_types(&node, &written, &script) {
        return;
    }
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let Some(bench) = Bench::on(engine).await else { continue };
        let mut program = Command::new(&node);
        program.arg(&script);
        consumes(&bench, program).await;
    }
}

/// Makes JavaScript of it. `scripts/test` installs what does.
fn strip_types(node: &Path, from: &Path, to: &Path) -> bool {
    let esbuild =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools/node_modules/esbuild/bin/esbuild");
    if !esbuild.exists() {
        return missing::<()>("esbuild").is_some();
    }
    // A program, or a script that node runs, as its installation went.
    let output = Command::new(&esbuild)
        .env(
            "PATH",
            format!(
                "{}:{}",
                node.parent().expect("a folder").display(),
                std::env::var("PATH").unwrap_or_default()
            ),
        )
        .arg(from)
        .arg("--target=node20")
        .arg("--format=esm")
        .arg(format!("--outfile={}", to.display()))
        .output()
        .expect("run esbuild");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}
