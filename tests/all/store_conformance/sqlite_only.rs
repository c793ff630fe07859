//! What only an embedded file promises: other processes share it, and it survives a hard stop.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oncegate::domain::Clock;
use oncegate::store::status::Readiness;
use oncegate::store::{self, ErrorKind, Options};
use sqlx::{Connection, SqliteConnection};

use super::backends;
use super::build::*;
use crate::support::{missing, run};

/// The environment variable that makes [`writes_until_it_is_killed`] a child process of its parent test.
const CHILD_URL: &str = "ONCEGATE_TEST_SQLITE_CHILD";

/// Runs SQL in another program; its output.
fn shell(url: &str, sql: &str) -> Option<String> {
    let path = url.strip_prefix("sqlite:").unwrap();
    let command = Command::new("sqlite3").args(["-cmd", ".timeout 5000", path, sql]).output();
    let Ok(output) = command else { return missing("sqlite3") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_program_reads_and_writes_while_the_gateway_runs() {
    let bench = backends::sqlite().await.unwrap();
    put(&bench.store, vec![message()]).await;
    if shell(&bench.url, "CREATE TABLE own (n INTEGER)").is_none() {
        return;
    }
    assert_eq!(shell(&bench.url, "PRAGMA journal_mode").unwrap(), "wal");
    let store = bench.store.clone();
    let writing = tokio::spawn(async move {
        for _ in 0..200 {
            put(&store, vec![message()]).await;
        }
    });
    for n in 1..=10 {
        let url = bench.url.clone();
        let rows = tokio::task::spawn_blocking(move || {
            shell(&url, "BEGIN IMMEDIATE; INSERT INTO own VALUES (1); COMMIT; SELECT count(*) FROM own")
                .unwrap()
        });
        assert_eq!(rows.await.unwrap(), n.to_string());
    }
    writing.await.unwrap();
    assert_eq!(shell(&bench.url, "SELECT count(*) FROM oncegate_deliveries").unwrap(), "201");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_lock_held_elsewhere_is_waited_for_and_then_unavailable() {
    let bench = backends::sqlite().await.unwrap();
    let patience = Duration::from_millis(400);
    let options = Options {
        busy_timeout: patience,
        acquire_timeout: patience,
        clock: Clock::system(),
        ..Options::default()
    };
    let store = store::open(&bench.url, &options).await.unwrap();
    let mut other = SqliteConnection::connect(&bench.url).await.unwrap();
    put(&store, vec![message()]).await;

    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let started = Instant::now();
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(
        started.elapsed() >= patience && started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    // Those who queue behind it wait no longer than it does.
    let started = Instant::now();
    let queued = (0..10).map(|_| async { accept(&store, request(vec![message()])).await });
    for outcome in futures::future::join_all(queued).await {
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::Unavailable);
    }
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // Reading goes on.
    assert_eq!(store.readiness().await.unwrap(), Readiness::Ready);
    assert_eq!(store.backlog().await.unwrap()[0].depth, 1);
    lock.rollback().await.unwrap();

    // What is held for less than that is waited for.
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let (accepted, ()) = tokio::join!(accept(&store, request(vec![message()])), async {
        tokio::time::sleep(patience / 4).await;
        lock.rollback().await.unwrap();
    });
    stored(accepted.unwrap());
    assert_eq!(bench.count("deliveries").await, 2);
    store.close().await;
    bench.end().await;
}

#[tokio::test]
async fn the_file_and_its_folder_are_made_and_are_nobody_elses() {
    let folder = run::fresh_dir("sqlite").join("a").join("b");
    let path = folder.join("store.db");
    let store = store::open(&format!("sqlite://{}", path.display()), &Options::default()).await.unwrap();
    put(&store, vec![message()]).await;
    for file in ["store.db", "store.db-wal", "store.db-shm"] {
        let mode = folder.join(file).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    store.close().await;
    // A file that was there keeps the mode that its owner gave it.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let store = store::open(&format!("sqlite:{}", path.display()), &Options::default()).await.unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(store.backlog().await.unwrap()[0].depth, 1);
    store.close().await;
}

#[tokio::test]
async fn what_is_no_database_is_corrupt_and_left_as_it_is() {
    let path = run::fresh_dir("sqlite").join("notes.txt");
    let text = "these are notes, not a database. ".repeat(100);
    std::fs::write(&path, &text).unwrap();
    let error = store::open(&format!("sqlite:{}", path.display()), &Options::default()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_unavailable() {
    let file = run::fresh_dir("sqlite").join("file");
    std::fs::write(&file, "").unwrap();
    let url = format!("sqlite:{}", file.join("store.db").display());
    let error = store::open(&url, &Options::default()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

/// wolverine#1683: answered, and not there after a crash.
#[tokio::test]
async fn what_was_answered_survives_a_hard_stop() {
    for _ in 0..3 {
        let url = format!("sqlite:{}", run::fresh_dir("sqlite").join("store.db").display());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store_conformance::sqlite_only::writes_until_it_is_killed",
                "--nocapture",
                "--ignored",
            ])
            .env(CHILD_URL, &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let answered: Vec<String> = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("answered ").map(|(_, id)| id.to_owned()))
            .take(40)
            .collect();
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(answered.len(), 40);
        let store = store::open(&url, &Options::default()).await.unwrap();
        for id in &answered {
            let status = store.message("", id).await.unwrap();
            assert_eq!(status.unwrap_or_else(|| panic!("{id} was answered and is gone")).targets.len(), 2);
        }
        put(&store, vec![message()]).await;
        store.close().await;
    }
}

#[tokio::test]
#[ignore = "the child process of the test above"]
async fn writes_until_it_is_killed() {
    let Ok(url) = std::env::var(CHILD_URL) else { return };
    let store = store::open(&url, &Options::default()).await.unwrap();
    loop {
        let message = to(message(), &["a", "b"].map(oncegate::domain::delivery::Target::destination));
        let id = message.message.id.clone();
        put(&store, vec![message]).await;
        println!("answered {id}");
    }
}
