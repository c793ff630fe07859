//! `/v1/dead-letters`: deliveries that were given up on.

use axum::Json;
use axum::extract::State;

use super::app::App;
use super::caller::{Caller, Operates, Reads};
use super::input::Input;
use super::openapi::problems;
use super::path::Path;
use super::problem::Problem;
use super::query::{NoQuery, Query};
use super::schema::DeadLetterEdit;
use crate::gateway::dead_letters::{
    self, DeadLetter, DiscardAnswer, DiscardRequest, Filter, Page, ReplayAnswer, ReplayRequest, Summary,
};

problems!(ListDeadLettersProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED,
);

problems!(GetDeadLetterProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE,
    OVERLOADED,
);

problems!(EditDeadLetterProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, REQUEST_TIMEOUT, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

problems!(ChangeDeadLettersProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, REQUEST_TIMEOUT, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

/// The listing's filters.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation
struct Filters {
    /// Only of messages of this type, to the letter.
    #[param(nullable = false)]
    r#type: Option<String>,
    /// Only for this destination.
    #[param(nullable = false)]
    destination: Option<String>,
    /// Only for this handler.
    #[param(nullable = false)]
    handler: Option<String>,
    /// Only those given up on for this reason.
    #[param(rename = "errorKind", nullable = false, inline)]
    error_kind: Option<ErrorKind>,
    /// Only those given up on at this moment or later.
    #[param(nullable = false)]
    from: Option<chrono::DateTime<chrono::Utc>>,
    /// Only those given up on before this moment.
    #[param(nullable = false)]
    until: Option<chrono::DateTime<chrono::Utc>>,
    /// How many on a page; larger values are lowered to 1,000.
    #[param(nullable = false, minimum = 1, default = 100)]
    limit: Option<u32>,
    /// The `nextCursor` of the page before.
    #[param(nullable = false, pattern = "^000[0-9a-f]{45}$")]
    cursor: Option<String>,
}

/// Why a delivery was given up on.
#[derive(utoipa::ToSchema)]
#[allow(dead_code)] // documentation
enum ErrorKind {
    MissingDeduplicationId,
    Expired,
    Refused,
    TooLarge,
    AttemptsExhausted,
    Unreadable,
    Unroutable,
    InvalidReply,
    NeverSettled,
}

/// List dead letters
///
/// The oldest first, a page at a time. A page ends early where its data comes to more than 8 MiB.
#[utoipa::path(
    get,
    path = "/v1/dead-letters",
    operation_id = "listDeadLetters",
    tag = "dead letters",
    params(Filters),
    responses((status = 200, description = "A page of dead letters.", body = Page), ListDeadLettersProblems),
    security(("bearer" = [])),
)]
pub async fn list_dead_letters(
    app: State<App>,
    caller: Caller<Reads>,
    query: Query,
) -> Result<Json<Page>, Problem> {
    let query = read(query)?;
    Ok(Json(app.gateway.dead_letters(&caller.principal.tenant).list(&caller.principal, query).await?))
}

fn read(mut query: Query) -> Result<dead_letters::Query, Problem> {
    let limit = query.take_limit()?;
    let filter = Filter {
        r#type: query.take("type"),
        destination: query.take("destination"),
        handler: query.take("handler"),
        error_kind: query.take("errorKind"),
        from: query.take("from"),
        until: query.take("until"),
    };
    let read = dead_letters::Query { filter, limit, cursor: query.take("cursor") };
    query.finish()?;
    Ok(read)
}

/// Count dead letters
///
/// By type, target and kind of error.
#[utoipa::path(
    get,
    path = "/v1/dead-letters/summary",
    operation_id = "summariseDeadLetters",
    tag = "dead letters",
    responses((status = 200, description = "How many there are.", body = Summary), ListDeadLettersProblems),
    security(("bearer" = [])),
)]
pub async fn summarise_dead_letters(
    app: State<App>,
    caller: Caller<Reads>,
    _query: NoQuery,
) -> Result<Json<Summary>, Problem> {
    Ok(Json(app.gateway.dead_letters(&caller.principal.tenant).summary(&caller.principal).await?))
}

