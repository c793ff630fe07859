//! `POST /v1/publish`: one message, in the native form or as a CloudEvent.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::app::App;
use super::caller::{Caller, Publishes};
use super::input::Input;
use super::problem::Problem;
use super::publishing::{self, PublishAnswers};
use super::query::NoQuery;
use super::{members, schema};
use crate::domain::message::Draft;
use crate::domain::{cloudevents, native};
use crate::gateway::publish::Form;

const NATIVE: &str = "application/json";

/// Publish a message
///
/// The body is the message: in the gateway's own form, or a CloudEvent (1.0) in structured mode. A CloudEvent
/// in binary mode, whose attributes are `ce-*` headers and whose body is the data, is taken as well: any
/// request with a `ce-` header is one. The answer leaves after the message is stored.
#[utoipa::path(
    post,
    path = "/v1/publish",
    operation_id = "publishMessage",
    tag = "publish",
    params(publishing::RequestHeaders),
    request_body(description = "The message.", content(
        (schema::NewMessage = "application/json"),
        (schema::CloudEvent = "application/cloudevents+json"),
    )),
    responses(PublishAnswers, publishing::PublishProblems),
    security(("bearer" = [])),
)]
pub async fn publish_message(
    app: State<App>,
    caller: Caller<Publishes>,
    _query: NoQuery,
    input: Input,
) -> Result<Response, Problem> {
    let draft = one(&app, &input)?;
    publishing::publish(&app, caller.principal, Form::Single, vec![draft], &input).await
}

/// Reads the one message that a request is, in whichever form.
pub fn one(app: &App, input: &Input) -> Result<Draft, Problem> {
    members::none(&input.headers)?;
    let (limits, now) = (app.gateway.limits(), app.gateway.clock().now());
    let content_type = input.content_type()?;
    let draft = if content_type.and_then(cloudevents::mode).is_none() && has_attributes(&input.headers) {
        let headers = input.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        cloudevents::binary(headers, content_type, input.body.clone(), limits, now)
    } else if input.form(&[NATIVE, cloudevents::STRUCTURED_JSON])? == NATIVE {
        native::one(&input.body, limits, now)
    } else {
        cloudevents::structured(&input.body, limits, now)
    };
    Ok(draft?)
}

/// Whether a CloudEvent's attributes are headers.
fn has_attributes(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("ce-"))
}
