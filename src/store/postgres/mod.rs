//! PostgreSQL, 13 or later. Schema `oncegate`.
//!
//! A file per concern; each statement is a `const` beside the function that runs it. What holds everywhere:
//!
//! - The server's `now()` compares; moments that have to be known before a statement are made with
//!   [`clock`]'s estimate.
//! - Statements that lock several rows name them in key order.
//! - Connections carry `lock_timeout`, `idle_in_transaction_session_timeout` and `plan_cache_mode` ([`connect`]),
//!   so every statement is planned for the tables and arrays that it meets.
//! - Errors are told apart by SQLSTATE ([`error`]).

mod accept;
mod claims;
mod clock;
mod connect;
mod dead_letters;
mod deliveries;
mod error;
mod floors;
mod inbox;
mod intake;
mod lanes;
mod look;
mod migrate;
mod pool;
mod purge;
mod rows;
mod settle;
mod status;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::floors::Floors;
use self::pool::Pool;
use super::accept::{Outcome, Request};
use super::claims::{Claim, Claimed, NewClaim};
use super::dead_letters::{Claims, DeadLetter, Edit, Group, Hindrance, Page, Query, Replay, Selection};
use super::deliveries::{Settled, Settlement, Take, Taken};
use super::inbox::{Concluded, Conclusion, Handling, Held};
use super::status::{
    Backlog, Cancelled, Checkup, MessagePage, MessageQuery, MessageStatus, Pause, Paused, Purged, Readiness,
    Retention,
};
use super::{Error, ErrorKind, Options, Result, Shared, Store};
use crate::domain::claim::ClaimKey;
use crate::domain::delivery::Target;
use crate::domain::{RowKey, Token};
use uuid::Uuid;

pub(super) use self::migrate::migration_sql;

struct Postgres {
    pool: Pool,
    floors: Floors,
    intake_passed: intake::Passed,
}

