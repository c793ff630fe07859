//! `oncegate health`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use super::{Source, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ask whether it can do its work (/readyz) instead of whether it runs (/healthz)
    #[arg(long)]
    ready: bool,
}

const PATIENCE: Duration = Duration::from_secs(4);

pub(super) async fn run(args: Args, source: &Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let (status, text) = ask(config.server.listen, path).await?;
    if status == 200 {
        return print("ok\n");
    }
    anyhow::bail!("{path} answered {status}: {text}")
}

/// What the gateway that listens there answers.
pub(super) async fn ask(listen: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let address = reached_at(listen);
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
    let answer = client.get(format!("http://{address}{path}")).send().await;
    let answer = answer.with_context(|| format!("nobody answers on {address}"))?;
    Ok((answer.status().as_u16(), answer.text().await.unwrap_or_default()))
}

/// Who listens on every address is reached on loopback.
fn reached_at(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
