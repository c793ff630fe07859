//! `/openapi.json`, and `/docs`: a page to read and try it, served from the binary.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use utoipa_swagger_ui::Config;

use super::openapi;
use super::path::Path;
use super::problem::{Problem, kinds};

pub async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], openapi::json()).into_response()
}

/// The page's own links are relative to `/docs/`.
pub async fn to_page() -> Redirect {
    Redirect::permanent("/docs/")
}

pub async fn page() -> Result<Response, Problem> {
    serve("index.html")
}

pub async fn file(path: Path<String>) -> Result<Response, Problem> {
    serve(&path.0)
}

fn serve(name: &str) -> Result<Response, Problem> {
    static CONFIG: OnceLock<Arc<Config<'static>>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let config = Config::from("/openapi.json")
            .try_it_out_enabled(true)
            .display_operation_id(true)
            .deep_linking(true);
        Arc::new(config.persist_authorization(true).validator_url("none"))
    });
    match utoipa_swagger_ui::serve(name, Arc::clone(config)) {
        Ok(Some(file)) => {
            let mut response = file.bytes.into_owned().into_response();
            let kind = HeaderValue::from_str(&file.content_type);
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                kind.unwrap_or(HeaderValue::from_static("application/octet-stream")),
            );
            Ok(response)
        }
        Ok(None) => Err(Problem::new(kinds::NOT_FOUND, "The page has no such file.")),
        Err(error) => {
            tracing::error!(%error, "the documentation's page cannot be served");
            Err(super::problem::internal())
        }
    }
}
