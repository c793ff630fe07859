//! `GET /problems/{slug}`: what a problem's `type` leads to.

use axum::response::{Html, IntoResponse, Response};

use super::{Problem, kinds};
use crate::http::path::Path;

/// A short page on a kind of problem: what it means and what to do.
pub async fn problem_page(path: Path<String>) -> Result<Response, Problem> {
    let slug = &path.0;
    let kind = kinds::ALL
        .iter()
        .find(|kind| kind.slug == slug)
        .ok_or_else(|| Problem::new(kinds::NOT_FOUND, "There is no such kind of problem."))?;
    let (title, status) = (escape(kind.title), kind.status.as_u16());
    let (meaning, advice) = (code(kind.meaning), code(kind.advice));
    Ok(Html(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body><main>\n<h1>{title}</h1>\n<p><code>{slug}</code>, status {status}</p>\n\
         <h2>What it means</h2>\n<p>{meaning}</p>\n<h2>What to do</h2>\n<p>{advice}</p>\n</main></body></html>\n"
    ))
    .into_response())
}

/// Text between backticks as code.
fn code(text: &str) -> String {
    let escaped = escape(text);
    let mut html = String::with_capacity(escaped.len());
    for (place, part) in escaped.split('`').enumerate() {
        if place % 2 == 1 {
            html.push_str("<code>");
            html.push_str(part);
            html.push_str("</code>");
        } else {
            html.push_str(part);
        }
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_kind_has_a_page() {
        for kind in kinds::ALL {
            let response = problem_page(Path(kind.slug.to_owned())).await.unwrap();
            let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
            let page = String::from_utf8(bytes.to_vec()).unwrap();
            assert!(page.contains(&escape(kind.title)) && !page.contains('`'), "{page}");
        }
        assert!(problem_page(Path("nothing".into())).await.is_err());
    }
}
