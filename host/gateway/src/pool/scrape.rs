//! Parses endpoints' load from their Prometheus metrics.
//!
//! | | vLLM, `foreword serve` | SGLang |
//! | --- | --- | --- |
//! | waiting | `vllm:num_requests_waiting` | `sglang:num_queue_reqs` |
//! | running | `vllm:num_requests_running` | `sglang:num_running_reqs` |
//! | KV cache in use | `vllm:kv_cache_usage_perc`, before 0.10 `vllm:gpu_cache_usage_perc` | `sglang:token_usage` |
//!
//! An endpoint may report a series for each of its engines. Requests are summed; of caches, the fullest counts.

use super::Load;

/// Returns the load in `metrics`; `None` if they have no number of waiting requests and so are not an engine's.
pub(crate) fn load(metrics: &[u8]) -> Option<Load> {
    let mut load = Load::default();
    let mut is_engine = false;
    for line in metrics.split(|byte| *byte == b'\n') {
        let Some((kind, rest)) = kind(line) else {
            continue;
        };
        let Some(value) = value(rest) else { continue };
        match kind {
            Kind::Waiting => {
                is_engine = true;
                load.waiting = load.waiting.saturating_add(count(value));
            }
            Kind::Running => load.running = load.running.saturating_add(count(value)),
            Kind::KvUsage => load.kv_usage = load.kv_usage.max(value),
        }
    }
    is_engine.then_some(load)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Waiting,
    Running,
    KvUsage,
}

/// Returns the kind of a line's metric, and the line after the metric's name; `None` for another metric.
fn kind(line: &[u8]) -> Option<(Kind, &[u8])> {
    // Most lines belong to other metrics.
    if !matches!(line.first(), Some(b'v' | b's')) {
        return None;
    }
    NAMES.iter().find_map(|(name, kind)| {
        let rest = line.strip_prefix(name.as_bytes())?;
        matches!(rest.first(), Some(b'{' | b' ' | b'\t')).then_some((*kind, rest))
    })
}

/// Returns the value of a series from the line after its name. Labels may contain braces and escaped quotes.
fn value(rest: &[u8]) -> Option<f64> {
    let mut rest = rest;
    if let Some(labels) = rest.strip_prefix(b"{") {
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = labels.iter().position(|byte| {
            let ends = *byte == b'}' && !is_quoted;
            if *byte == b'"' && !is_escaped {
                is_quoted = !is_quoted;
            }
            is_escaped = *byte == b'\\' && !is_escaped;
            ends
        })?;
        rest = labels.get(end + 1..)?;
    }
    let text = str::from_utf8(rest).ok()?;
    let value: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is not negative, and the cast saturates"
)]
fn count(value: f64) -> u64 {
    value as u64
}

const NAMES: [(&str, Kind); 7] = [
    ("vllm:num_requests_waiting", Kind::Waiting),
    ("vllm:num_requests_running", Kind::Running),
    ("vllm:kv_cache_usage_perc", Kind::KvUsage),
    ("vllm:gpu_cache_usage_perc", Kind::KvUsage),
    ("sglang:num_queue_reqs", Kind::Waiting),
    ("sglang:num_running_reqs", Kind::Running),
    ("sglang:token_usage", Kind::KvUsage),
];

/// Maximum number of bytes of metrics that are read. vLLM serves some hundred thousand.
pub(crate) const MAX_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests;
