//! Which URLs in a message of Amazon SNS may be asked for at all. Decided before any request goes out: whoever
//! can reach the receiver can write such URLs.
//!
//! The host has to be that of SNS in a region, to the letter. (A looser pattern lets in `sns.s3-us-west-2.…`,
//! which is a bucket that somebody named `sns`.) A URL has to be written as a URL's parser writes it, so that
//! nothing in it can be read in two ways.

use url::Url;

/// Why a URL is not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forged {
    #[error("it is not a plain https URL")]
    Form,
    #[error("its host is not that of SNS in a region")]
    Host,
    #[error("its path is not that of a certificate of SNS")]
    CertificatePath,
    #[error("it does not confirm this subscription")]
    Confirmation,
}

/// The URL of the certificate that a message says it was signed with.
///
/// # Errors
/// Why it is not SNS's.
pub fn certificate(text: &str) -> Result<Url, Forged> {
    let url = of_sns(text)?;
    let name = url
        .path()
        .strip_prefix("/SimpleNotificationService-")
        .and_then(|rest| rest.strip_suffix(".pem"))
        .filter(|name| (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric()));
    if name.is_none() || url.query().is_some() {
        return Err(Forged::CertificatePath);
    }
    Ok(url)
}

/// The URL that confirms the subscription of `topic` (an ARN) with `token`.
///
/// # Errors
/// Why it is not asked for.
pub fn confirmation(text: &str, topic: &str, token: &str) -> Result<Url, Forged> {
    let url = of_sns(text)?;
    let mut expected = vec![("Action", "ConfirmSubscription"), ("TopicArn", topic), ("Token", token)];
    for (name, value) in url.query_pairs() {
        let Some(place) = expected.iter().position(|pair| *pair == (&*name, &*value)) else {
            return Err(Forged::Confirmation);
        };
        expected.swap_remove(place);
    }
    if url.path() != "/" || !expected.is_empty() || !same_region(&url, topic) {
        return Err(Forged::Confirmation);
    }
    Ok(url)
}

fn of_sns(text: &str) -> Result<Url, Forged> {
    let url = Url::parse(text).map_err(|_| Forged::Form)?;
    let plain = url.scheme() == "https"
        && url.username().is_empty()
        && url.password().is_none()
        && url.port().is_none()
        && url.fragment().is_none()
        && url.as_str() == text;
    if !plain {
        return Err(Forged::Form);
    }
    match url.host_str().map(region) {
        Some(Some(_)) => Ok(url),
        _ => Err(Forged::Host),
    }
}

/// The region whose SNS has this host: `sns.REGION.amazonaws.com`, in China with `.cn`.
fn region(host: &str) -> Option<&str> {
    let rest = host.strip_prefix("sns.")?;
    let region = match rest.strip_suffix(".amazonaws.com") {
        Some(region) => Some(region).filter(|region| !region.starts_with("cn-")),
        None => rest.strip_suffix(".amazonaws.com.cn").filter(|region| region.starts_with("cn-")),
    }?;
    is_region(region).then_some(region)
}

/// `us-east-1`, `us-gov-west-1`: two letters, words of letters, a number.
fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [place, words @ .., number] = parts.as_slice() else { return false };
    let letters = |word: &str| (2..=16).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase());
    letters(place)
        && place.len() == 2
        && (1..=2).contains(&words.len())
        && words.iter().all(|word| letters(word))
        && (1..=2).contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whether the host is in the region of the topic: `arn:PARTITION:sns:REGION:ACCOUNT:NAME`.
