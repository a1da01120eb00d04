//! Registers metrics, and exports them in the OpenMetrics text format.

use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Metric, Registry};
use std::fmt;

/// The header of a response with the result of [`openmetrics`].
pub const OPENMETRICS: [(HeaderName, &str); 1] = [(
    CONTENT_TYPE,
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
)];

/// Returns all metrics of `registry` in the OpenMetrics text format.
///
/// # Errors
/// Never fails in practice, since writing to a string does not fail.
pub fn openmetrics(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(text)
}

/// Returns a metric that is registered in `registry` with this name and help text.
pub fn registered<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}
