//! `oncegate storage flush`: one durability pass.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::{Refusal, print};
use crate::config::Config;
use crate::config::durability::Mode;
use crate::domain::duration;
use crate::durability::Report;
use crate::gateway::pass::Bounds;
use crate::{server, telemetry};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long it goes on: seconds, or a duration such as 30s. More than the cap is lowered to it
    #[arg(long, value_name = "S", value_parser = max_duration)]
    max_duration: Option<Duration>,
    /// Rows per step and store. More than the cap is lowered to it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn max_duration(text: &str) -> Result<Duration, String> {
    let read = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => duration::parse(text)?,
    };
    if read.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(read) }
}

pub(super) async fn run(args: &Args, config: &Config) -> anyhow::Result<ExitCode> {
    telemetry::init_logs(config.telemetry.log_format, &config.telemetry.log_level)
        .map_err(|error| anyhow::anyhow!("telemetry.log_level: {error}"))?;
    let mode = config.durability.mode;
    if mode != Mode::ServerlessWithOutbox {
        return Err(Refusal(format!(
            "durability.mode is \"{}\": durability passes are made in \"serverless-with-outbox\" only",
            mode.as_str()
        ))
        .into());
    }
    let bounds = Bounds { max_duration: args.max_duration, batch_size: args.batch_size };
    let report = server::flush(config, bounds).await?;
    let text =
        if args.json { format!("{}\n", serde_json::to_string_pretty(&report)?) } else { table(&report) };
    print(&text)?;
    Ok(if report.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For people.
fn table(report: &Report) -> String {
    let mut rows = vec![["STORE", "STEP", "OUTCOME", "ROWS", "MORE"].map(str::to_owned)];
    for store in &report.stores {
        for step in &store.steps {
            let outcome = match &step.error_kind {
                Some(kind) => format!("{} ({kind})", step.outcome.as_str()),
                None => step.outcome.as_str().to_owned(),
            };
            let more = if step.more_work { "yes" } else { "no" };
            rows.push([
                store.store.clone(),
                step.step.as_str().to_owned(),
                outcome,
                step.count.to_string(),
                more.to_owned(),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(
        text,
        "\noutgoing: {} sent, {} failed, {} dead letters\nincoming: {} handled, {} failed, {} dead letters\n\
         scheduled and done: {}\npurged: {} handled, {} dead letters, {} claims",
        report.outgoing_sent,
        report.outgoing_failed,
        report.outgoing_dead_lettered,
        report.incoming_handled,
        report.incoming_failed,
        report.incoming_dead_lettered,
        report.scheduled_released,
        report.purged.handled,
        report.purged.dead_letters,
        report.purged.deduplications,
    );
    let seconds = Duration::from_millis(report.duration_ms).as_secs_f64();
    let cut = if report.timed_out { ", the time was up" } else { "" };
    let _ = writeln!(text, "took {seconds:.1} s{cut}");
    if !report.skipped_stores.is_empty() {
        let names = report.skipped_stores.join(", ");
        let _ = writeln!(text, "skipped, because another pass is at work: {names}");
    }
    let _ = match (report.has_more_work, report.next_due_at) {
        (true, _) => writeln!(text, "there is more to do now: run it again"),
        (false, Some(at)) => {
            writeln!(text, "next due at {}", at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
        }
        (false, None) => writeln!(text, "nothing is left to deliver"),
    };
    text
}