/// Every statement with parameters, by name: for the tests, which prepare and explain them.
#[rustfmt::skip]
pub(super) const STATEMENTS: &[(&str, &str)] = &[
    ("accept::ROWS", accept::ROWS),
    ("accept::ROWS_AND_CLAIMS", accept::ROWS_AND_CLAIMS),
    ("accept::ROWS_IN_ORDER", accept::ROWS_IN_ORDER),
    ("accept::ROWS_AND_CLAIMS_IN_ORDER", accept::ROWS_AND_CLAIMS_IN_ORDER),
    ("accept::LOSERS", accept::LOSERS),
    ("accept::CORRECT", accept::CORRECT),
    ("accept::UNDO_CLAIMS", accept::UNDO_CLAIMS),
    ("accept::UNDO_ROWS", accept::UNDO_ROWS),
    ("accept::EVIDENCE", accept::EVIDENCE),
    ("claims::CLAIM", claims::CLAIM),
    ("claims::FIND", claims::FIND),
    ("claims::RENEW", claims::RENEW),
    ("claims::CONFIRM", claims::CONFIRM),
    ("claims::RELEASE", claims::RELEASE),
    ("dead_letters::LIST", dead_letters::LIST),
    ("dead_letters::ONE", dead_letters::ONE),
    ("dead_letters::LOCK", dead_letters::LOCK),
    ("dead_letters::EDIT", dead_letters::EDIT),
    ("dead_letters::REPLAY", dead_letters::REPLAY),
    ("dead_letters::REPLAYABLE", dead_letters::REPLAYABLE),
    ("dead_letters::HINDRANCES", dead_letters::HINDRANCES),
    ("dead_letters::DISCARD", dead_letters::DISCARD),
    ("dead_letters::COUNT", dead_letters::COUNT),
    ("dead_letters::SUMMARY", dead_letters::SUMMARY),
    ("deliveries::TAKE", deliveries::TAKE),
    ("deliveries::GIVE_BACK", deliveries::GIVE_BACK),
    ("deliveries::DUE_IN", deliveries::DUE_IN),
    ("deliveries::EXPIRE", deliveries::EXPIRE),
    ("inbox::CLAIM", inbox::CLAIM),
    ("inbox::RENEW_ROWS", inbox::RENEW_ROWS),
    ("inbox::RENEW_CLAIMS", inbox::RENEW_CLAIMS),
    ("inbox::LOCK", inbox::LOCK),
    ("inbox::LOCK_ROWS", inbox::LOCK_ROWS),
    ("inbox::LOCK_CLAIMS", inbox::LOCK_CLAIMS),
    ("inbox::CONFIRM", inbox::CONFIRM),
    ("inbox::CONFIRMED", inbox::CONFIRMED),
    ("inbox::LEASED_FOR", inbox::LEASED_FOR),
    ("inbox::KEEP_ARRIVAL", inbox::KEEP_ARRIVAL),
    ("inbox::DELETE_ARRIVAL", inbox::DELETE_ARRIVAL),
    ("inbox::RELEASE", inbox::RELEASE),
    ("intake::ANY", intake::ANY),
    ("intake::LOCK", intake::LOCK),
    ("intake::HEAD", intake::HEAD),
    ("intake::DELETE", intake::DELETE),
    ("intake::BURY", intake::BURY),
    ("intake::DUPLICATES", intake::DUPLICATES),
    ("intake::NOTIFIES", intake::NOTIFIES),
    ("intake::TENANT", intake::TENANT),
    ("intake::NAME_ROLE", intake::NAME_ROLE),
    ("lanes::HEADS", lanes::HEADS),
    ("lanes::LOCK", lanes::LOCK),
    ("lanes::LEASE", lanes::LEASE),
    ("lanes::JOIN", lanes::JOIN),
    ("lanes::STRAYS", lanes::STRAYS),
    ("lanes::ADOPT", lanes::ADOPT),
    ("lanes::AHEAD", lanes::AHEAD),
    ("look::LOOK", look::LOOK),
    ("migrate::BOOTSTRAPPED", migrate::BOOTSTRAPPED),
    ("migrate::LOCK", migrate::LOCK),
    ("migrate::APPLIED", migrate::APPLIED),
    ("migrate::NEWEST", migrate::NEWEST),
    ("purge::CLAIMS", purge::CLAIMS),
    ("purge::DEAD_LETTERS", purge::DEAD_LETTERS),
    ("purge::RECEIPTS", purge::RECEIPTS),
    ("purge::STRAY_RECEIPTS", purge::STRAY_RECEIPTS),
    ("purge::PARTITIONS", purge::PARTITIONS),
    ("purge::PAUSES", purge::PAUSES),
    ("settle::DONE", settle::DONE),
    ("settle::DONE_WITHOUT_RECEIPT", settle::DONE_WITHOUT_RECEIPT),
    ("settle::DISCARD", settle::DISCARD),
    ("settle::RETRY", settle::RETRY),
    ("settle::WITHDRAW", settle::WITHDRAW),
    ("settle::DEAD", settle::DEAD),
    ("status::BACKLOG", status::BACKLOG),
    ("status::MESSAGE", status::MESSAGE),
    ("status::PAGE", status::PAGE),
    ("status::PAGE_OF_DEAD", status::PAGE_OF_DEAD),
    ("status::PAGE_OF_MADE", status::PAGE_OF_MADE),
    ("status::MESSAGES", status::MESSAGES),
    ("status::CANCEL", status::CANCEL),
    ("status::PAUSED", status::PAUSED),
    ("status::CHECKUP", status::CHECKUP),
    ("status::PAUSE", status::PAUSE),
    ("status::RESUME", status::RESUME),
];

/// The store as others see it.
struct Handle(Arc<Postgres>);

/// Opens the store. Nothing is connected before it is needed.
pub(super) fn open(url: &str, options: &Options) -> Result<Shared> {
    let store = Postgres {
        pool: Pool::new(url, options)?,
        floors: Floors::default(),
        intake_passed: intake::Passed::default(),
    };
    Ok(Arc::new(Handle(Arc::new(store))))
}

impl Handle {
    /// Runs what writes in a task of its own: a caller that goes away cancels nothing of it.
    async fn carry<T, W, F>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Postgres>) -> F,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        tokio::spawn(work(Arc::clone(&self.0))).await.unwrap_or_else(|error| {
            let kind = if error.is_panic() { ErrorKind::Internal } else { ErrorKind::OutcomeUnknown };
            Err(Error::new(kind, error.to_string()))
        })
    }
}

