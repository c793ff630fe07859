//! `/v1/messages`: where messages stand, and cancelling one that is not yet due.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::app::App;
use super::caller::{Caller, Operates, Reads};
use super::openapi::problems;
use super::path::Path;
use super::problem::Problem;
use super::query::{NoQuery, Query};
use crate::gateway::status;

problems!(GetMessageProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE,
    OVERLOADED,
);

/// Where a message stands
///
/// Per destination and handler. Found while a delivery of it, its receipt (for `history.keep`) or its dead
/// letter is there. What was published in a transaction of its publisher's and turned out to be a duplicate has a
/// receipt too, and says so.
#[utoipa::path(
    get,
    path = "/v1/messages/{id}",
    operation_id = "getMessage",
    tag = "messages",
    params(("id" = String, Path, description = "The message's id.")),
    responses((status = 200, description = "The message.", body = status::Message), GetMessageProblems),
    security(("bearer" = [])),
)]
pub async fn get_message(
    app: State<App>,
    caller: Caller<Reads>,
    path: Path<String>,
    _query: NoQuery,
) -> Result<Json<status::Message>, Problem> {
    Ok(Json(app.gateway.message(&caller.principal, &path.0).await?))
}

problems!(ListMessagesProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED,
);

/// The listing's filters.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation
struct Filters {
    /// Only messages of which a delivery is in this state.
    #[param(inline, nullable = false)]
    state: Option<State_>,
    /// Only this type, to the letter.
    #[param(nullable = false)]
    r#type: Option<String>,
    /// Only messages with this deduplication id.
    #[param(rename = "deduplicationId", nullable = false)]
    deduplication_id: Option<String>,
    /// Only messages with this correlation id.
    #[param(rename = "correlationId", nullable = false)]
    correlation_id: Option<String>,
    /// How many on a page; larger values are lowered to 1,000.
    #[param(nullable = false, minimum = 1, default = 100)]
    limit: Option<i32>,
    /// The `nextCursor` of the page before.
    #[param(nullable = false)]
    cursor: Option<uuid::Uuid>,
}

#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)] // documentation
enum State_ {
    Scheduled,
    Pending,
    Retrying,
    Sent,
    Handled,
    Dead,
}

/// Find messages
///
/// Those that still have deliveries (with `state=dead`: dead letters; with `sent` or `handled`: those of which a delivery
/// to a destination or a handler was made, for `history.keep`), the newest last, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/messages",
    operation_id = "listMessages",
    tag = "messages",
    params(Filters),
    responses((status = 200, description = "A page of messages.", body = status::Page), ListMessagesProblems),
    security(("bearer" = [])),
)]
pub async fn list_messages(
    app: State<App>,
    caller: Caller<Reads>,
    query: Query,
) -> Result<Json<status::Page>, Problem> {
    Ok(Json(app.gateway.messages(&caller.principal, filters(query)?).await?))
}

fn filters(mut query: Query) -> Result<status::Query, Problem> {
    let limit = query.take_limit()?;
    let filters = status::Query {
        state: query.take("state"),
        kind: query.take("type"),
        deduplication_id: query.take("deduplicationId"),
        correlation_id: query.take("correlationId"),
        limit,
        cursor: query.take("cursor"),
    };
    query.finish()?;
    Ok(filters)
}

problems!(CancelMessageProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, NOT_CANCELLABLE, INTERNAL,
    STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

/// Cancel a message that is not yet due
///
/// One step: all its deliveries are gone and its deduplication id is free, or nothing has changed.
#[utoipa::path(
    delete,
    path = "/v1/messages/{id}",
    operation_id = "cancelMessage",
    tag = "messages",
    params(("id" = String, Path, description = "The message's id.")),
    responses((status = 204, description = "Cancelled."), CancelMessageProblems),
    security(("bearer" = [])),
)]
pub async fn cancel_message(
    app: State<App>,
    caller: Caller<Operates>,
    path: Path<String>,
    _query: NoQuery,
) -> Result<StatusCode, Problem> {
    let gateway = app.gateway.clone();
    app.run(async move { gateway.cancel(&caller.principal, &path.0).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<status::Query, Problem> {
        filters(Query::parse(Some(text)).unwrap())
    }

    #[test]
    fn filters_are_read() {
        let filters = read("state=dead&type=a.b&deduplicationId=d&correlationId=c&limit=5&cursor=x").unwrap();
        assert_eq!(filters.state.as_deref(), Some("dead"));
        assert_eq!(filters.kind.as_deref(), Some("a.b"));
        assert_eq!(filters.deduplication_id.as_deref(), Some("d"));
        assert_eq!(filters.correlation_id.as_deref(), Some("c"));
        assert_eq!((filters.limit, filters.cursor.as_deref()), (Some(5), Some("x")));
    }

    #[test]
    fn what_is_no_filter_is_told() {
        for text in [
            "limit=0",
            "limit=-1",
            "limit=2147483648",
            "limit=",
            "limit=1.5",
            "limt=5",
            "state=dead&state=sent",
        ] {
            let refused = Query::parse(Some(text)).and_then(filters);
            assert!(refused.is_err(), "{text}");
        }
    }
}
