//! The host calls that the filter needs.
//!
//! They are implemented by `proxy` with proxy-wasm host calls, and by a scripted host in the tests. Every call can
//! fail, because every proxy can refuse; no caller may treat a failure as impossible.

use std::net::SocketAddr;

use foreword_ordering::EngineId;
use thiserror::Error;

/// An endpoint picker's pool of engines, as seen by one request. It replaces `engines` in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnginePool {
    /// The pool's engines. Each keeps its id while it is in the pool.
    pub engines: Vec<PoolEngine>,
    /// The maximum number of addresses to send after the chosen engine's, as fallbacks for Envoy's retries.
    pub fallbacks: usize,
}

/// An engine of an [`EnginePool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolEngine {
    /// The engine's id.
    pub engine: EngineId,
    /// The address that requests are sent to.
    pub address: SocketAddr,
    /// True if the request may go to this engine.
    pub is_eligible: bool,
    /// True if the engine is so busy that it receives a request only if all others are too.
    pub is_saturated: bool,
    /// Number of requests that wait at the engine, as it reports; 0 without a report.
    pub waiting: u64,
    /// Number of requests that the engine is computing, as it reports, plus those sent since; 0 without a report.
    pub running: u64,
}

impl EnginePool {
    /// Returns the engine with that id, if the request may go to it.
    pub(crate) fn eligible(&self, engine: EngineId) -> Option<&PoolEngine> {
        let mut engines = self.engines.iter();
        engines.find(|it| it.engine == engine && it.is_eligible)
    }
}

/// The response to a [`Host::call_for_plugin`] or a [`Host::call_for_request`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallResponse<'a> {
    /// The status; `None` if there was no response.
    pub(crate) status: Option<u16>,
    /// The whole body; `None` if it exceeds the limit.
    pub(crate) body: Option<&'a [u8]>,
}

/// The host calls of the surrounding proxy. They apply to the request whose callback is running.
///
/// Request headers may be read and changed from the request-headers callback on, until the first request callback that
/// forwards the request; the body from its first callback on. In response callbacks the request is no longer available,
/// so store what you need of it.
pub trait Host {
    /// Returns the first value of the request header `name` (lower case, or a pseudo-header such as `:path`).
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns all values of the request header `name`, as often as the client sent it.
    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError>;

    /// Replaces all values of a request header, or adds the header.
    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError>;

    /// Removes all values of a request header. An absent header is not an error.
    fn remove_request_header(&self, name: &str) -> Result<(), HostError>;

    /// Replaces all values of a response header, or adds the header.
    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError>;

    /// Returns the first value of the response header `name` (lower case, or `:status`). Only in response callbacks.
    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns `size` bytes of the current chunk of the response body, from `from` on.
    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError>;

    /// Returns the first `size` bytes of the buffered request body, fewer if it is shorter.
    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError>;

    /// Replaces the first `size` bytes of the buffered request body with `body`.
    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError>;

    /// Responds to the client now; the request is not forwarded.
    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError>;

    /// Returns whether [`Host::property`] can read a request's nested dynamic metadata.
    fn has_metadata(&self) -> bool;

    /// Returns a variable of the proxy's environment, if the filter may read it.
    fn environment(&self, name: &str) -> Option<String>;

    /// Writes names and values for access logs, as `foreword.<name>`. Does nothing if another Foreword in the filter
    /// chain has already written the first name. Called once, when the request is over.
    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError>;

    /// Returns the value of `key` in shared data, and its compare-and-swap number; `None` if there is no value.
    ///
    /// Shared data belongs to the whole proxy, all worker threads, and outlives plugins. A compare-and-swap works only
    /// on an existing value.
    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError>;

    /// Sets shared data; with `unchanged_since`, only if the value still has that compare-and-swap number. Returns
    /// whether it was set.
    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError>;

    /// Returns a property of the proxy or of the request, as the proxy encodes it; `None` if there is none.
    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError>;

    /// Sends a request to a cluster of the proxy, without a body if `body` is empty, and returns the call's number. The
    /// response is passed to [`Plugin::on_answer`](crate::Plugin::on_answer), within `limit_ms`.
    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError>;

    /// Sends a request with a body to a cluster of the proxy, for the request whose callback is running, and returns
    /// the call's number, unique within the request. The response is passed to
    /// [`Exchange::on_answer`](crate::Exchange::on_answer), within `limit_ms`, unless the request ends before.
    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError>;

    /// Returns the shell's pool of engines, as seen by the current request. `None` if the shell has no pool: the
    /// engines are those of the configuration. Whether a shell has a pool must not change after the plugin is loaded.
    fn pool(&self) -> Option<EnginePool> {
        None
    }

    /// Resumes the current request, which a request callback has held. Must not be called from a request callback.
    fn resume(&self) -> Result<(), HostError>;

    /// Returns a function that resumes the current request, which a request callback is about to hold. It is called
    /// from callbacks of other requests or of the plugin, through [`Host::resume_other`], or dropped. `None` if the
    /// shell cannot do that.
    fn resumer(&self) -> Option<Resumer> {
        None
    }

    /// Resumes a held request other than the current one. `resumer` is what [`Host::resumer`] returned for that
    /// request.
    fn resume_other(&self, resumer: Resumer) {
        resumer();
    }

    /// Returns the size of the VM's linear memory, in bytes; `None` if the filter runs in the proxy's own memory.
    fn memory_bytes(&self) -> Option<u64>;

    /// Defines a counter, or returns the existing one of that name.
    fn define_counter(&self, name: &str) -> Result<MetricId, HostError>;

    /// Defines a histogram, or returns the existing one of that name.
    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError>;

    /// Adds to a counter, at once or with a delay. Never called with zero, which Envoy refuses.
    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError>;

    /// Records one sample in a histogram, at once or with a delay.
    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError>;

    /// Returns nanoseconds since a fixed moment, to measure durations: the wall clock, which may be set back.
    fn now_ns(&self) -> u64;

    /// Returns the same clock in milliseconds.
    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }

    /// Writes a line to the proxy's log. Never pass text of a request.
    fn log(&self, level: LogLevel, message: &str);
}

/// A function that resumes a held request. Any thread may call it.
pub type Resumer = Box<dyn FnOnce() + Send>;

/// Identifies a counter or histogram within one plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricId(pub u32);

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// A plugin was loaded, or a feed can be followed again.
    Info,
    /// A call to the proxy, a feed or an exchange between gateways failed.
    Warn,
    /// The configuration was refused.
    Error,
}

/// The proxy refused a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the proxy refused {call} (status {status})")]
pub struct HostError {
    /// Name of the call.
    pub call: &'static str,
    /// Status code of the proxy.
    pub status: u32,
}
