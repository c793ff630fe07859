//! An HTTP client that dials only what the guard lets through.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Method, redirect};
use url::{Host, Url};

use super::{Reach, Refused, check_url, is_public};

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How often an HTTP/2 connection in use is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A pool of connections, guarded. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    reach: Reach,
    unresolved: Unresolved,
    /// Connects to the host itself.
    direct: reqwest::Client,
    /// Connects to proxies only, where there are any.
    proxied: Option<(reqwest::Client, Proxies)>,
}

/// What becomes of a name that does not resolve here, where a proxy would be asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unresolved {
    Refuse,
    LeaveToProxy,
}

impl Client {
    /// A client that gives a connection at most `connect_timeout`, its TLS included.
    ///
    /// # Errors
    /// When TLS cannot be set up on this machine, for people.
    pub fn new(reach: Reach, connect_timeout: Duration, proxies: &Proxies) -> Result<Self, String> {
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("Oncegate/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(connect_timeout)
                .pool_idle_timeout(IDLE)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .no_proxy()
        };
        let failed = |error: reqwest::Error| format!("cannot set up an HTTP client: {}", describe(error));
        let direct = match reach {
            Reach::Public => builder().dns_resolver(Arc::new(PublicOnly)),
            Reach::Any => builder(),
        };
        let direct = direct.build().map_err(failed)?;
        let proxied = match &proxies.0 {
            None => None,
            Some(found) => {
                let chosen = found.clone();
                let proxy = reqwest::Proxy::custom(move |url| chosen.of(url).cloned());
                let hosts = ProxiesOnly(found.clone());
                let client = builder().proxy(proxy).dns_resolver(Arc::new(hosts)).build().map_err(failed)?;
                Some((client, proxies.clone()))
            }
        };
        Ok(Self { reach, unresolved: Unresolved::Refuse, direct, proxied })
    }

    /// Leaves a name that does not resolve here to the proxy, where there is one: behind some, no name does. Only
    /// for hosts that were compared with a fixed pattern before. What resolves to private addresses stays refused.
    pub fn leaving_unresolved_to_proxies(self) -> Self {
        Self { unresolved: Unresolved::LeaveToProxy, ..self }
    }

    /// A `POST` to `url`, if it may go there.
    ///
    /// # Errors
    /// Why it may not. (What is only known when the host is dialled comes with the sending, as an error of
    /// connecting.)
    pub async fn post(&self, url: Url) -> Result<reqwest::RequestBuilder, Refused> {
        self.request(Method::POST, url).await
    }

    /// A `GET` of `url`, if it may go there. Read the answer with [`limited`].
    ///
    /// # Errors
    /// As [`Client::post`].
    pub async fn get(&self, url: Url) -> Result<reqwest::RequestBuilder, Refused> {
        self.request(Method::GET, url).await
    }

    async fn request(&self, method: Method, url: Url) -> Result<reqwest::RequestBuilder, Refused> {
        check_url(&url, self.reach)?;
        if let Some((client, proxies)) = &self.proxied
            && proxies.applies_to(&url)
        {
            self.check_resolved(&url).await?;
            return Ok(client.request(method, url));
        }
        Ok(self.direct.request(method, url))
    }

