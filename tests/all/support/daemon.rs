//! A server process: started in a group of its own and registered with the run's guard.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::run;

/// Who may be left behind when the handle goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Killed when the handle is dropped.
    Handle,
    /// Lives until the run ends: other tests use it.
    Run,
}

#[derive(Debug)]
pub struct Daemon {
    child: Child,
    life: Life,
}

impl Daemon {
    /// Starts `command`, its output appended to `log`.
    pub fn start(command: Command, log: &Path, life: Life) -> Self {
        Self::start_split(command, log, log, life)
    }

    /// Starts `command`, its standard output and standard error appended to a file each.
    pub fn start_split(mut command: Command, stdout: &Path, stderr: &Path, life: Life) -> Self {
        let append =
            |path: &Path| File::options().create(true).append(true).open(path).expect("open the log");
        let (out, err) = (append(stdout), append(stderr));
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        run::register(child.id());
        Self { child, life }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal (`TERM`, `KILL`, `STOP`, …) to the process, or to it and its children.
    pub fn signal(&self, signal: &str, scope: Scope) {
        let mut pids = vec![self.pid()];
        if scope == Scope::WithChildren {
            pids.extend(children(self.pid()));
        }
        send(signal, &pids);
    }

    /// Waits for its end; panics after `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the server") {
                run::unregister(self.pid());
                return status;
            }
            assert!(started.elapsed() < deadline, "process {} did not end within {deadline:?}", self.pid());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Process,
    WithChildren,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.life == Life::Handle && self.alive() {
            self.signal("KILL", Scope::WithChildren);
            let _ = self.child.wait();
            run::unregister(self.pid());
        }
    }
}

/// Sends a signal to processes that this test started; those that are gone are no matter.
pub fn send(signal: &str, pids: &[u32]) {
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .args(pids.iter().map(ToString::to_string))
        .stderr(Stdio::null())
        .status();
}

fn children(pid: u32) -> Vec<u32> {
    let output =
        Command::new("ps").args(["-o", "pid=", "--ppid", &pid.to_string()]).output().expect("run ps");
    String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A command that runs as `user` when we are root, who may not run everything.
pub fn as_user(user: Option<&str>, program: &Path) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command
        .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"])
        .arg(program);
    command
}

/// Whether this process is root.
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("run id");
    output.stdout.trim_ascii() == b"0"
}

/// Where a program is, among `folders` and the `PATH`.
pub fn find(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}
