//! Push receivers: what senders (brokers, webhooks) send, turned into messages. A file or folder per format,
//! all of them pure: bytes and headers in; messages, a handshake's answer or a refusal out. They verify what can
//! be verified without asking anybody; what has to be asked for (a certificate, a key set) they only name.

pub mod eventgrid;
pub mod github;
mod headers;
pub mod signature;
pub mod sns;
pub mod standard_webhooks;
pub mod stripe;
