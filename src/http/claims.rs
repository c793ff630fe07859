//! `/v1/claims`: for consumers that read the broker themselves.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::caller::{Caller, Claims, ClaimsOrReads};
use super::input::Input;
use super::openapi::problems;
use super::problem::{Place, Problem};
use super::query::{NoQuery, Query};
use crate::gateway::Error;
use crate::gateway::claims::{
    ClaimAnswer, ClaimHolder, ClaimRenewal, ClaimRequest, ClaimView, ConfirmAnswer, RenewAnswer,
};

problems!(TakeClaimProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, REQUEST_TIMEOUT, CLAIM_HELD, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

problems!(HoldClaimProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, REQUEST_TIMEOUT, CLAIM_LOST, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

problems!(GetClaimProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE,
    OVERLOADED,
);

/// Claim work before doing it
///
/// Granted, do the work and confirm; a duplicate is done already; held, somebody else is at it. A consumer
/// that dies holds nothing up for longer than its lease.
#[utoipa::path(
    post,
    path = "/v1/claims",
    operation_id = "takeClaim",
    tag = "claims",
    request_body = ClaimRequest,
    responses(
        (status = 201, description = "Granted: the work is yours until the lease ends.", body = ClaimAnswer),
        (status = 200, description = "A duplicate: the work is done.", body = ClaimAnswer),
        TakeClaimProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn take_claim(
    app: State<App>,
    caller: Caller<Claims>,
    _query: NoQuery,
    input: Input,
) -> Result<Response, Problem> {
    let request: ClaimRequest = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    let answer = app.run(async move { gateway.claim(&caller.principal, request).await }).await?;
    let status = match answer {
        ClaimAnswer::Claimed { .. } => StatusCode::CREATED,
        ClaimAnswer::Duplicate { .. } => StatusCode::OK,
    };
    Ok((status, Json(answer)).into_response())
}

/// Renew a claim while the work takes longer
#[utoipa::path(
    post,
    path = "/v1/claims/renew",
    operation_id = "renewClaim",
    tag = "claims",
    request_body = ClaimRenewal,
    responses(
        (status = 200, description = "Yours for another lease, from now.", body = RenewAnswer),
        HoldClaimProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn renew_claim(
    app: State<App>,
    caller: Caller<Claims>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<RenewAnswer>, Problem> {
    let holder: ClaimRenewal = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    app.run(async move { gateway.renew_claim(&caller.principal, holder).await }).await.map(Json)
}

/// Confirm that the claimed work is done
///
/// From now on, and until its window ends, the id is a duplicate. Confirming again gives the same answer.
#[utoipa::path(
    post,
    path = "/v1/claims/confirm",
    operation_id = "confirmClaim",
    tag = "claims",
    request_body = ClaimHolder,
    responses(
        (status = 200, description = "Confirmed.", body = ConfirmAnswer),
        HoldClaimProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn confirm_claim(
    app: State<App>,
    caller: Caller<Claims>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<ConfirmAnswer>, Problem> {
    let holder: ClaimHolder = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    app.run(async move { gateway.confirm_claim(&caller.principal, holder).await }).await.map(Json)
}

/// Release a claim: the work is not done
#[utoipa::path(
    post,
    path = "/v1/claims/release",
    operation_id = "releaseClaim",
    tag = "claims",
    request_body = ClaimHolder,
    responses((status = 204, description = "Released: the next one may claim it."), HoldClaimProblems),
    security(("bearer" = [])),
)]
pub async fn release_claim(
    app: State<App>,
    caller: Caller<Claims>,
    _query: NoQuery,
    input: Input,
) -> Result<StatusCode, Problem> {
    let holder: ClaimHolder = input.json(app.gateway.limits().json_depth)?;
    let gateway = app.gateway.clone();
    app.run(async move { gateway.release_claim(&caller.principal, holder).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Look a claim up
///
/// A consumer's; with the grant `operate:read` also that of a published message, whose scope is its type.
#[utoipa::path(
    get,
    path = "/v1/claims",
    operation_id = "getClaim",
    tag = "claims",
    params(
        ("scope" = String, Query, description = "The claim's scope.", min_length = 1, max_length = 255,
            pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"),
        ("id" = String, Query, description = "The claim's id.", min_length = 1, max_length = 512,
            pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"),
    ),
    responses((status = 200, description = "The claim that stands.", body = ClaimView), GetClaimProblems),
    security(("bearer" = [])),
)]
pub async fn get_claim(
    app: State<App>,
    caller: Caller<ClaimsOrReads>,
    query: Query,
) -> Result<Json<ClaimView>, Problem> {
    let (scope, id) = named(query)?;
    app.gateway.look_up_claim(&caller.principal, &scope, &id).await.map(Json).map_err(in_query)
}

fn named(mut query: Query) -> Result<(String, String), Problem> {
    let mut needed =
        |name| query.take(name).ok_or_else(|| Problem::malformed_at(format!("query {name}"), "is needed"));
    let named = (needed("scope")?, needed("id")?);
    query.finish()?;
    Ok(named)
}

/// The use case names members; here they are query parameters.
fn in_query(error: Error) -> Problem {
    match error {
        Error::Malformed { detail, errors } => {
            let moved = |place: Place| Place::new(place.pointer.replacen('/', "query ", 1), place.detail);
            Problem::malformed(detail).errors(errors.into_iter().map(moved).collect())
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_needs_a_scope_and_an_id() {
        let read = |text| Query::parse(Some(text)).and_then(named);
        assert_eq!(read("scope=billing&id=a%2Fb").unwrap(), ("billing".into(), "a/b".into()));
        for text in ["", "scope=a", "id=a", "scope=a&id=b&x=c"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_those_of_the_request() {
        let problem = in_query(Error::malformed_at("d", vec![Place::new("/scope", "must not be empty")]));
        assert_eq!(problem.places()[0].pointer, "query scope");
    }
}
