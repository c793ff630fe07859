//! One suite for every store: what [`Store`](oncegate::store::Store) and the documentation beside it promise.
//!
//! Each promise is a plain function over a [`Bench`](backends::Bench): a store on a fresh database of its own.
//! An engine joins with one line at the end of this file and a function in `backends.rs` that makes its bench.
//! A capability describes a difference between engines, never an excuse: the same assertions hold for all.

#[path = "store_conformance/accepting.rs"]
mod accepting;
#[path = "store_conformance/arrivals.rs"]
mod arrivals;
#[path = "store_conformance/backends.rs"]
mod backends;
#[path = "store_conformance/build.rs"]
mod build;
#[path = "store_conformance/claims.rs"]
mod claims;
#[path = "store_conformance/dead_letters.rs"]
mod dead_letters;
#[path = "store_conformance/delivering.rs"]
mod delivering;
#[path = "store_conformance/handling.rs"]
mod handling;
#[path = "store_conformance/identity.rs"]
mod identity;
#[path = "store_conformance/keeping_house.rs"]
mod keeping_house;
#[path = "store_conformance/ordering.rs"]
mod ordering;
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
                delivering:
                    rows_are_taken_in_order_of_their_due_time_up_to_the_limit
                    only_the_targets_own_rows_are_taken
                    concurrent_takers_get_each_row_once
                    a_lease_that_ended_is_taken_again_and_counted
                    what_is_given_back_is_due_at_once_and_was_not_taken
                    a_row_whose_time_is_over_says_so
                    how_long_until_rows_are_due
                    the_backlog_lists_every_target_with_rows;
                settling:
                    done_removes_the_row_and_leaves_a_receipt
                    done_needs_no_token
                    what_is_gone_is_fenced
                    a_counted_retry_waits_and_counts
                    an_uncounted_retry_waits_and_does_not_count
                    a_retry_is_never_due_after_deliver_by
                    a_late_owner_is_fenced
                    what_is_discarded_leaves_a_receipt_that_says_so_and_needs_its_token
                    a_dead_letter_keeps_everything
                    a_batch_is_answered_in_order
                    what_expired_becomes_a_dead_letter
                    what_is_leased_does_not_expire
                    expiring_is_bounded;
                ordering:
                    of_each_key_the_first_is_taken_and_no_other
                    rows_of_a_request_and_requests_one_after_the_other_keep_their_order
                    a_retry_holds_up_its_key_and_no_other
                    a_dead_letter_frees_its_key_or_blocks_it
                    a_schedule_holds_up_nothing_and_joins_when_it_is_due
                    a_lease_that_ended_is_taken_over_and_its_owner_is_fenced
                    concurrent_takers_never_hold_two_of_a_key
                    messages_without_a_key_are_one_key_and_tenants_have_their_own
                    many_keys_are_looked_at_in_steps
                    rows_from_before_the_order_come_first_in_it
                    what_expires_holds_up_nothing
                    what_a_message_waits_for_is_told;
                claims:
                    a_claim_is_granted_once
                    a_claim_is_renewed_and_confirmed_and_stands_until_its_window_ends
                    confirming_again_gives_the_same_answer
                    a_released_claim_is_free
                    what_is_confirmed_is_not_released
                    a_lapsed_claim_is_taken_over
                    a_late_confirm_of_an_old_owner_is_refused
                    of_twenty_claimants_one_wins
                    a_claim_that_is_run_again_is_granted_again;
                arrivals:
                    a_push_that_is_being_run_is_leased_to_somebody
                    what_was_withdrawn_leaves_nothing
                    what_ended_is_remembered_for_as_long_as_it_says
                    an_arrival_outlives_what_is_to_be_tried_again;
                handling:
                    a_handling_is_confirmed_with_its_delivery_and_what_it_published
                    a_fenced_conclusion_writes_nothing
                    a_group_of_ends_is_one_commit_and_the_fenced_write_nothing
                    groups_of_ends_against_single_ones
                    a_failure_releases_the_claim_with_its_delivery
                    the_next_taker_of_a_row_takes_its_claim_over
                    nobody_else_takes_a_claim_over_by_an_equal_message_id
                    what_is_renewed_is_nobody_elses
                    published_work_that_is_taken_is_a_duplicate_and_settles_all_the_same
                    a_conclusion_without_a_delivery_keeps_its_answer_and_may_be_run_again;
                status:
                    a_message_is_followed_through_its_life
                    a_message_is_told_per_target
                    what_belongs_to_another_tenant_is_not_there
                    messages_are_found_by_what_they_are
                    what_was_delivered_is_found_by_its_receipts
                    messages_are_listed_a_page_at_a_time
                    what_is_scheduled_can_be_cancelled_and_its_identity_is_free
                    what_is_on_its_way_cannot_be_cancelled
                    cancelling_leaves_the_claim_of_another_message
                    a_pause_is_for_all_and_remembered
                    a_look_sees_what_there_is_to_do
                    a_pause_for_a_while_ends_by_itself_and_never_shortens_a_longer_one;
                dead_letters:
                    they_are_listed_oldest_first_a_page_at_a_time
                    pages_neither_repeat_nor_skip_while_rows_come_and_go
                    a_page_ends_before_its_bodies_are_too_large
                    they_are_found_by_what_they_are
                    those_of_another_tenant_are_not_there
                    one_is_edited_and_keeps_the_rest
                    a_replay_moves_the_row_whole_and_starts_anew
                    a_replay_has_the_order_of_first_acceptance
                    a_replay_is_bounded_and_says_what_remains
                    a_replay_is_no_duplicate_of_its_own_first_try
                    work_that_another_message_took_is_a_duplicate_unless_forced
                    what_has_no_target_any_more_stays
                    whoever_still_settles_the_old_row_settles_nothing
                    a_message_may_die_and_be_replayed_many_times
                    replays_at_once_move_each_row_once
                    a_discard_frees_its_own_claim_only
                    they_are_summarised
                    messages_with_dead_letters_are_listed;
                keeping_house:
                    what_is_over_is_purged
                    what_is_not_over_is_kept
                    purging_is_bounded
                    many_may_migrate_at_once
                    a_closed_store_is_unavailable;
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
conforms!(postgres);
