//! The rules, pure: no async, no I/O, nothing of the other rooms.
//!
//! Everything that *decides* lives here: what a message is, how it is identified, where it goes, what an
//! answer of a target means and when to try again. The other rooms fetch what is needed, ask this one, and
//! carry out what it says. Time and randomness come in as [`Clock`] and [`Random`].

pub mod claim;
pub mod clock;
pub mod cloudevents;
pub mod delivery;
pub mod duration;
pub mod fields;
pub mod forms;
pub mod grant;
pub mod idempotency;
pub mod identity;
pub mod ids;
pub mod json;
pub mod media;
pub mod message;
pub mod native;
pub mod ordering;
pub mod policy;
pub mod retry;
pub mod routing;
pub mod schema;
pub mod standard_webhooks;
pub mod wire;

pub use clock::Clock;
pub use fields::{Limits, Place};
pub use ids::{Random, RowKey, Token};
pub use message::Message;

/// A moment in UTC. Microsecond resolution everywhere, because that is what every store keeps.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