#[async_trait]
impl Store for Handle {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        self.carry(|store| async move { migrate::migrate(&store).await }).await
    }

    async fn readiness(&self) -> Result<Readiness> {
        migrate::readiness(&self.0).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        status::checkup(&self.0).await
    }

    async fn accept(&self, group: &[Request]) -> Vec<Result<Outcome>> {
        let group = group.to_vec();
        let requests = group.len();
        let carried = self.carry(|store| async move { Ok(accept::accept(&store, &group).await) }).await;
        carried.unwrap_or_else(|error| {
            // Whether it was stored before the panic, nobody knows.
            let error = Error::new(ErrorKind::OutcomeUnknown, error.detail);
            vec![Err(error); requests]
        })
    }

    async fn intake_waits(&self) -> Result<bool> {
        intake::waits(&self.0).await
    }

    async fn move_intake(
        &self,
        limits: super::intake::Limits,
        judge: super::intake::Shared,
    ) -> Result<super::intake::Moved> {
        self.carry(move |store| async move { intake::move_on(&store, limits, judge).await }).await
    }

    async fn set_intake_notify(&self, notify: super::intake::Notifying) -> Result<()> {
        self.carry(move |store| async move { intake::set_notify(&store, notify).await }).await
    }

    async fn listen_intake(&self, heard: Arc<tokio::sync::Notify>) -> Result<()> {
        intake::listen(&self.0, heard).await
    }

    async fn grant_publisher(&self, role: &str, tenant: &str) -> Result<()> {
        let (role, tenant) = (role.to_owned(), tenant.to_owned());
        self.carry(|store| async move { intake::grant(&store, role, tenant).await }).await
    }

    async fn take(&self, take: &Take) -> Result<Vec<Taken>> {
        deliveries::take(&self.0, take).await
    }

    async fn take_in_order(&self, take: &super::lanes::Take) -> Result<super::lanes::Looked> {
        let take = take.clone();
        self.carry(|store| async move { lanes::take(&store, &take).await }).await
    }

    async fn adopt(&self, target: &Target, limit: u32) -> Result<u64> {
        let target = target.clone();
        self.carry(move |store| async move { lanes::adopt(&store, &target, limit).await }).await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let batch = batch.to_vec();
        self.carry(|store| async move { settle::settle(&store, &batch).await }).await
    }

    async fn give_back(&self, rows: &[(RowKey, Token)]) -> Result<u64> {
        let rows = rows.to_vec();
        self.carry(|store| async move { deliveries::give_back(&store, rows).await }).await
    }

    async fn due_in(&self, targets: &[Target]) -> Result<Vec<Option<Duration>>> {
        deliveries::due_in(&self.0, targets).await
    }

    async fn expire(&self, limit: u32) -> Result<Vec<(Target, u64)>> {
        self.carry(move |store| async move { deliveries::expire(&store, limit).await }).await
    }

    async fn look(&self, targets: &[Target], keep: Option<&Retention>) -> Result<super::look::Seen> {
        look::look(&self.0, targets, keep).await
    }

    async fn backlog(&self) -> Result<Vec<Backlog>> {
        status::backlog(&self.0).await
    }

    async fn message(&self, tenant: &str, id: &str) -> Result<Option<MessageStatus>> {
        status::message(&self.0, tenant, id).await
    }

    async fn messages(&self, query: &MessageQuery) -> Result<MessagePage> {
        status::messages(&self.0, query).await
    }

    async fn cancel(&self, tenant: &str, id: &str) -> Result<Cancelled> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.carry(|store| async move { status::cancel(&store, tenant, id).await }).await
    }

    async fn paused(&self) -> Result<Vec<Pause>> {
        status::paused(&self.0).await
    }

    async fn set_paused(&self, target: &Target, paused: Paused) -> Result<()> {
        status::set_paused(&self.0, target, paused).await
    }

    async fn claim(&self, claim: &NewClaim) -> Result<Claimed> {
        let claim = claim.clone();
        self.carry(|store| async move { claims::claim(&store, &claim).await }).await
    }

    async fn renew(&self, key: ClaimKey, token: Token, lease: Duration) -> Result<Option<Claim>> {
        self.carry(move |store| async move { claims::renew(&store, key, token, lease).await }).await
    }

    async fn confirm(&self, key: ClaimKey, token: Token, window: Duration) -> Result<Option<Claim>> {
        self.carry(move |store| async move { claims::confirm(&store, key, token, window).await }).await
    }

    async fn keep_answer(&self, key: ClaimKey, token: Token, answer: &Bytes) -> Result<()> {
        let answer = answer.clone();
        self.carry(move |store| async move { accept::keep_answer(&store, key, token, answer).await }).await
    }

    async fn release(&self, key: ClaimKey, token: Token) -> Result<bool> {
        self.carry(move |store| async move { claims::release(&store, key, token).await }).await
    }

    async fn claim_of(&self, key: ClaimKey) -> Result<Option<Claim>> {
        claims::claim_of(&self.0, key).await
    }

    async fn claim_handling(&self, handling: &Handling) -> Result<Claimed> {
        let handling = handling.clone();
        self.carry(|store| async move { inbox::claim(&store, &handling).await }).await
    }

    async fn leased_for(&self, row_id: Uuid) -> Result<Option<Duration>> {
        inbox::leased_for(&self.0, row_id).await
    }

    async fn renew_held(&self, held: &[Held], lease: Duration) -> Result<()> {
        let held = held.to_vec();
        self.carry(move |store| async move { inbox::renew(&store, &held, lease).await }).await
    }

    async fn conclude(&self, conclusion: &Conclusion) -> Result<Concluded> {
        let conclusion = conclusion.clone();
        self.carry(|store| async move { inbox::conclude(&store, &conclusion).await }).await
    }

    async fn conclude_all(&self, conclusions: &[Conclusion]) -> Result<Vec<Concluded>> {
        let conclusions = conclusions.to_vec();
        self.carry(|store| async move { inbox::conclude_all(&store, &conclusions).await }).await
    }

    async fn dead_letters(&self, query: &Query) -> Result<Page> {
        dead_letters::list(&self.0, query).await
    }

    async fn dead_letter(&self, tenant: &str, id: Uuid) -> Result<Option<DeadLetter>> {
        dead_letters::one(&self.0, tenant, id).await
    }

    async fn edit_dead_letter(&self, tenant: &str, id: Uuid, edit: &Edit) -> Result<Option<DeadLetter>> {
        let (tenant, edit) = (tenant.to_owned(), edit.clone());
        self.carry(move |store| async move { dead_letters::edit(&store, &tenant, id, &edit).await }).await
    }

    async fn replay_dead_letters(&self, replay: &Replay) -> Result<Vec<(Target, u64)>> {
        let replay = replay.clone();
        self.carry(|store| async move { dead_letters::replay(&store, &replay).await }).await
    }

    async fn count_replayable(&self, replay: &Replay) -> Result<u64> {
        dead_letters::count_replayable(&self.0, replay).await
    }

    async fn hindrances(&self, replay: &Replay) -> Result<Vec<Hindrance>> {
        dead_letters::hindrances(&self.0, replay).await
    }

    async fn discard_dead_letters(&self, selection: &Selection, claims: Claims, limit: u32) -> Result<u64> {
        let selection = selection.clone();
        self.carry(move |store| async move { dead_letters::discard(&store, &selection, claims, limit).await })
            .await
    }

    async fn count_dead_letters(&self, selection: &Selection) -> Result<u64> {
        dead_letters::count(&self.0, selection).await
    }

    async fn summarise_dead_letters(&self, tenant: &str) -> Result<Vec<Group>> {
        dead_letters::summarise(&self.0, tenant).await
    }

    async fn purge(&self, limit: u32, keep: &Retention) -> Result<Purged> {
        let keep = keep.clone();
        self.carry(move |store| async move { purge::purge(&store, limit, &keep).await }).await
    }

    async fn close(&self) {
        self.0.pool.close().await;
    }
}