fn same_region(url: &Url, topic: &str) -> bool {
    url.host_str().and_then(region).is_some_and(|region| topic.split(':').nth(3) == Some(region))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "arn:aws:sns:us-east-1:111122223333:orders";

    #[test]
    fn the_certificates_of_sns_pass() {
        for text in [
            "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem",
            "https://sns.ap-southeast-3.amazonaws.com/SimpleNotificationService-a.pem",
            "https://sns.us-gov-west-1.amazonaws.com/SimpleNotificationService-A1.pem",
            "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-0.pem",
        ] {
            assert_eq!(certificate(text).map(String::from).as_deref(), Ok(text));
        }
    }

    /// novuhq/novu#11056, Mailtrain-org/mailtrain#1392.
    #[test]
    fn forged_certificate_urls_are_told_before_they_are_asked_for() {
        let path = "/SimpleNotificationService-0123456789abcdef.pem";
        let hosts = [
            "http://sns.us-east-1.amazonaws.com",
            "HTTPS://sns.us-east-1.amazonaws.com",
            "ftp://sns.us-east-1.amazonaws.com",
            "//sns.us-east-1.amazonaws.com",
            "https:/sns.us-east-1.amazonaws.com",
            "https:\\\\sns.us-east-1.amazonaws.com",
            "https://s3.amazonaws.com/attacker-bucket",
            "https://attacker.s3.amazonaws.com",
            "https://sns.s3.amazonaws.com",
            "https://sns.s3-us-west-2.amazonaws.com",
            "https://sns.s3.us-west-2.amazonaws.com",
            "https://sns.amazonaws.com",
            "https://sns..amazonaws.com",
            "https://sns.us-east-1.amazonaws.com.evil.example",
            "https://sns.us-east-1.amazonaws.com.",
            "https://sns.us-east-1.amazonaws.com.cn",
            "https://sns.cn-north-1.amazonaws.com",
            "https://sns.us-east-1.amazonaws.com.cn.evil.example",
            "https://evil.example/sns.us-east-1.amazonaws.com",
            "https://evil.example#sns.us-east-1.amazonaws.com",
            "https://evil.example?sns.us-east-1.amazonaws.com",
            "https://evil.example\\.sns.us-east-1.amazonaws.com",
            "https://evil-sns.us-east-1.amazonaws.com",
            "https://xsns.us-east-1.amazonaws.com",
            "https://sns.us-east-1xamazonaws.com",
            "https://sns.us-east-1.amazonaws.co",
            "https://sns.us-east-1.amazonaws.com:443",
            "https://sns.us-east-1.amazonaws.com:8443",
            "https://sns.us-east-1.amazonaws.com@evil.example",
            "https://evil.example@sns.us-east-1.amazonaws.com",
            "https://:x@sns.us-east-1.amazonaws.com",
            "https://sns.us-east-1.amazonaws.com%2eevil.example",
            "https://sns.us-east-1.amazonaws.com%00.evil.example",
            "https://SNS.us-east-1.amazonaws.com",
            "https://sns.us-east-1.amazonaws。com",
            "https://sns.us-eаst-1.amazonaws.com",
            "https://127.0.0.1",
            "https://[::1]",
            "https://169.254.169.254/latest/meta-data",
            " https://sns.us-east-1.amazonaws.com",
            "https://sns.us-east-1\n.amazonaws.com",
            "https://sns.us-east-1.amazonaws.com/..",
            "https://sns.us-east-1.amazonaws.com/a",
            "",
        ];
        for host in hosts {
            let text = format!("{host}{path}");
            assert!(certificate(&text).is_err(), "{text}");
        }
        for path in [
            "",
            "/",
            "/x.pem",
            "/SimpleNotificationService-.pem",
            "/SimpleNotificationService-0123.pem/",
            "/SimpleNotificationService-0123.pem?x=1",
            "/SimpleNotificationService-0123.pem#x",
            "/SimpleNotificationService-0123.PEM",
            "/SimpleNotificationService-01%3223.pem",
            "/SimpleNotificationService-../0123.pem",
            "/?Action=Publish&x=/SimpleNotificationService-0123.pem",
        ] {
            let text = format!("https://sns.us-east-1.amazonaws.com{path}");
            assert!(certificate(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_confirmation_confirms_this_topic_and_nothing_else() {
        let url = |rest: &str| format!("https://sns.us-east-1.amazonaws.com/{rest}");
        let good = format!("?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=feedc0de");
        assert!(confirmation(&url(&good), TOPIC, "feedc0de").is_ok());
        let reordered = format!("?Token=feedc0de&Action=ConfirmSubscription&TopicArn={TOPIC}");
        assert!(confirmation(&url(&reordered), TOPIC, "feedc0de").is_ok());
        for forged in [
            String::new(),
            format!("?Action=Unsubscribe&TopicArn={TOPIC}&Token=feedc0de"),
            format!("?Action=ConfirmSubscription&TopicArn={TOPIC}x&Token=feedc0de"),
            format!("?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=other"),
            format!("?Action=ConfirmSubscription&TopicArn={TOPIC}"),
            format!("{good}&AuthenticateOnUnsubscribe=true"),
            format!("{good}&Token=feedc0de"),
            format!("a{good}"),
            format!("{good}#x"),
        ] {
            assert!(confirmation(&url(&forged), TOPIC, "feedc0de").is_err(), "{forged}");
        }
        for host in ["https://sns.eu-west-1.amazonaws.com/", "https://evil.example/", "http://127.0.0.1/"] {
            assert!(confirmation(&format!("{host}{good}"), TOPIC, "feedc0de").is_err(), "{host}");
        }
    }
}
