//! `oncegate dead-letters`: what was given up on, for operators with the configuration at hand.
//!
//! Works on the tenant's store itself, whether or not the gateway runs; a node that runs finds what was
//! replayed within seconds. The rules are those of the API, and so are the documents that `--json` prints.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{Source, chosen, print};
use crate::auth::{Grant, Principal, Via};
use crate::gateway::Error;
use crate::gateway::dead_letters::{
    DeadLetter, DeadLetters, DiscardAnswer, DiscardRequest, Filter, Query, ReplayAnswer, ReplayRequest,
};
use crate::{server, telemetry};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List dead letters, the oldest first
    #[command(after_help = "Prints a table; with --json the document that GET /v1/dead-letters answers.\n\n\
                      Examples:\n  oncegate dead-letters list --destination orders\n  \
                      oncegate dead-letters list --error-kind Refused --json")]
    List {
        #[command(flatten)]
        which: Which,
        /// How many; 1,000 at most
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// The `nextCursor` of the page before
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Show one dead letter, with its message
    #[command(after_help = "Example:\n  oncegate dead-letters show 01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e")]
    Show {
        /// The dead letter's own id
        id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Move dead letters back to their targets
    #[command(
        after_help = "Exit status 1 where some of them had to stay; they are told on standard error.\n\n\
                      Examples:\n  oncegate dead-letters replay 01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e\n  \
                      oncegate dead-letters replay --destination orders --error-kind AttemptsExhausted\n  \
                      oncegate dead-letters replay --all"
    )]
    Replay {
        #[command(flatten)]
        chosen: Chosen,
        /// Also those whose work another message has claimed meanwhile
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Delete dead letters
    #[command(
        after_help = "Examples:\n  oncegate dead-letters discard 01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e\n  \
                      oncegate dead-letters discard --type order.created --until 2026-01-31T00:00:00Z"
    )]
    Discard {
        #[command(flatten)]
        chosen: Chosen,
        /// Leave the deduplication ids of their messages taken: the same work published again is a duplicate
        #[arg(long)]
        keep_deduplication: bool,
        #[command(flatten)]
        common: Common,
    },
}

/// All that are given must hold.
#[derive(Args, Clone, Debug)]
pub(super) struct Which {
    /// Of messages of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// For this destination
    #[arg(long, value_name = "NAME", conflicts_with = "handler")]
    destination: Option<String>,
    /// For this handler
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Given up on for this reason
    #[arg(long, value_name = "KIND")]
    error_kind: Option<String>,
    /// Given up on at this moment or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Given up on before this moment (RFC 3339)
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

/// By id, by what they are, or all: never all because nothing was said.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = true, id = "chosen",
        args = ["ids", "all", "kind", "destination", "handler", "error_kind", "from", "until"])]
