//! Short HTTP requests to servers on this machine's loopback.

use std::time::Duration;

use crate::error::{LabError, Result};

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl HttpResponse {
    /// The body of a response that says it is well.
    ///
    /// # Errors
    /// When the status is not 200; the text holds the body.
    pub fn ok(self, what: &str) -> Result<String> {
        if self.status == 200 {
            return Ok(self.body);
        }
        Err(LabError::failed(format!(
            "{what}: HTTP status {}: {}",
            self.status,
            self.body.trim()
        )))
    }
}

/// Asks for a page.
pub(crate) fn get(
    url: &str,
    query: &[(&str, &str)],
    limit: Duration,
) -> std::result::Result<HttpResponse, ureq::Error> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        .http_status_as_error(false)
        // No proxy: these servers are on this machine.
        .proxy(None)
        .max_redirects(0)
        .build()
        .into();
    let mut response = agent.get(url).query_pairs(query.iter().copied()).call()?;
    let content_type = response
        .headers()
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let body = response.body_mut().read_to_string()?;
    Ok(HttpResponse {
        status: response.status().as_u16(),
        content_type,
        body,
    })
}
