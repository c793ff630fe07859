//! The headers of a request.

use std::borrow::Cow;

use http::HeaderMap;

use super::Sender;
use crate::domain::delivery::{Delivery, Failure, Fault, Format};
use crate::domain::{cloudevents, wire};
use crate::transport::headers::{sign, written};

impl Sender {
    /// All headers of the request for `delivery`, its signature included.
    pub(super) fn headers(&self, delivery: &Delivery) -> Result<HeaderMap, Failure> {
        let named: Vec<(Cow<'_, str>, Cow<'_, str>)> = match self.format {
            Format::Plain => wire::http_headers(delivery)
                .into_iter()
                .map(|(name, value)| (Cow::Borrowed(name), value))
                .collect(),
            Format::CloudEvents => cloudevents::http_headers(delivery)
                .into_iter()
                .map(|(name, value)| (Cow::Owned(name), Cow::Owned(value)))
                .collect(),
        };
        let mut headers = written(named)?;
        // The destination's own come last: an operator may fix a header that messages choose.
        let own =
            self.config.own_headers().map_err(|error| Failure::new(Fault::Target, error.to_string()))?;
        headers.extend(own);
        sign(&mut headers, delivery, self.config.keys(), &self.clock)?;
        Ok(headers)
    }
}
