//! `oncegate explain`: what publishing a message would come to, from the configuration and the store alone.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use bytes::Bytes;

use super::{Source, print};
use crate::auth::Principal;
use crate::domain::{Clock, Random, native};
use crate::gateway::explain::{Explanation, explain};
use crate::{server, store};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The message in the native form, as for POST /v1/publish. `-`, or nothing: standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Explain it as if a principal of this tenant published it
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Print the document that POST /v1/explain answers
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, source: &Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    let body = read(args.file.as_deref())?;
    let clock = Clock::system();
    let draft = native::one(&body, &server::field_limits(&config), clock.now())
        .map_err(|error| anyhow::anyhow!("the message cannot be read: {error}"))?;
    let preparer = server::preparer(&config, Random)?;
    let name = config.store_of(&args.tenant);
    // Opening an embedded store would make its file. Where there is none, nothing is taken.
    let store = match store::embedded_file(&config.store(name).url.expose()) {
        Some(file) if !file.exists() => None,
        _ => Some(server::stores::connect(&config, name, &clock).await?),
    };
    let principal = Principal { tenant: args.tenant, ..Principal::anonymous() };
    let told = explain(&preparer, store.as_ref(), &principal, &draft).await;
    if let Some(store) = store {
        store.close().await;
    }
    let told = told?;
    if args.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&told)?));
    }
    print(&in_words(&told))
}

fn read(file: Option<&std::path::Path>) -> anyhow::Result<Bytes> {
    match file {
        Some(path) if path.as_os_str() != "-" => {
            Ok(std::fs::read(path).with_context(|| path.display().to_string())?.into())
        }
        _ => {
            let mut body = Vec::new();
            std::io::stdin().read_to_end(&mut body).context("standard input")?;
            Ok(body.into())
        }
    }
}

fn in_words(told: &Explanation) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<18}{value}\n"));
    if let (Some(id), Some(source)) = (&told.deduplication_id, &told.deduplication_source) {
        line("deduplication id", id);
        match told.rule {
            Some(rule) => line("given by", &format!("deduplication.rules[{rule}]")),
            None => line("given by", source),
        }
    }
    line("destinations", &told.destinations.join(", "));
    line("handlers", &told.handlers.join(", "));
    if let Some(claim) = &told.claim {
        line("claim", &claim.state);
        line("claimed by", claim.message_id.as_deref().unwrap_or("another tenant's message"));
        line("since", &claim.first_seen_at.to_rfc3339());
        line("until", &claim.expires_at.to_rfc3339());
    }
    for note in &told.notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}
