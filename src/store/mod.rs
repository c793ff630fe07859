//! Stores: one database with Oncegate's tables.
//!
//! [`Store`] is a short list of *intentions*, each one atomic. No transaction leaves a store, so no network
//! call can happen inside one. All comparisons of due times, leases and expiries use the database's clock;
//! durations therefore go in and out as durations, not as moments.
//!
//! To add an engine: a folder beside `sqlite/` with the same file names, migrations under
//! `migrations/ENGINE/` with the same numbers and names, and one line in [`registry`]. The conformance suite
//! in `tests/` runs over every engine and says what is missing.

pub mod accept;
pub mod claims;
pub mod dead_letters;
pub mod deliveries;
pub mod error;
pub mod group;
pub mod inbox;
pub mod intake;
pub mod lanes;
pub mod look;
pub mod outbox;
mod postgres;
pub mod registry;
mod sqlite;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::domain::claim::ClaimKey;
use crate::domain::delivery::Target;
use crate::domain::{RowKey, Token};
pub use error::{Error, ErrorKind, Result};
pub use registry::{Options, Pooler, embedded_file, migration_sql, open, open_lazily};

/// A store, ready to be shared.
pub type Shared = Arc<dyn Store>;

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The engine's name, as in the URL's scheme: `sqlite`, `postgres`.
    fn engine(&self) -> &'static str;

    /// How many groups may usefully be accepted at the same time.
    fn writers(&self) -> usize {
        2
    }

    // --- schema ---

    /// Brings the schema up to date, under a row lock: many nodes may do this at once on an empty database.
    /// Returns the names of the migrations that this call applied.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// Whether the database is reached and its schema is the one this program needs.
    async fn readiness(&self) -> Result<status::Readiness>;

    /// The database's clock, and whether its commits are durable. Needs no schema.
    async fn checkup(&self) -> Result<status::Checkup>;

    // --- accepting ---

    /// Accepts a group of requests in as few commits as possible; one outcome per request, in order.
    ///
    /// The caller guarantees that no claim key occurs twice in the group. Either all of a request is stored
    /// or nothing of it. One request's bad data or blocked key never fails its neighbours: deadlocks and
    /// lock timeouts are tried once more and then singly, data errors singly at once. After a lost commit
    /// reply the group is run again under its own ids and tokens; where that is not possible the outcome is
    /// [`ErrorKind::OutcomeUnknown`].
    async fn accept(&self, group: &[accept::Request]) -> Vec<Result<accept::Outcome>>;

    // --- intake ---

    /// Whether committed rows of the intake wait. One small statement.
    async fn intake_waits(&self) -> Result<bool>;

    /// Moves the first visible rows of the intake on, in one commit: accepted as `judge` says, duplicates
    /// dropped, the others to the dead letters. A row whose claim another transaction holds is left; one that the
    /// database refuses goes alone to the dead letters. Nothing is moved while another node does this.
    async fn move_intake(&self, limits: intake::Limits, judge: intake::Shared) -> Result<intake::Moved>;

    /// Whether the users' commits tell the nodes at once (engines that can).
    async fn set_intake_notify(&self, notify: intake::Notifying) -> Result<()>;

    /// Tells `heard` of commits, until the connection fails. Never returns where the engine tells nothing.
    async fn listen_intake(&self, heard: Arc<tokio::sync::Notify>) -> Result<()>;

    /// Lets a role of the database publish in its own transactions, for `tenant` (empty: none).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] where the engine has no roles, or not this one.
    async fn grant_publisher(&self, role: &str, tenant: &str) -> Result<()>;

    // --- delivering ---

    /// Leases up to `limit` due rows of one target, in order of their due time.
    async fn take(&self, take: &deliveries::Take) -> Result<Vec<deliveries::Taken>>;

    /// Of an ordered target: leases, of each key, the row whose turn it is, if it is due, for up to `take.limit`
    /// keys. A row that was begun stays the first of its key until it is settled; no other of the key is leased
    /// beside it. See [`lanes`].
    async fn take_in_order(&self, take: &lanes::Take) -> Result<lanes::Looked>;

    /// Gives up to `limit` rows of a target that were written while it had no order a place in it, by when they were
    /// accepted, before all that have one; not those that are on their way. Returns how many.
    async fn adopt(&self, target: &Target, limit: u32) -> Result<u64>;

    /// Settles a batch; one answer per settlement, in order. A row in an order that somebody else has leased just
    /// now does not go.
    async fn settle(&self, batch: &[deliveries::Settlement]) -> Result<Vec<deliveries::Settled>>;

    /// Makes leased rows that were not attempted due again, now. Rows whose token no longer holds are left.
    /// Returns how many were given back.
    async fn give_back(&self, rows: &[(RowKey, Token)]) -> Result<u64>;

    /// How long until each target's earliest row is due (zero: now); `None`: it has no row. In one statement.
    async fn due_in(&self, targets: &[Target]) -> Result<Vec<Option<Duration>>>;

    /// Moves up to `limit` rows whose `deliver_by` has passed, and that nobody has leased, to the dead
    /// letters (`Expired`). Returns what was moved, by target.
    async fn expire(&self, limit: u32) -> Result<Vec<(Target, u64)>>;

    /// What a node that has nothing else to do has to know, in one statement; what is over only if `keep` says for
    /// how long things are kept.
    async fn look(&self, targets: &[Target], keep: Option<&status::Retention>) -> Result<look::Seen>;

    // --- status ---

    /// Depth and oldest due time of every target that has rows, configured or not.
    async fn backlog(&self) -> Result<Vec<status::Backlog>>;

    /// Where a message stands: every row, receipt and dead letter with this logical id and tenant; `None`
    /// when nothing is left of it.
    async fn message(&self, tenant: &str, id: &str) -> Result<Option<status::MessageStatus>>;

    /// Messages that still have rows (with the state `dead`: dead letters; `sent` and `handled`: receipts), by
    /// newest acceptance last, a page at a time.
    async fn messages(&self, query: &status::MessageQuery) -> Result<status::MessagePage>;

    /// Deletes a message's rows if all of them are `scheduled`, and frees its deduplication claim, in one step.
    async fn cancel(&self, tenant: &str, id: &str) -> Result<status::Cancelled>;

    /// The targets that are paused for all nodes.
    async fn paused(&self) -> Result<Vec<status::Pause>>;

    /// Pauses or resumes a target for all nodes. A pause never makes a longer one shorter.
    async fn set_paused(&self, target: &Target, paused: status::Paused) -> Result<()>;

    // --- claims ---

    /// Claims, or says who holds it. An expired claim is taken over by the INSERT itself.
    async fn claim(&self, claim: &claims::NewClaim) -> Result<claims::Claimed>;

    /// Pushes the lease's end to now + `lease`. `None`: the token no longer holds.
    async fn renew(&self, key: ClaimKey, token: Token, lease: Duration) -> Result<Option<claims::Claim>>;

    /// Confirms for `window` from now. Confirming again with the same token gives the same answer.
    /// `None`: the token no longer holds.
    async fn confirm(&self, key: ClaimKey, token: Token, window: Duration) -> Result<Option<claims::Claim>>;

    /// Replaces the answer that is kept with a claim. Nothing where the token no longer holds.
    async fn keep_answer(&self, key: ClaimKey, token: Token, answer: &Bytes) -> Result<()>;

    /// Deletes an unconfirmed claim. `false`: the token no longer holds.
    async fn release(&self, key: ClaimKey, token: Token) -> Result<bool>;

    /// The claim that stands under a key; an expired one does not.
    async fn claim_of(&self, key: ClaimKey) -> Result<Option<claims::Claim>>;

    // --- handling ---

    /// Claims for a delivery to a handler, before the handler runs; or says who holds it.
    async fn claim_handling(&self, handling: &inbox::Handling) -> Result<claims::Claimed>;

    /// For how long any delivery with this row id is still leased to somebody; `None`: none is.
    async fn leased_for(&self, row_id: Uuid) -> Result<Option<Duration>>;

    /// Pushes the ends of leases to now + `lease`. What is no longer held is left alone.
    async fn renew_held(&self, held: &[inbox::Held], lease: Duration) -> Result<()>;

    /// Ends work in one commit: settles its delivery, confirms or releases its claims, stores what it
    /// published. Whatever of it is no longer held, fences all of it.
    async fn conclude(&self, conclusion: &inbox::Conclusion) -> Result<inbox::Concluded>;

    /// Ends several works, each of a delivery of its own, in one commit; one answer each, in order. Each is written
    /// whole or fenced as by [`conclude`](Self::conclude). The caller guarantees that no claim key of a message occurs
    /// twice in the group.
    ///
    /// # Errors
    /// Nothing of the group is written (or it is not known): each is to be ended by itself then.
    async fn conclude_all(&self, conclusions: &[inbox::Conclusion]) -> Result<Vec<inbox::Concluded>>;

    // --- dead letters ---

    /// A page of a tenant's dead letters, oldest first. Those that are there all the while come exactly once.
    async fn dead_letters(&self, query: &dead_letters::Query) -> Result<dead_letters::Page>;

    /// One of a tenant's dead letters.
    async fn dead_letter(&self, tenant: &str, id: Uuid) -> Result<Option<dead_letters::DeadLetter>>;

    /// Changes the message of a dead letter; answers with what it is now. `None`: there is none.
    async fn edit_dead_letter(
        &self,
        tenant: &str,
        id: Uuid,
        edit: &dead_letters::Edit,
    ) -> Result<Option<dead_letters::DeadLetter>>;

    /// Moves up to `limit` dead letters back to the queue in one commit, those of the messages that were
    /// accepted first before others and due in this order: due now, never tried, without their `deliver_by`.
    /// One whose work another message has claimed stays, unless that is not to matter; its own message's claim
    /// never matters. Returns what was moved, by target.
    async fn replay_dead_letters(&self, replay: &dead_letters::Replay) -> Result<Vec<(Target, u64)>>;

    /// What of the selection [`replay_dead_letters`](Self::replay_dead_letters) would move if it had no limit.
    async fn count_replayable(&self, replay: &dead_letters::Replay) -> Result<u64>;

    /// Up to `limit` of those of the selection that it would leave, whatever the limit, and why.
    async fn hindrances(&self, replay: &dead_letters::Replay) -> Result<Vec<dead_letters::Hindrance>>;

    /// Deletes up to `limit` dead letters in one commit, with the claims of their work where wished. Returns
    /// how many.
    async fn discard_dead_letters(
        &self,
        selection: &dead_letters::Selection,
        claims: dead_letters::Claims,
        limit: u32,
    ) -> Result<u64>;

    /// How many dead letters a selection has.
    async fn count_dead_letters(&self, selection: &dead_letters::Selection) -> Result<u64>;

    /// A tenant's dead letters by type, target and kind of error.
    async fn summarise_dead_letters(&self, tenant: &str) -> Result<Vec<dead_letters::Group>>;

    // --- keeping house ---

    /// Deletes up to `limit` rows of each kind whose time is over, each kind in a transaction of its own,
    /// skipping locked rows.
    async fn purge(&self, limit: u32, keep: &status::Retention) -> Result<status::Purged>;

    /// Closes the connections.
    async fn close(&self);
}