    /// What a proxy is asked to reach is checked as if it were dialled here.
    async fn check_resolved(&self, url: &Url) -> Result<(), Refused> {
        if let (Reach::Public, Some(Host::Domain(name))) = (self.reach, url.host()) {
            match resolve_public(name).await {
                Err(Refused::Unresolved(_)) if self.unresolved == Unresolved::LeaveToProxy => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

/// The body of an answer, if it is not larger than `most_bytes`.
///
/// # Errors
/// It is larger, or breaks off: for people.
pub async fn limited(mut answer: reqwest::Response, most_bytes: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(describe)? {
        if body.len() + chunk.len() > most_bytes {
            return Err(format!("more than {most_bytes} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The text of an HTTP error with its causes, without the URL (which may hold a secret).
pub fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Resolves as the system does and keeps what is public.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let public = resolve_public(name.as_str()).await?;
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// The public addresses of `name`.
async fn resolve_public(name: &str) -> Result<Vec<SocketAddr>, Refused> {
    let found = lookup(name).await?;
    let refused: Option<IpAddr> = found.first().map(SocketAddr::ip);
    let public: Vec<_> = found.into_iter().filter(|address| is_public(address.ip())).collect();
    match (public.is_empty(), refused) {
        (false, _) => Ok(public),
        (true, Some(ip)) => Err(Refused::Resolved(name.to_owned(), ip)),
        (true, None) => Err(Refused::Unresolved(name.to_owned())),
    }
}

async fn lookup(name: &str) -> Result<Vec<SocketAddr>, Refused> {
    match tokio::net::lookup_host((name, 0)).await {
        Ok(found) => Ok(found.collect()),
        Err(_) => Err(Refused::Unresolved(name.to_owned())),
    }
}

/// Resolves the names of proxies and no other: whatever goes wrong, no host is dialled past its proxy.
struct ProxiesOnly(Arc<Found>);

impl Resolve for ProxiesOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let known = [&self.0.http, &self.0.https]
            .into_iter()
            .flatten()
            .any(|proxy| proxy.host_str().is_some_and(|host| host.eq_ignore_ascii_case(name.as_str())));
        Box::pin(async move {
            if !known {
                return Err(format!("`{}` is not the proxy", name.as_str()).into());
            }
            Ok(Box::new(lookup(name.as_str()).await?.into_iter()) as Addrs)
        })
    }
}

/// The HTTP proxies through which the outside is reached, if any.
#[derive(Clone, Debug, Default)]
pub struct Proxies(Option<Arc<Found>>);

#[derive(Debug)]
struct Found {
    http: Option<Url>,
    https: Option<Url>,
    rules: Matcher,
}

impl Found {
    /// The proxy for `url`.
    fn of(&self, url: &Url) -> Option<&Url> {
        let uri = url.as_str().parse::<http::Uri>().ok()?;
        self.rules.intercept(&uri)?;
        match url.scheme() {
            "http" => self.http.as_ref(),
            _ => self.https.as_ref(),
        }
    }
}

impl Proxies {
    /// No proxies.
    pub fn none() -> Self {
        Self(None)
    }

    /// Those that the environment names, as `curl` reads it.
    ///
    /// # Errors
    /// As [`Proxies::new`].
    pub fn from_env() -> Result<Self, String> {
        let read = |name: &str| {
            let either = std::env::var(name.to_ascii_uppercase()).or_else(|_| std::env::var(name));
            either.ok().filter(|value| !value.is_empty())
        };
        let all = read("all_proxy");
        // Under CGI, `HTTP_PROXY` is a header of the caller's.
        let http = if std::env::var_os("REQUEST_METHOD").is_some() { None } else { read("http_proxy") };
        let https = read("https_proxy").or_else(|| all.clone());
        Self::new(http.or(all).as_deref(), https.as_deref(), read("no_proxy").as_deref())
    }

    /// The proxies for `http` and for `https`; `no_proxy` lists the hosts that are reached without.
    ///
    /// # Errors
    /// When what is given is not the address of an HTTP proxy, for people and without the address.
    pub fn new(http: Option<&str>, https: Option<&str>, no_proxy: Option<&str>) -> Result<Self, String> {
        if http.is_none() && https.is_none() {
            return Ok(Self(None));
        }
        let http = http.map(parse_proxy).transpose()?;
        let https = https.map(parse_proxy).transpose()?;
        let text = |url: &Option<Url>| url.as_ref().map(Url::to_string).unwrap_or_default();
        let rules = Matcher::builder()
            .http(text(&http))
            .https(text(&https))
            .no(no_proxy.unwrap_or_default().to_owned())
            .build();
        Ok(Self(Some(Arc::new(Found { http, https, rules }))))
    }

    fn applies_to(&self, url: &Url) -> bool {
        self.0.as_ref().is_some_and(|found| found.of(url).is_some())
    }
}

fn parse_proxy(text: &str) -> Result<Url, String> {
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    match Url::parse(&with_scheme) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.host().is_some() => Ok(url),
        Ok(url) => Err(format!(
            "the proxy of the environment is a `{}` proxy; only HTTP proxies are spoken",
            url.scheme()
        )),
        Err(error) => Err(format!("the proxy of the environment is not an address: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applies(proxies: &Proxies, url: &str) -> bool {
        proxies.applies_to(&Url::parse(url).unwrap())
    }

    #[test]
    fn proxies_are_chosen_by_scheme_and_exception() {
        let proxies =
            Proxies::new(None, Some("user:pw@proxy.test:3128"), Some("internal.test,10.0.0.0/8")).unwrap();
        assert!(applies(&proxies, "https://example.com/"));
        assert!(!applies(&proxies, "http://example.com/"));
        assert!(!applies(&proxies, "https://a.internal.test/"));
        assert!(!applies(&proxies, "https://10.1.2.3/"));
        assert!(!applies(&Proxies::none(), "https://example.com/"));
    }

    #[test]
    fn what_is_no_http_proxy_is_refused_rather_than_passed_by() {
        assert!(Proxies::new(None, Some("socks5://localhost:1080"), None).unwrap_err().contains("socks5"));
        assert!(Proxies::new(Some("http://"), None, None).is_err());
    }

    #[tokio::test]
    async fn names_that_resolve_to_the_machine_itself_are_refused() {
        let refused = resolve_public("localhost").await.unwrap_err();
        assert!(matches!(refused, Refused::Resolved(..)), "{refused:?}");
    }
}
