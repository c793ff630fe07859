//! `POST /v1/durability/pass`: one bounded round of what is due.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::caller::PassCaller;
use super::openapi::problems;
use super::problem::{AsItIs, Problem};
use super::query::Query;
use crate::domain::duration;
use crate::gateway::pass::{Bounds, Report};

problems!(RunPassProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, WRONG_DURABILITY_MODE, INTERNAL,
);

/// Run a durability pass
///
/// Accepts what came by the intake, makes due deliveries and purges what expired, in all stores, within the time and
/// the batch size. Call it again while `hasMoreWork`. A store that another pass is working on is skipped. In the
/// durability mode `serverless-with-outbox` only.
#[utoipa::path(
    post,
    path = "/v1/durability/pass",
    operation_id = "runDurabilityPass",
    tag = "durability",
    params(
        ("maxDuration" = Option<String>, Query, nullable = false, description = "How long it goes on: seconds, or a duration such as `30s`. More than the cap (5 minutes) is lowered to it.", pattern = "^[1-9][0-9]{0,5}s?$", example = "30"),
        ("batchSize" = Option<u32>, Query, nullable = false, minimum = 1, description = "Rows per step and store. More than the cap (1000) is lowered to it."),
    ),
    responses(
        (status = 200, description = "No step failed.", body = Report),
        (status = 500, description = "A step failed; the others ran all the same.", content(
            (Report = "application/json"),
            (crate::http::problem::Document = "application/problem+json"),
        )),
        RunPassProblems,
    ),
    security((), ("bearer" = [])),
)]
pub async fn run_durability_pass(
    app: State<App>,
    caller: PassCaller,
    mut query: Query,
) -> Result<Response, Problem> {
    let bounds = Bounds {
        max_duration: query.take("maxDuration").map(|text| max_duration(&text)).transpose()?,
        batch_size: query.take("batchSize").map(|text| batch_size(&text)).transpose()?,
    };
    query.finish()?;
    let gateway = app.gateway.clone();
    let report: Report = app.run(async move { gateway.pass(caller.0, bounds).await }).await?;
    let status = if report.succeeded() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let mut answer = (status, Json(report)).into_response();
    // The report is the answer, whatever its status.
    answer.extensions_mut().insert(AsItIs);
    Ok(answer)
}

/// Seconds, or a duration.
fn max_duration(text: &str) -> Result<Duration, Problem> {
    let read = match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration::parse(text),
    };
    match read {
        Ok(read) if !read.is_zero() => Ok(read),
        _ => {
            let text = "has to be a number of seconds from 1 on, or a duration such as `30s`";
            Err(Problem::malformed_at("query maxDuration", text))
        }
    }
}

fn batch_size(text: &str) -> Result<u32, Problem> {
    match text.parse::<u64>() {
        Ok(rows) if rows > 0 => Ok(u32::try_from(rows).unwrap_or(u32::MAX)),
        _ => Err(Problem::malformed_at("query batchSize", "has to be a whole number from 1 on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_positive() {
        assert_eq!(max_duration("2").unwrap(), Duration::from_secs(2));
        assert_eq!(max_duration("2s").unwrap(), Duration::from_secs(2));
        assert_eq!(max_duration("PT1M").unwrap(), Duration::from_secs(60));
        assert_eq!(batch_size("99999999999").unwrap(), u32::MAX);
        for text in ["", "0", "0s", "-1", "-1s", "soon", "1.5.2"] {
            assert!(max_duration(text).is_err(), "{text}");
            assert!(batch_size(text).is_err(), "{text}");
        }
    }
}