/// Read a dead letter
#[utoipa::path(
    get,
    path = "/v1/dead-letters/{id}",
    operation_id = "getDeadLetter",
    tag = "dead letters",
    params(("id" = String, Path, description = "The dead letter's own id.")),
    responses((status = 200, description = "The dead letter.", body = DeadLetter), GetDeadLetterProblems),
    security(("bearer" = [])),
)]
pub async fn get_dead_letter(
    app: State<App>,
    caller: Caller<Reads>,
    path: Path<String>,
    _query: NoQuery,
) -> Result<Json<DeadLetter>, Problem> {
    Ok(Json(app.gateway.dead_letters(&caller.principal.tenant).get(&caller.principal, &path.0).await?))
}

/// Mend a dead letter's message before it is replayed
///
/// Its data, content type and headers can be changed; what is left out stays. `data` is read by the content
/// type that the message has then.
#[utoipa::path(
    patch,
    path = "/v1/dead-letters/{id}",
    operation_id = "editDeadLetter",
    tag = "dead letters",
    params(("id" = String, Path, description = "The dead letter's own id.")),
    request_body = DeadLetterEdit,
    responses(
        (status = 200, description = "The dead letter as it is now.", body = DeadLetter),
        EditDeadLetterProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn edit_dead_letter(
    app: State<App>,
    caller: Caller<Operates>,
    path: Path<String>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<DeadLetter>, Problem> {
    input.form(&["application/json"])?;
    let gateway = app.gateway.clone();
    let edit = async move {
        gateway.dead_letters(&caller.principal.tenant).edit(&caller.principal, &path.0, &input.body).await
    };
    app.run(edit).await.map(Json)
}

/// Replay dead letters
///
/// Moves them back to their targets, those of the messages that were accepted first before others; at most
/// 10,000 in one call. Each is delivered anew: its attempts count from 1, and it has no `deliverBy` any more.
#[utoipa::path(
    post,
    path = "/v1/dead-letters/replay",
    operation_id = "replayDeadLetters",
    tag = "dead letters",
    request_body = ReplayRequest,
    responses(
        (status = 200, description = "How many are on their way.", body = ReplayAnswer),
        ChangeDeadLettersProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn replay_dead_letters(
    app: State<App>,
    caller: Caller<Operates>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<ReplayAnswer>, Problem> {
    let request: ReplayRequest = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    app.run(async move { gateway.dead_letters(&caller.principal.tenant).replay(&caller.principal, request).await }).await.map(Json)
}

/// Discard dead letters
///
/// Deletes them, and frees the deduplication ids of their messages unless told not to; at most 10,000 in one
/// call.
#[utoipa::path(
    post,
    path = "/v1/dead-letters/discard",
    operation_id = "discardDeadLetters",
    tag = "dead letters",
    request_body = DiscardRequest,
    responses(
        (status = 200, description = "How many are gone.", body = DiscardAnswer),
        ChangeDeadLettersProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn discard_dead_letters(
    app: State<App>,
    caller: Caller<Operates>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<DiscardAnswer>, Problem> {
    let request: DiscardRequest = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    app.run(async move {
        gateway.dead_letters(&caller.principal.tenant).discard(&caller.principal, request).await
    })
    .await
    .map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_what_is_none_is_told() {
        let parse = |text| Query::parse(Some(text)).and_then(read);
        let query = parse("type=a&destination=d&errorKind=Expired&limit=5&cursor=x").unwrap();
        assert_eq!(query.filter.r#type.as_deref(), Some("a"));
        assert_eq!((query.limit, query.cursor.as_deref()), (Some(5), Some("x")));
        for text in ["limit=0", "kind=x", "type=a&type=b"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
