//! What PostgreSQL alone can get wrong. What every store promises is in `store_conformance`.

#[path = "postgres/build.rs"]
mod build;
#[path = "postgres/groups.rs"]
mod groups;
#[path = "postgres/schema.rs"]
mod schema;
#[path = "postgres/servers.rs"]
mod servers;
