//! What a pass did, as it is answered and printed.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::store::ErrorKind;

/// The report of a durability pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PassReport)]
pub struct Report {
    /// Whether another pass now would find something to do.
    pub has_more_work: bool,
    /// Whether the time was up before everything was done that the batch size allows.
    pub timed_out: bool,
    pub duration_ms: u64,
    /// Deliveries to destinations that were made.
    pub outgoing_sent: u64,
    /// Those that failed and are due again later.
    pub outgoing_failed: u64,
    pub outgoing_dead_lettered: u64,
    /// Scheduled messages among those sent and handled.
    pub scheduled_released: u64,
    /// Deliveries to handlers that were made.
    pub incoming_handled: u64,
    /// Those that failed and are due again later.
    pub incoming_failed: u64,
    pub incoming_dead_lettered: u64,
    pub purged: Purged,
    /// Stores that another pass is working on.
    pub skipped_stores: Vec<String>,
    pub stores: Vec<StoreSteps>,
    /// When the next delivery is due that is not due yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_due_at: Option<DateTime<Utc>>,
}

/// What was deleted because its time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PassPurged)]
pub struct Purged {
    /// What handlers remembered having handled.
    pub handled: u64,
    pub dead_letters: u64,
    /// Deduplication and idempotency claims.
    pub deduplications: u64,
}

/// The steps of one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PassStore)]
pub struct StoreSteps {
    pub store: String,
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PassStep)]
pub struct Step {
    pub step: StepName,
    pub outcome: StepOutcome,
    /// Rows that it dealt with.
    pub count: u64,
    pub more_work: bool,
    /// Why it failed; the details are in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PassStepName)]
pub enum StepName {
    Intake,
    Outgoing,
    Incoming,
    Purge,
}

impl StepName {
    pub const ALL: [Self; 4] = [Self::Intake, Self::Outgoing, Self::Incoming, Self::Purge];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Intake => "intake",
            Self::Outgoing => "outgoing",
            Self::Incoming => "incoming",
            Self::Purge => "purge",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PassStepOutcome)]
pub enum StepOutcome {
    Succeeded,
    Failed,
    /// The store is locked by another pass, or the time was up.
    Skipped,
}

impl StepOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl Step {
    pub(super) fn failed(step: StepName, kind: ErrorKind) -> Self {
        Self {
            step,
            outcome: StepOutcome::Failed,
            count: 0,
            more_work: true,
            error_kind: Some(kind.as_str().to_owned()),
        }
    }

    /// Whether there is something to do, nobody knows.
    pub(super) fn skipped(step: StepName) -> Self {
        Self { step, outcome: StepOutcome::Skipped, count: 0, more_work: true, error_kind: None }
    }
}

impl Report {
    /// Whether no step failed.
    pub fn succeeded(&self) -> bool {
        let mut steps = self.stores.iter().flat_map(|store| &store.steps);
        !steps.any(|step| step.outcome == StepOutcome::Failed)
    }

    /// Adds what was done in one store.
    pub(super) fn add(&mut self, store: Self) {
        self.has_more_work |= store.has_more_work;
        self.timed_out |= store.timed_out;
        self.outgoing_sent += store.outgoing_sent;
        self.outgoing_failed += store.outgoing_failed;
        self.outgoing_dead_lettered += store.outgoing_dead_lettered;
        self.scheduled_released += store.scheduled_released;
        self.incoming_handled += store.incoming_handled;
        self.incoming_failed += store.incoming_failed;
        self.incoming_dead_lettered += store.incoming_dead_lettered;
        self.purged.handled += store.purged.handled;
        self.purged.dead_letters += store.purged.dead_letters;
        self.purged.deduplications += store.purged.deduplications;
        self.skipped_stores.extend(store.skipped_stores);
        self.stores.extend(store.stores);
        self.next_due_at = [self.next_due_at, store.next_due_at].into_iter().flatten().min();
    }
}
