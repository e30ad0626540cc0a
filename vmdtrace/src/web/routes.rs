//! What is served at which path.

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

use crate::metrics::{self, Detail, Selection};
use crate::snapshot::source::SnapshotSource;

/// Seconds after which a refused client may try again.
const RETRY_AFTER_SECONDS: &str = "1";

#[derive(Clone)]
struct App {
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    /// One permit per request that takes a Snapshot.
    requests: Arc<Semaphore>,
}

pub(super) fn router(
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    max_requests: usize,
) -> Router {
    Router::new()
        .route("/", get(landing))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(App {
            source,
            detail,
            requests: Arc::new(Semaphore::new(max_requests)),
        })
}

async fn metrics(
    State(app): State<App>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let pairs = parameters
        .iter()
        .map(|(key, name)| (key.as_str(), name.as_str()));
    let selection = match Selection::of_request(app.detail, pairs) {
        Ok(selection) => selection,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("400: {error}\n")).into_response(),
    };
    let scrape = app.blocking(move |source| metrics::scrape(source, selection));
    match scrape.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(refusal) => refusal.into_response(),
    }
}

/// The process is alive and answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether interrupts are being counted now.
async fn readyz(State(app): State<App>) -> Response {
    match app.blocking(|source| source.sums()).await {
        Ok(Ok(snapshot)) => match snapshot.interrupt_accounting() {
            Ok(()) => "ready: interrupts are being counted\n".into_response(),
            Err(reason) => {
                let text = format!("not ready: interrupts are not being counted: {reason}\n");
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        },
        Ok(Err(error)) => failed(&error),
        Err(refusal) => refusal.into_response(),
    }
}

async fn landing() -> Html<&'static str> {
    Html(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>vmdtrace</title></head>\n<body>\n",
        "<h1>vmdtrace ",
        env!("CARGO_PKG_VERSION"),
        "</h1>\n<p>What interrupts do behind an Intel VMD.</p>\n<ul>\n",
        "<li><a href=\"/metrics\">/metrics</a>: for Prometheus</li>\n",
        "<li><a href=\"/readyz\">/readyz</a>: whether interrupts are being counted</li>\n",
        "<li><a href=\"/healthz\">/healthz</a>: whether the process is alive</li>\n",
        "</ul>\n</body>\n</html>\n",
    ))
}

async fn not_found(uri: Uri) -> Response {
    let text = format!("404: nothing at {}; see /\n", uri.path());
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn method_not_allowed() -> Response {
    (
        StatusCode::METHOD_NOT_ALLOWED,
        "405: only GET and HEAD are served\n",
    )
        .into_response()
}

impl App {
    /// Runs `work` on a blocking thread, within the bound on requests. The
    /// permit goes with the work: a client that leaves does not free its place
    /// before the work is done.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<dyn SnapshotSource>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return Err(Refusal::Busy);
        };
        let source = Arc::clone(&self.source);
        let work = tokio::task::spawn_blocking(move || {
            let result = work(&source);
            drop(permit);
            result
        });
        work.await.map_err(|error| {
            tracing::error!("a request failed: {error}");
            Refusal::Failed
        })
    }
}

/// Why a request was not worked on to its end.
enum Refusal {
    Busy,
    /// The work panicked: a fault of ours.
    Failed,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                [(header::RETRY_AFTER, RETRY_AFTER_SECONDS)],
                "503: as many requests are running as --web.max-requests allows\n",
            )
                .into_response(),
            Self::Failed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "500: a fault of vmdtrace; see its log\n",
            )
                .into_response(),
        }
    }
}

/// A scrape that cannot tell the truth fails as a whole: Prometheus then
/// shows `up` as 0 and this text.
fn failed(error: &dyn Error) -> Response {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    tracing::error!("a request failed: {text}");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("500: {text}\n")).into_response()
}
