//! `oncegate storage`

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;

use super::{Source, print};
use crate::store;
use crate::{server, telemetry};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Bring the schema of the store up to date
    #[command(
        after_help = "May be run while the gateway runs, and by many at once. Prints what was applied.\n\n\
                            Examples:\n  oncegate storage migrate\n  oncegate storage migrate --print | psql oncegate"
    )]
    Migrate {
        /// Print the SQL of every migration instead, in order, for those who migrate by hand. Connects to nothing.
        #[arg(long)]
        print: bool,
    },
    /// Let a role of the database publish in its own transactions, for one tenant
    #[command(
        after_help = "PostgreSQL. Gives the role what `oncegate_publisher` has, and remembers its tenant. Run it again \
                            to change the tenant.\n\nExample:\n  oncegate storage grant --role shop --tenant acme"
    )]
    Grant {
        /// The role that publishes: the one that logs in, or that SET ROLE names.
        #[arg(long)]
        role: String,
        /// The tenant of its messages; without it: none.
        #[arg(long, default_value = "")]
        tenant: String,
    },
}

pub(super) async fn run(command: Command, source: &Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    match command {
        Command::Migrate { print: true } => {
            let settings = config.stores.get("main").cloned().unwrap_or_default();
            let mut text = String::new();
            for (name, sql) in store::migration_sql(&settings.url.expose())? {
                text.push_str(&format!("-- {name}\n{}\n\n", sql.trim_end()));
            }
            print(&text)
        }
        Command::Grant { role, tenant } => {
            let store = server::connect(&config, &crate::domain::Clock::system()).await?;
            let granted = store.grant_publisher(&role, &tenant).await;
            store.close().await;
            granted.with_context(|| format!("the role {role} could not be granted anything"))?;
            print(&format!("{role} may publish\n"))
        }
        Command::Migrate { print: false } => {
            telemetry::init_logs(config.telemetry.log_format, &config.telemetry.log_level)
                .map_err(|error| anyhow::anyhow!("telemetry.log_level: {error}"))?;
            let store = server::connect(&config, &crate::domain::Clock::system()).await?;
            let applied =
                store.migrate().await.context("stores.main: the schema could not be brought up to date");
            store.close().await;
            let applied = applied?;
            if applied.is_empty() {
                return print("up to date\n");
            }
            print(&applied.iter().map(|name| format!("applied {name}\n")).collect::<String>())
        }
    }
}