pub(super) struct Chosen {
    /// Their own ids
    #[arg(value_name = "ID", conflicts_with_all = ["all", "kind", "destination", "handler", "error_kind", "from", "until"])]
    ids: Vec<String>,
    /// All there are
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Clone, Debug)]
pub(super) struct Common {
    /// Those of this tenant; without it, those of messages without a tenant
    #[arg(long, value_name = "TENANT", default_value = "", hide_default_value = true)]
    tenant: String,
    /// In this store, whatever the tenant; without it, in the store of the tenant
    #[arg(long, value_name = "NAME")]
    store: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Command {
    fn common(&self) -> &Common {
        match self {
            Self::List { common, .. }
            | Self::Show { common, .. }
            | Self::Replay { common, .. }
            | Self::Discard { common, .. } => common,
        }
    }
}

pub(super) async fn run(command: Command, source: &Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    telemetry::init_logs(config.telemetry.log_format, &config.telemetry.log_level)
        .map_err(|error| anyhow::anyhow!("telemetry.log_level: {error}"))?;
    let common = command.common();
    let name = match &common.store {
        Some(name) => chosen(&config, Some(name))?.remove(0),
        None => config.store_of(&common.tenant).to_owned(),
    };
    let store = server::stores::connect(&config, &name, &crate::domain::Clock::system()).await?;
    let letters = DeadLetters::apart(store.clone(), server::targets(&config), server::field_limits(&config));
    let done = match command {
        Command::List { which, limit, cursor, common } => list(&letters, which, limit, cursor, &common).await,
        Command::Show { id, common } => show(&letters, &id, &common).await,
        Command::Replay { chosen, force, common } => replay(&letters, chosen, force, &common).await,
        Command::Discard { chosen, keep_deduplication, common } => {
            discard(&letters, chosen, !keep_deduplication, &common).await
        }
    };
    store.close().await;
    done
}

/// Whoever reads the configuration may do what it says; the log names the command line.
fn operator(common: &Common) -> Principal {
    Principal {
        name: "command line".into(),
        tenant: common.tenant.clone(),
        grants: vec![Grant::Operate],
        via: Via::Nothing,
    }
}

async fn list(
    letters: &DeadLetters<'_>,
    which: Which,
    limit: u32,
    cursor: Option<String>,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let query = Query { filter: which.into(), limit: Some(limit), cursor };
    let page = letters.list(&operator(common), query).await.map_err(told)?;
    if common.json {
        return json(&page);
    }
    let mut text = table(&page.items);
    if let Some(cursor) = page.next_cursor {
        let _ = writeln!(text, "More: --cursor {cursor}");
    }
    print(&text)
}

/// Columns as wide as what stands in them; the last one as long as it is.
fn table(items: &[DeadLetter]) -> String {
    if items.is_empty() {
        return "No dead letters.\n".to_owned();
    }
    let mut rows = vec![["ID", "FAILED", "TYPE", "TARGET", "ERROR", "ATTEMPTS", "TEXT"].map(str::to_owned)];
    for item in items {
        rows.push([
            item.id.clone(),
            item.failed_at.format("%Y-%m-%d %H:%M:%S").to_string(),
            shown(&item.r#type),
            shown(item.destination.as_ref().or(item.handler.as_ref()).map_or("", String::as_str)),
            item.error_kind.clone(),
            item.attempts.to_string(),
            shown(&item.error_text).chars().take(100).collect(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What others wrote, without what a terminal would obey.
fn shown(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

async fn show(letters: &DeadLetters<'_>, id: &str, common: &Common) -> anyhow::Result<ExitCode> {
    let one = letters.get(&operator(common), id).await.map_err(told)?;
    if common.json {
        return json(&one);
    }
    let serde_json::Value::Object(members) = serde_json::to_value(&one)? else {
        anyhow::bail!("a dead letter is an object");
    };
    let width = members.keys().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in members {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = writeln!(text, "{name:width$}  {}", shown(&value));
    }
    print(&text)
}

async fn replay(
    letters: &DeadLetters<'_>,
    chosen: Chosen,
    force: bool,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let (ids, filter) = chosen.split();
    let mut total = ReplayAnswer::default();
    loop {
        let request = ReplayRequest { ids: ids.clone(), filter: filter.clone(), force };
        let done = letters.replay(&operator(common), request).await.map_err(told)?;
        total = ReplayAnswer { replayed: total.replayed + done.replayed, ..done };
        if done.replayed == 0 || total.remaining == 0 {
            break;
        }
    }
    for left in &total.errors {
        eprint_line(&format!("{}: {}", left.id, left.detail));
    }
    if common.json {
        json(&total)?;
    } else {
        print(&format!("{} replayed\n", total.replayed))?;
    }
    let complete = total.errors.is_empty() && total.remaining == 0;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn discard(
    letters: &DeadLetters<'_>,
    chosen: Chosen,
    release: bool,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let (ids, filter) = chosen.split();
    let mut total = DiscardAnswer::default();
    loop {
        let request =
            DiscardRequest { ids: ids.clone(), filter: filter.clone(), release_deduplication: Some(release) };
        let done = letters.discard(&operator(common), request).await.map_err(told)?;
        total = DiscardAnswer { discarded: total.discarded + done.discarded, ..done };
        if done.discarded == 0 || total.remaining == 0 {
            break;
        }
    }
    if common.json {
        return json(&total);
    }
    print(&format!("{} discarded\n", total.discarded))
}

impl Chosen {
    fn split(self) -> (Option<Vec<String>>, Option<Filter>) {
        if self.ids.is_empty() { (None, Some(self.which.into())) } else { (Some(self.ids), None) }
    }
}

impl From<Which> for Filter {
    fn from(which: Which) -> Self {
        Self {
            r#type: which.kind,
            destination: which.destination,
            handler: which.handler,
            error_kind: which.error_kind,
            from: which.from,
            until: which.until,
        }
    }
}

/// A use case's error, for people.
fn told(error: Error) -> anyhow::Error {
    match error {
        Error::Malformed { detail, .. }
        | Error::NotFound { detail }
        | Error::StoreUnavailable { detail, .. } => anyhow::anyhow!(detail),
        other => other.into(),
    }
}

fn json<T: Serialize>(document: &T) -> anyhow::Result<ExitCode> {
    print(&format!("{}\n", serde_json::to_string(document)?))
}

fn eprint_line(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
