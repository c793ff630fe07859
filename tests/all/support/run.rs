//! The folder of a test run, its guard and its ports.
//!
//! nextest runs every test in a process of its own, so what a run shares lives in files: a folder named
//! after the run, with a lock. Whoever makes the folder also starts its *guard*, a small shell script that
//! waits for the run to end (however it ends), kills every server that is still registered in the folder,
//! and removes it.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

const GUARD: &str = r#"
watched=$1; dir=$2
while kill -0 "$watched" 2>/dev/null; do sleep 1; done
for signal in QUIT KILL; do
    for file in "$dir"/pids/*; do
        [ -e "$file" ] && kill -"$signal" -"$(basename "$file")" 2>/dev/null
    done
    sleep 1
done
rm -rf "$dir"
"#;

/// The folder of this run.
#[expect(clippy::zombie_processes, reason = "the guard outlives us; that is what it is for")]
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        // Under nextest the run is the runner's process, our parent; under `cargo test` it is this process.
        let (name, watched) = match std::env::var("NEXTEST_RUN_ID") {
            Ok(id) => (id, std::os::unix::process::parent_id()),
            Err(_) => (format!("pid-{}", std::process::id()), std::process::id()),
        };
        let dir = std::env::temp_dir().join(format!("oncegate-tests-{name}"));
        make_dir(&dir.join("pids"));
        // Servers may run as another user, who has to get through.
        open_to_all(&dir);
        let _lock = lock(&dir.join("lock"));
        let marker = dir.join("guarded");
        if !marker.exists() {
            Command::new("sh")
                .args(["-c", GUARD, "oncegate-test-guard", &watched.to_string()])
                .arg(&dir)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .expect("start the guard of the test run");
            fs::write(&marker, "").expect("mark the run as guarded");
        }
        dir
    })
}

/// A folder of its own for one server or one gateway, below the run's.
pub fn fresh_dir(label: &str) -> PathBuf {
    let path = dir().join(unique(label));
    make_dir(&path);
    open_to_all(&path);
    path
}

/// A name that no other process or call of this run uses; fit for a database, a queue or a file.
///
/// Each is noted in the run's folder: in a long run a process may get the number of one that has ended.
pub fn unique(label: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let taken = dir().join("names");
    make_dir(&taken);
    loop {
        let name = format!("{label}_{}_{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        match File::create_new(taken.join(&name)) {
            Ok(_) => return name,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{name}: {error}"),
        }
    }
}

/// Locks a file until the returned handle is dropped.
pub fn lock(path: &Path) -> File {
    let file = File::options().create(true).append(true).open(path).expect("open the lock file");
    file.lock().expect("lock the file");
    file
}

/// A free TCP port that stays this process's until it ends.
///
/// Below the range of outgoing connections: a client that tries again and again to reach a stopped server on
/// one of those would at some time be connected to itself, and keep the server from coming back.
pub fn free_port() -> u16 {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let ports = std::env::temp_dir().join("oncegate-test-ports");
    make_dir(&ports);
    let first = std::process::id() % 10_000;
    for step in 0..10_000 {
        let port = 20_000 + u16::try_from((first + step) % 10_000).expect("below ten thousand");
        let Ok(file) = File::options().create(true).append(true).open(ports.join(port.to_string())) else {
            continue;
        };
        if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            HELD.lock().expect("the list of ports").push(file);
            return port;
        }
    }
    panic!("no free port between 20000 and 30000");
}

/// Registers a process group with the guard.
pub fn register(pid: u32) {
    fs::write(dir().join("pids").join(pid.to_string()), "").expect("register the server with the guard");
}

/// Takes it off again.
pub fn unregister(pid: u32) {
    let _ = fs::remove_file(dir().join("pids").join(pid.to_string()));
}

fn make_dir(path: &Path) {
    fs::create_dir_all(path).expect("make a temporary folder");
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("open the temporary folder");
}
