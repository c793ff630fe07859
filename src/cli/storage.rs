//! `oncegate storage`

mod flush;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;

use super::{Refusal, Source, chosen, print};
use crate::config::Config;
use crate::domain::Clock;
use crate::{server, store, telemetry};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Bring the schemas of the stores up to date
    #[command(
        after_help = "May be run while the gateway runs, and by many at once. Prints what was applied. A store that fails \
                            holds up no other; the exit status is 1 then.\n\n\
                            Examples:\n  oncegate storage migrate\n  oncegate storage migrate --print | psql oncegate"
    )]
    Migrate {
        /// Print the SQL of every migration instead, in order, for those who migrate by hand. Connects to nothing.
        #[arg(long)]
        print: bool,
        /// Only this store; without it, all
        #[arg(long, value_name = "NAME")]
        store: Option<String>,
    },
    /// Make one durability pass: accept what came by the intake, make due deliveries, purge what expired
    #[command(
        after_help = "In the durability mode `serverless-with-outbox`, for whoever calls it by the clock. May be run while \
                            the gateway runs, and by many at once: a store that another pass works on is skipped. Exit \
                            status: 0 no step failed, 1 a step failed, 2 refused (configuration, mode).\n\n\
                            Example:\n  oncegate storage flush --max-duration 30 --batch-size 500"
    )]
    Flush(flush::Args),
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
        /// The store, which has to be the tenant's; without it, that one
        #[arg(long, value_name = "NAME")]
        store: Option<String>,
    },
}

pub(super) async fn run(command: Command, source: &Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    match command {
        Command::Migrate { print: true, store } => {
            print_migrations(&chosen(&config, store.as_deref())?, &config)
        }
        Command::Migrate { print: false, store } => {
            migrate(&chosen(&config, store.as_deref())?, &config).await
        }
        Command::Flush(args) => flush::run(&args, &config).await,
        Command::Grant { role, tenant, store } => grant(&role, &tenant, store.as_deref(), &config).await,
    }
}

fn print_migrations(names: &[String], config: &Config) -> anyhow::Result<ExitCode> {
    let [name] = names else {
        let text =
            format!("--print prints the schema of one store: add --store with one of {}", names.join(", "));
        return Err(Refusal(text).into());
    };
    let mut text = String::new();
    for (name, sql) in store::migration_sql(&config.store(name).url.expose())? {
        text.push_str(&format!("-- {name}\n{}\n\n", sql.trim_end()));
    }
    print(&text)
}

async fn migrate(names: &[String], config: &Config) -> anyhow::Result<ExitCode> {
    telemetry::init_logs(config.telemetry.log_format, &config.telemetry.log_level)
        .map_err(|error| anyhow::anyhow!("telemetry.log_level: {error}"))?;
    let (mut said, mut failure) = (String::new(), None);
    for name in names {
        // Which store it is about, where there are several.
        let before = if config.stores.len() > 1 { format!("{name}: ") } else { String::new() };
        match migrate_one(name, config).await {
            Ok(applied) if applied.is_empty() => said.push_str(&format!("{before}up to date\n")),
            Ok(applied) => {
                for migration in applied {
                    said.push_str(&format!("{before}applied {migration}\n"));
                }
            }
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    super::failed(&earlier);
                }
            }
        }
    }
    print(&said)?;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

async fn migrate_one(name: &str, config: &Config) -> anyhow::Result<Vec<String>> {
    let store = server::stores::connect(config, name, &Clock::system()).await?;
    let applied = store.migrate().await;
    store.close().await;
    applied.with_context(|| format!("stores.{name}: the schema could not be brought up to date"))
}

async fn grant(role: &str, tenant: &str, store: Option<&str>, config: &Config) -> anyhow::Result<ExitCode> {
    let name = config.store_of(tenant);
    if let [asked] = chosen(config, store)?.as_slice()
        && asked != name
    {
        let whose = if tenant.is_empty() { "without a tenant".to_owned() } else { format!("of `{tenant}`") };
        return Err(Refusal(format!(
            "--store: messages {whose} are in the store `{name}`, not in `{asked}`"
        ))
        .into());
    }
    let store = server::stores::connect(config, name, &Clock::system()).await?;
    let granted = store.grant_publisher(role, tenant).await;
    store.close().await;
    granted.with_context(|| format!("the role {role} could not be granted anything"))?;
    let place = if config.stores.len() > 1 { format!(" in the store {name}") } else { String::new() };
    print(&format!("{role} may publish{place}\n"))
}
