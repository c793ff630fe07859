//! One suite for every store: what [`Store`](oncegate::store::Store) and the documentation beside it promise.
//!
//! Each promise is a plain function over a [`Bench`]: a store on a fresh database of its own. An engine joins
//! with one line at the end of this file and with a way to make fresh databases in `backends.rs`.

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
#[path = "store_conformance/status.rs"]
mod status;

/// The whole suite for one engine.
macro_rules! conforms {
    ($engine:ident: $($room:ident { $($promise:ident)* })*) => {
        mod $engine { $(mod $room { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                if let Some(bench) = super::super::backends::$engine().await {
                    super::super::$room::$promise(&bench).await;
                    bench.end().await;
                }
            }
        )* })* }
    };
}
