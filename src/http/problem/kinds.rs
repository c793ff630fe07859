//! The kinds of problems that the gateway answers with: one line of the interface's table each.

use axum::http::StatusCode;

/// A kind of problem. `slug` and `status` are promises; the texts may be improved at any time.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The last segment of the problem's `type`, `/problems/{slug}`.
    pub slug: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
    /// What it means, for the page at `/problems/{slug}`.
    pub meaning: &'static str,
    /// What to do about it, for the same page.
    pub advice: &'static str,
}

macro_rules! kinds {
    ($($name:ident = $status:ident $slug:literal $title:literal, $meaning:literal, $advice:literal;)*) => {
        $(pub const $name: &Kind = &Kind {
            slug: $slug, status: StatusCode::$status, title: $title, meaning: $meaning, advice: $advice,
        };)*
        /// Every kind, in the order of its status.
        pub const ALL: &[&Kind] = &[$($name),*];
    };
}

kinds! {
    MALFORMED_REQUEST = BAD_REQUEST "malformed-request" "The request is malformed",
        "The request's body, headers, path or query cannot be read as what the operation takes.",
        "`detail` and `errors` name the places. Correct them; the same request will be refused again.";
    IDEMPOTENCY_KEY_MISSING = BAD_REQUEST "idempotency-key-missing" "An Idempotency-Key is required",
        "The configuration requires an Idempotency-Key for this message type, and the request has none.",
        "Send `Idempotency-Key: \"…\"` with a value of your own that is unique per request, such as a UUID, and the same one when you repeat the request.";
    IDEMPOTENCY_KEY_MALFORMED = BAD_REQUEST "idempotency-key-malformed" "The Idempotency-Key is malformed",
        "The Idempotency-Key is empty, longer than 255 characters, holds control characters, is badly quoted, or comes more than once.",
        "Send one header line with 1 to 255 printable characters, bare or as a quoted string.";
    DEDUPLICATION_ID_MISSING = BAD_REQUEST "deduplication-id-missing" "A deduplication id is required",
        "The configuration deduplicates this message type, and neither the message nor a rule gives it a deduplication id.",
        "Set `deduplicationId` (or the header `Deduplication-Id`), or send the members from which the rules derive it. `POST /v1/explain` tells which rule applies.";
    UNAUTHENTICATED = UNAUTHORIZED "unauthenticated" "Who is calling is not known",
        "The request carries no credentials, or none that are valid.",
        "Send `Authorization: Bearer …` with an API key or a token that this gateway knows.";
    FORBIDDEN = FORBIDDEN "forbidden" "The caller may not do this",
        "The caller is known and has no grant for this operation, message type or destination.",
        "Ask the gateway's operator for the grant that `detail` names.";
    NOT_FOUND = NOT_FOUND "not-found" "There is nothing here",
        "No such path, or nothing under this name for this caller.",
        "Check the path and the id. What belongs to another tenant looks as if it did not exist, and what was delivered is forgotten after `history.keep`.";
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED "method-not-allowed" "The path does not take this method",
        "The path exists and does not answer to this method.",
        "Use one of the methods in the `Allow` header.";
    NOT_ACCEPTABLE = NOT_ACCEPTABLE "not-acceptable" "The answer has no form that the request accepts",
        "The request's `Accept` header excludes JSON, the only form in which this operation answers.",
        "Accept `application/json`, or leave the header out.";
    REQUEST_TIMEOUT = REQUEST_TIMEOUT "request-timeout" "The request's body did not arrive in time",
        "The whole body has to arrive within `server.limits.body_timeout`. Nothing was stored.",
        "Repeat the request, over a faster connection or with a smaller body.";
    IDEMPOTENCY_KEY_IN_FLIGHT = CONFLICT "idempotency-key-in-flight" "The first request with this key still runs",
        "Another request with the same Idempotency-Key has not ended yet. Nothing was done twice.",
        "Repeat the request after `Retry-After` to get the first one's answer.";
    RESPONSE_NOT_KEPT = CONFLICT "response-not-kept" "The first answer was not kept",
        "A request with the same Idempotency-Key was done, with the status in `originalStatus`; its answer was too large to keep.",
        "The work is done: do not repeat it. Ask for its result in another way.";
    DUPLICATE = CONFLICT "duplicate" "The work was asked for before",
        "Another message with the same deduplication id was accepted before, and the configuration answers that as a conflict.",
        "The members beside `detail` tell the first message, where it stands and until when the id is remembered. There is nothing to repeat.";
    WRONG_DURABILITY_MODE = CONFLICT "wrong-durability-mode" "The gateway runs in another durability mode",
        "This operation exists in one durability mode only, and the gateway runs in another.",
        "Change `durability.mode`, or leave the call out: in the other modes the gateway does this work by itself.";
    NOT_CANCELLABLE = CONFLICT "not-cancellable" "The message can no longer be cancelled",
        "Some of the message's deliveries are due, under way, made or given up on.",
        "Cancel a message before its `deliverAt`. `GET /v1/messages/{id}` tells where it stands.";
    CLAIM_HELD = CONFLICT "claim-held" "Somebody else holds the claim",
        "The id is claimed by somebody whose lease has not ended.",
        "Try again after `Retry-After`: by then it is confirmed, released, or free to be taken over.";
    CLAIM_LOST = CONFLICT "claim-lost" "The claim's token no longer holds",
        "The lease ended and the claim was taken over, confirmed or released under another token.",
        "Stop the work that was done under this claim; claim anew to go on.";
    TOO_LARGE = PAYLOAD_TOO_LARGE "too-large" "The request is too large",
        "The body, or the number of messages in it, is over the gateway's limits.",
        "Send less at a time. `detail` names the limit; an operator can raise it in `server.limits`.";
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "The body has a form that the operation does not take",
        "The request's `Content-Type` is none of those that this operation reads, or it has a `Content-Encoding`.",
        "Send one of the content types that `detail` names, not compressed. `POST /v1/publish/{type}` takes a body of any content type.";
    IDEMPOTENCY_KEY_REUSED = UNPROCESSABLE_ENTITY "idempotency-key-reused" "The Idempotency-Key belongs to another request",
        "A request with the same Idempotency-Key and another body, query, path or input header was made before.",
        "Use a new key for every new request, and repeat a request exactly.";
    SCHEMA_VIOLATION = UNPROCESSABLE_ENTITY "schema-violation" "The data does not match the type's schema",
        "The operator has given this message type a JSON Schema, and the data violates it.",
        "`errors` names the places. Correct the data.";
    UNROUTABLE = UNPROCESSABLE_ENTITY "unroutable" "Nobody takes this message",
        "No route, handler or destination takes this message. Nothing was stored.",
        "Check the type and the names of the destinations, or have the operator add a route.";
    SCHEDULING_UNAVAILABLE = UNPROCESSABLE_ENTITY "scheduling-unavailable" "Messages cannot be scheduled here",
        "The moment lies where this gateway cannot schedule: in a mode that stores nothing, or beyond its horizon.",
        "Publish the message when it is due, or choose a moment that `detail` allows.";
    RATE_LIMITED = TOO_MANY_REQUESTS "rate-limited" "The caller asks too often",
        "The caller has used up its rate of requests.",
        "Repeat the request after `Retry-After`.";
    INTERNAL = INTERNAL_SERVER_ERROR "internal" "The gateway has a defect",
        "The gateway met a state that it should never be in. The log holds the reason under the request's id.",
        "Repeat the request, and tell the operator the `requestId` if it goes on.";
    PUSH_AGAIN = INTERNAL_SERVER_ERROR "push-again" "What was pushed is to be pushed again",
        "The handler failed, did not answer in time, or runs for an earlier push of the same message.",
        "Push it again, as senders do by themselves. `GET /v1/targets` tells how the handler is.";
    HANDLER_FAILED = BAD_GATEWAY "handler-failed" "The handler failed",
        "The handler was not reached, its connection was lost, it answered 5xx, or its reply publishes what cannot be accepted. `Proxy-Status` tells which.",
        "Repeat the request, with the same Idempotency-Key. If the connection was lost, the key is in flight until twice the handler's timeout has passed.";
    DESTINATION_FAILED = BAD_GATEWAY "destination-failed" "A destination did not take the message",
        "The gateway sends before it answers, and the destination was not reached or did not take the message. Nothing was stored, and the Idempotency-Key and the deduplication id are free again.",
        "Repeat the request after `Retry-After`. Where the answer has none, the destination will never take this message: change it.";
    STORE_UNAVAILABLE = SERVICE_UNAVAILABLE "store-unavailable" "The store cannot be used just now",
        "The gateway cannot reach its database, or not write to it. Nothing of the request was stored.",
        "Repeat the request after `Retry-After`.";
    OVERLOADED = SERVICE_UNAVAILABLE "overloaded" "The gateway is overloaded",
        "More requests are waiting than the gateway keeps. Nothing of the request was stored.",
        "Repeat the request after `Retry-After`.";
    OUTCOME_UNKNOWN = SERVICE_UNAVAILABLE "outcome-unknown" "Whether it was stored is not known",
        "The database's answer to the commit was lost: the request may or may not be stored.",
        "Repeat it after `Retry-After`. With an Idempotency-Key or a deduplication id that is safe; without one it may publish twice.";
    HANDLER_TIMEOUT = GATEWAY_TIMEOUT "handler-timeout" "The handler did not answer in time",
        "The handler got the request and did not answer within its `timeout`. Whether it did its work is not known.",
        "Repeat the request with the same Idempotency-Key: it is in flight (409) until the handler's connection ends or twice its timeout has passed, and then runs again, unless the configuration keeps it.";
}

/// The kind that an answer of this status, made by something below the handlers, comes closest to.
pub fn of_status(status: StatusCode) -> &'static Kind {
    match status {
        StatusCode::NOT_FOUND => NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED => METHOD_NOT_ALLOWED,
        StatusCode::PAYLOAD_TOO_LARGE => TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => UNSUPPORTED_MEDIA_TYPE,
        status if status.is_client_error() => MALFORMED_REQUEST,
        _ => INTERNAL,
    }
}
