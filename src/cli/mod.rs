//! The commands. Their arguments' doc comments are their `--help`.
//!
//! To add one: a file with its `Args` and a `run`, a variant of `Command`, and a line in `run`. Exit status: 0
//! for success, 1 for a failure, 2 for a refused configuration or wrong arguments.

mod config;
mod dead_letters;
mod doctor;
mod explain;
mod health;
pub mod listen;
mod serve;
mod storage;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, Errors, load, process_environment};

/// Refused: the configuration, or the arguments (that is clap's status too).
const REFUSED: u8 = 2;

/// An HTTP gateway for messages: nothing is lost, and the same work takes effect once.
#[derive(Debug, Parser)]
#[command(
    name = "oncegate",
    version,
    max_term_width = 100,
    after_help = "Without a command it serves. Without a configuration it listens on http://127.0.0.1:8080, keeps its \
                  store in ./oncegate-data and prints every message:\n\n  \
                  oncegate\n  \
                  curl -i localhost:8080/v1/publish/order.created --json '{\"order\":7}'"
)]
struct Cli {
    /// The configuration file. Without it: the one that ONCEGATE_CONFIG names, else ./oncegate.toml where that is
    /// there, else the defaults. ONCEGATE__SECTION__KEY in the environment goes over every value.
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or Ctrl-C
    #[command(
        after_help = "SIGTERM and Ctrl-C drain: no new requests, what has begun ends (`server.drain_timeout`). \
                            SIGHUP reads API keys and secrets again.\n\nExample:\n  oncegate serve --config oncegate.toml"
    )]
    Serve,
    /// Receive webhooks on this machine and print them
    #[command(
        after_help = "Example, with a destination whose `url` is \"http://127.0.0.1:9000\":\n  oncegate listen --port 9000"
    )]
    Listen(listen::Args),
    /// Look for what is wrong: the configuration, the stores, the destinations, the ports
    #[command(
        after_help = "Changes nothing, and may be run beside a running gateway. Exit status 1 where something keeps the \
                            gateway from its work.\n\nExample:\n  oncegate doctor --config oncegate.toml"
    )]
    Doctor,
    /// Ask the gateway on this machine whether it answers
    #[command(
        after_help = "For health checks where there is no curl. Asks the port of the configuration. Exit status 1 where it \
                            does not answer.\n\nExamples:\n  oncegate health\n  oncegate health --ready"
    )]
    Health(health::Args),
    /// Check the configuration, or print its schema or a commented example
    #[command(subcommand)]
    Config(config::Command),
    /// Explain what publishing a message would come to: which rule gives which deduplication id, where it would go,
    /// and whether its work is taken
    #[command(
        after_help = "Writes nothing and needs no running gateway; reads the configuration and the store.\n\nExample:\n  \
                      echo '{\"type\":\"order.created\",\"data\":{\"id\":7}}' | oncegate explain"
    )]
    Explain(explain::Args),
    /// Look after the stores
    #[command(subcommand)]
    Storage(storage::Command),
    /// Find, replay and discard what was given up on
    #[command(subcommand)]
    DeadLetters(dead_letters::Command),
}

/// Runs the command that this process's arguments name.
pub fn main() -> ExitCode {
    // One TLS implementation for all clients. Only fails where one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&anyhow::Error::new(error)),
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<Errors>() {
            Some(errors) => refused(errors),
            None if error.is::<Refusal>() => {
                failed(&error);
                ExitCode::from(REFUSED)
            }
            None => failed(&error),
        },
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let source = Source { path: cli.config };
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(source).await,
        Command::Listen(args) => listen::run(args).await.map(|()| ExitCode::SUCCESS),
        Command::Doctor => doctor::run(&source).await,
        Command::Health(args) => health::run(args, &source).await,
        Command::Config(command) => config::run(command, &source),
        Command::Explain(args) => explain::run(args, &source).await,
        Command::Storage(command) => storage::run(command, &source).await,
        Command::DeadLetters(command) => dead_letters::run(command, &source).await,
    }
}

/// Arguments that do not fit the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// The stores that `--store` chooses: all of them without it.
fn chosen(config: &Config, store: Option<&str>) -> Result<Vec<String>, Refusal> {
    let Some(name) = store else { return Ok(config.store_names().map(str::to_owned).collect()) };
    if config.store_names().any(|known| known == name) {
        return Ok(vec![name.to_owned()]);
    }
    let known: Vec<_> = config.store_names().collect();
    Err(Refusal(format!("--store: there is no store `{name}`; there are {}", known.join(", "))))
}

/// Where the configuration comes from.
#[derive(Clone, Debug)]
struct Source {
    path: Option<PathBuf>,
}

impl Source {
    /// Reads it as it is now.
    fn load(&self) -> Result<Config, Errors> {
        load(self.path.as_deref(), process_environment(), &config::Registries)
    }
}

fn refused(errors: &Errors) -> ExitCode {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{errors}");
    let _ = writeln!(stderr, "The configuration is refused. `oncegate config example` shows every key.");
    ExitCode::from(REFUSED)
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "oncegate: {error:#}");
    ExitCode::FAILURE
}

/// Writes a result to standard output. A reader that has gone away is no failure of ours.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_configuration_is_named_before_or_after_the_command() {
        for args in [
            &["oncegate", "--config", "x.toml"][..],
            &["oncegate", "--config", "x.toml", "serve"],
            &["oncegate", "serve", "--config", "x.toml"],
            &["oncegate", "config", "check", "--config=x.toml"],
            &["oncegate", "config", "--config=x.toml", "check"],
        ] {
            let cli = Cli::try_parse_from(args).unwrap();
            assert_eq!(cli.config.unwrap().to_str(), Some("x.toml"), "{args:?}");
        }
        assert!(Cli::try_parse_from(["oncegate"]).unwrap().command.is_none());
    }

    #[test]
    fn every_command_says_what_it_does() {
        fn walk(command: &clap::Command) {
            for inner in command.get_subcommands() {
                assert!(inner.get_about().is_some(), "{}", inner.get_name());
                let shows = inner.get_after_help().is_some_and(|help| help.to_string().contains("oncegate "));
                assert!(shows || inner.has_subcommands(), "{} has no example", inner.get_name());
                walk(inner);
            }
        }
        walk(&Cli::command());
    }
}
