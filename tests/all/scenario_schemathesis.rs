//! The API against its own document: schemathesis makes requests from it, valid and invalid ones, and checks
//! that every answer is one that the document tells of. `tests/schemathesis/` says what a schema cannot.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::gateway::Gateway;
use crate::support::missing;

const CONFIG: &str = r#"
[auth.keys.all]
secrets = ["all-0123456789abcdef"]
grants = ["publish:*", "publish:*@*", "operate", "claim:*"]

[destinations.out]
transport = "stdout"

[[routes]]
types = ["*"]
destinations = ["out"]
"#;

/// Where `scripts/test` installs it; elsewhere the environment says.
fn program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = root.join("target/tools/bin/st");
    let program = std::env::var_os("ONCEGATE_SCHEMATHESIS").map_or(installed, PathBuf::from);
    if program.exists() { Some(program) } else { missing("schemathesis") }
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_every_answer_is_one_that_the_document_tells_of() {
    let Some(program) = program() else { return };
    let gateway = Gateway::start(CONFIG).await;
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis");
    let mut command = Command::new(program);
    command
        .current_dir(gateway.dir())
        .env("PYTHONPATH", &settings)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .arg("--config-file")
        .arg(settings.join("schemathesis.toml"))
        .args(["run", &gateway.url("/openapi.json"), "--checks", "all"])
        .args(["--header", "Authorization: Bearer all-0123456789abcdef"]);
    let output = tokio::task::spawn_blocking(move || command.output().expect("run schemathesis"));
    let output = output.await.expect("schemathesis ends");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    // That it tested anything: what it only warns of (a message that is not there) is no failure.
    assert!(told.contains(" passed, "), "{told}");
}
