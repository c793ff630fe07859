//! Identity, shown through the real binary on every store: keys of requests, deduplication ids, claims.

#[path = "identity/bench.rs"]
mod bench;
#[path = "identity/claims.rs"]
mod claims;
#[path = "identity/consumers.rs"]
mod consumers;
#[path = "identity/costs.rs"]
mod costs;
#[path = "identity/explain.rs"]
mod explain;
#[path = "identity/keys.rs"]
mod keys;
#[path = "identity/kills.rs"]
mod kills;
#[path = "identity/model.rs"]
mod model;
#[path = "identity/races.rs"]
mod races;
#[path = "identity/work.rs"]
mod work;

/// Each promise, on each store; and all of them on a server that speaks German.
macro_rules! shown {
    ($($room:ident: $($promise:ident)*;)*) => {
        mod sqlite { shown! { @on Sqlite $($room: $($promise)*;)* } }
        mod postgres { shown! { @on Postgres $($room: $($promise)*;)* } }

        /// wolverine#2639, #2648: a duplicate was recognised by English error text; another locale froze the
        /// partition.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn identities_are_kept_in_any_language() {
            use crate::support::postgres;
            let Some(server) = postgres::private(&[("lc_messages", "de_DE.UTF-8")]).await else { return };
            $($(
                let bench = bench::Bench::with(Some(server.fresh_database().await)).await;
                $room::$promise(&bench).await;
                drop(bench);
            )*)*
        }
    };
    (@on $engine:ident $($room:ident: $($promise:ident)*;)*) => { $( mod $room { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            use crate::identity::{bench::{Bench, Engine}, $room};
            if let Some(bench) = Bench::on(Engine::$engine).await {
                $room::$promise(&bench).await;
            }
        }
    )* } )* };
}

shown! {
    keys:
        a_request_is_replayed_to_the_letter
        another_request_under_the_same_key_is_refused
        a_key_that_cannot_be_read_is_refused
        what_failed_leaves_no_key
        keys_of_others_are_independent
        keys_that_differ_in_a_byte_never_meet_and_quotes_do_not_matter
        a_type_may_need_a_key
        a_client_that_hangs_up_cancels_nothing;
    work:
        rebuilt_tonight_once
        a_conflict_is_told_and_leaves_no_key
        an_id_of_another_tenant_is_told_without_its_message
        ids_that_differ_in_a_byte_never_meet
        ids_are_required_opted_out_of_and_passed
        a_duplicate_is_logged_and_counted
        many_messages_share_a_logical_id
        what_violates_the_schema_is_led_to;
    claims:
        a_late_confirm_is_refused_and_the_new_claim_stands
        of_twenty_claimants_one_wins
        what_is_confirmed_is_a_duplicate_until_its_window_ends;
    races:
        of_twenty_requests_with_one_key_one_has_an_effect;
}
