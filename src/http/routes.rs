//! Every path of the gateway. A test compares this table with the OpenAPI document, both ways.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodFilter, MethodRouter};

use super::app::App;
use super::{
    claims, dead_letters, docs, durability, explain, health, invoke, messages, metrics, problem, publish,
    publish_batch, publish_by_type, push, targets,
};

/// An operation that the OpenAPI document describes.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    endpoint: MethodRouter<App>,
}

/// The operations of the OpenAPI document.
pub fn operations() -> Vec<Route> {
    vec![
        post("/v1/publish", publish::publish_message),
        post("/v1/publish/{type}", publish_by_type::publish_message_of_type),
        post("/v1/publish-batch", publish_batch::publish_batch),
        post("/v1/explain", explain::explain_message),
        post("/v1/invoke/{type}", invoke::invoke_handler),
        post("/v1/push/{receiver}", push::push),
        options("/v1/push/{receiver}", push::may_push),
        get("/v1/messages", messages::list_messages),
        get("/v1/messages/{id}", messages::get_message),
        delete("/v1/messages/{id}", messages::cancel_message),
        post("/v1/durability/pass", durability::run_durability_pass),
        get("/v1/targets", targets::list_targets),
        post("/v1/targets/{name}/pause", targets::pause_target),
        post("/v1/targets/{name}/resume", targets::resume_target),
        get("/v1/dead-letters", dead_letters::list_dead_letters),
        get("/v1/dead-letters/summary", dead_letters::summarise_dead_letters),
        post("/v1/dead-letters/replay", dead_letters::replay_dead_letters),
        post("/v1/dead-letters/discard", dead_letters::discard_dead_letters),
        get("/v1/dead-letters/{id}", dead_letters::get_dead_letter),
        patch("/v1/dead-letters/{id}", dead_letters::edit_dead_letter),
        post("/v1/claims", claims::take_claim),
        get("/v1/claims", claims::get_claim),
        post("/v1/claims/renew", claims::renew_claim),
        post("/v1/claims/confirm", claims::confirm_claim),
        post("/v1/claims/release", claims::release_claim),
        get("/healthz", health::get_liveness),
        get("/readyz", health::get_readiness),
        get("/metrics", metrics::get_metrics),
    ]
}

/// What is asked of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Everything: there is no other.
    Only,
    /// Everything but the metrics: there is one for them.
    Public,
    /// The node's own state.
    Admin,
}

impl Port {
    fn answers(self, path: &str) -> bool {
        match self {
            Self::Only => true,
            Self::Public => path != "/metrics",
            Self::Admin => matches!(path, "/healthz" | "/readyz" | "/metrics"),
        }
    }
}

/// The router of a port.
pub fn router(app: App, port: Port) -> Router {
    let router = operations()
        .into_iter()
        .filter(|route| port.answers(route.path))
        .fold(Router::new(), |router, route| router.route(route.path, route.endpoint))
        .route("/problems/{slug}", routing::get(problem::page::problem_page));
    if port == Port::Admin {
        return router.with_state(app);
    }
    let router = router
        .route("/openapi.json", routing::get(docs::openapi_json))
        .route("/docs", routing::get(docs::to_page))
        .route("/docs/", routing::get(docs::page))
        .route("/docs/{*file}", routing::get(docs::file));
    router.with_state(app)
}

fn get<H: Handler<T, App>, T: 'static>(path: &'static str, handler: H) -> Route {
    Route { method: Method::GET, path, endpoint: routing::on(MethodFilter::GET, handler) }
}

fn post<H: Handler<T, App>, T: 'static>(path: &'static str, handler: H) -> Route {
    Route { method: Method::POST, path, endpoint: routing::on(MethodFilter::POST, handler) }
}

fn options<H: Handler<T, App>, T: 'static>(path: &'static str, handler: H) -> Route {
    Route { method: Method::OPTIONS, path, endpoint: routing::on(MethodFilter::OPTIONS, handler) }
}

fn delete<H: Handler<T, App>, T: 'static>(path: &'static str, handler: H) -> Route {
    Route { method: Method::DELETE, path, endpoint: routing::on(MethodFilter::DELETE, handler) }
}

fn patch<H: Handler<T, App>, T: 'static>(path: &'static str, handler: H) -> Route {
    Route { method: Method::PATCH, path, endpoint: routing::on(MethodFilter::PATCH, handler) }
}
