//! One suite for every store: what [`Store`](oncegate::store::Store) and the documentation beside it promise.
//!
//! Each promise is a plain function over a [`Bench`](backends::Bench): a store on a fresh database of its own.
//! An engine joins with one line at the end of this file and a function in `backends.rs` that makes its bench.
//! A capability describes a difference between engines, never an excuse: the same assertions hold for all.

#[path = "store_conformance/accepting.rs"]
mod accepting;
#[path = "store_conformance/backends.rs"]
mod backends;
#[path = "store_conformance/build.rs"]
mod build;
#[path = "store_conformance/claims.rs"]
mod claims;
#[path = "store_conformance/delivering.rs"]
mod delivering;
#[path = "store_conformance/identity.rs"]
mod identity;
#[path = "store_conformance/keeping_house.rs"]
mod keeping_house;
#[path = "store_conformance/settling.rs"]
mod settling;
#[path = "store_conformance/sqlite_only.rs"]
mod sqlite_only;
#[path = "store_conformance/status.rs"]
mod status;

/// The whole suite for one engine.
macro_rules! conforms {
    ($engine:ident) => {
        mod $engine {
            promises! { $engine
                accepting:
                    a_message_becomes_one_row_per_target
                    a_row_keeps_everything
                    without_a_client_id_the_row_id_is_the_logical_id
                    a_client_id_may_come_again
                    a_group_has_one_outcome_per_request_in_order
                    a_request_is_stored_whole_or_not_at_all
                    a_bad_request_fails_alone
                    a_request_that_is_run_again_is_stored_once
                    a_message_without_targets_is_accepted
                    an_empty_group_and_an_empty_request_are_nothing
                    what_is_scheduled_is_due_at_its_time
                    what_was_scheduled_in_the_past_is_due_once_and_at_once
                    what_is_held_is_nobody_elses_until_the_lease_ends
                    many_writers_lose_nothing
                    a_caller_who_goes_away_cancels_nothing;
                identity:
                    the_same_work_is_a_duplicate_of_the_first
                    a_duplicate_does_not_fail_its_neighbours
                    the_same_work_twice_in_one_request
                    a_request_key_is_replayed
                    a_request_key_of_another_request_is_told_apart
                    a_request_key_in_flight_is_told
                    the_stored_answer_is_the_one_that_was_given
                    a_refused_answer_stores_nothing_and_frees_the_keys
                    of_twenty_requests_with_one_key_one_wins
                    of_twenty_messages_with_one_identity_one_wins
                    an_expired_claim_is_taken_over
                    the_window_starts_when_the_message_is_to_be_delivered
                    a_duplicate_tells_where_the_first_stands
                    keys_that_differ_in_a_byte_never_meet;
            }
        }
    };
}

macro_rules! promises {
    ($engine:ident $($room:ident: $($promise:ident)*;)*) => { $(
        mod $room { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                if let Some(bench) = super::super::backends::$engine().await {
                    super::super::$room::$promise(&bench).await;
                    bench.end().await;
                }
            }
        )* }
    )* };
}

conforms!(sqlite);
