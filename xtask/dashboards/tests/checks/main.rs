//! Checks of dashboards and rules that need neither Prometheus nor Grafana.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod common;
mod lint;
mod queries;
mod rules;
