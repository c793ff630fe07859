//! The guard against requests that a caller could make the gateway send into its own network.
//!
//! An HTTP address of a third party's (a webhook, a key set, a subscription's confirmation) may lead only to
//! addresses that the public internet reaches, unless the operator says otherwise ([`Reach::Any`]). What counts
//! is the address that is *dialled*: [`Client`] checks what a name resolves to at the moment of connecting, and
//! the host itself where it is an address already, in whatever spelling. Redirects are never followed.
//!
//! A proxy of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`, as `curl` reads them) is
//! the operator's own and may be anywhere; it opens no door. The host that is asked for through it is resolved
//! here and checked as if it were dialled, and a name that does not resolve here is refused. The proxy resolves
//! the name once more, so where names cannot be trusted between the two, the proxy has to filter as well.

mod client;
mod ranges;

use std::net::IpAddr;

use url::{Host, Url};

pub use client::{Client, Proxies, describe, limited};
pub use ranges::is_public;

/// Where requests may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// To addresses that the public internet reaches.
    #[default]
    Public,
    /// Anywhere: the operator vouches for the address.
    Any,
}

/// An address that the guard does not let through. The texts are for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("`{0}` is no scheme for this: use `https` (or `http`)")]
    Scheme(String),
    #[error("the address has no host")]
    NoHost,
    #[error("`{0}` is a private address")]
    Literal(String),
    #[error("`{0}` resolves to private addresses only ({1})")]
    Resolved(String, IpAddr),
    #[error("`{0}` does not resolve")]
    Unresolved(String),
}

/// What can be said of `url` without asking a resolver: its scheme, and its host where that is an address or
/// `localhost`. The URL's parser has brought every spelling of an address (decimal, octal, hexadecimal,
/// shortened) into its canonical form.
///
/// # Errors
/// Why requests may not go there.
pub fn check_url(url: &Url, reach: Reach) -> Result<(), Refused> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Refused::Scheme(url.scheme().to_owned()));
    }
    let host = url.host().ok_or(Refused::NoHost)?;
    let public = match host {
        Host::Ipv4(ip) => is_public(IpAddr::V4(ip)),
        Host::Ipv6(ip) => is_public(IpAddr::V6(ip)),
        Host::Domain(name) => !is_localhost(name),
    };
    if public || reach == Reach::Any { Ok(()) } else { Err(Refused::Literal(host.to_string())) }
}

/// RFC 6761, 6.3: these names are the machine's own whatever a resolver says.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str) -> Result<(), Refused> {
        check_url(&Url::parse(url).unwrap(), Reach::Public)
    }

    #[test]
    fn every_spelling_of_a_private_address_is_refused() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://017700000001/",
            "http://127.0.0.1./",
            "http://%31%32%37.0.0.1/",
            "http://①②⑦.0.0.1/",
            "http://0/",
            "http://169.254.169.254/latest/meta-data/",
            "http://2852039166/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::10.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://[fd00:ec2::254]/",
            "http://[fe80::1]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost:80/",
            "http://user:pass@127.0.0.1/",
            "http://example.com@127.0.0.1/",
        ] {
            assert!(matches!(check(url), Err(Refused::Literal(_))), "{url}: {:?}", check(url));
            assert_eq!(check_url(&Url::parse(url).unwrap(), Reach::Any), Ok(()), "{url}");
        }
    }

    #[test]
    fn public_hosts_pass() {
        for url in ["https://example.com/", "http://8.8.8.8/", "https://[2606:4700::1111]:8443/x"] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn only_http_is_spoken() {
        for url in ["ftp://example.com/", "file:///etc/passwd", "gopher://example.com/"] {
            assert!(matches!(check(url), Err(Refused::Scheme(_))), "{url}");
        }
    }
}
