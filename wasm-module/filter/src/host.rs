//! The calls into the surrounding proxy (the host) that the filter needs.
//!
//! They are implemented by `proxy` with proxy-wasm host calls, and by a scripted host in the tests. Every call can
//! fail, because every proxy can refuse; no caller may treat a failure as impossible.

use std::net::SocketAddr;

use foreword_ordering::EngineId;
use thiserror::Error;

/// A pool of engines that an endpoint picker maintains, with their state at the time of one request. It replaces the
/// list `engines` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnginePool {
    /// The pool's engines. Each keeps its id while it is in the pool.
    pub engines: Vec<PoolEngine>,
    /// The maximum number of addresses of other engines to send to Envoy after the chosen engine's, so that it can
    /// retry a request there.
    pub fallbacks: usize,
}

/// An engine of an [`EnginePool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolEngine {
    /// The id by which the filter identifies the engine.
    pub engine: EngineId,
    /// The engine's address, to which Envoy sends requests.
    pub address: SocketAddr,
    /// True if the endpoint picker allows the current request to go to this engine.
    pub is_eligible: bool,
    /// True if the engine is so busy that it receives a request only if all other eligible engines are saturated too.
    pub is_saturated: bool,
    /// Number of requests in the engine's queue, as the engine reports it; 0 if it has not reported.
    pub waiting: u64,
    /// Number of requests that the engine is computing, as the engine reports it, plus those sent to it since that
    /// report; 0 if it has not reported.
    pub running: u64,
}

impl EnginePool {
    /// Returns the pool's engine with the id `engine`; `None` if it is not in the pool, or the current request may not
    /// go to it.
    pub(crate) fn eligible(&self, engine: EngineId) -> Option<&PoolEngine> {
        let mut engines = self.engines.iter();
        engines.find(|it| it.engine == engine && it.is_eligible)
    }
}

/// The response to a [`Host::call_for_plugin`] or a [`Host::call_for_request`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallResponse<'a> {
    /// The HTTP status of the response; `None` if there was no response.
    pub(crate) status: Option<u16>,
    /// The whole body of the response; `None` if it is longer than the filter accepts.
    pub(crate) body: Option<&'a [u8]>,
}

/// The calls into the surrounding proxy. Calls about a request apply to the request whose callback is running.
///
/// Request headers may be read and changed from the request-headers callback on, until the first request callback that
/// forwards the request; the request body from its first callback on. In response callbacks neither headers nor body of
/// the request are available, so a caller must copy what it needs later.
pub trait Host {
    /// Returns the first value of the request header `name` (lower case, or a pseudo-header such as `:path`).
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns all values of the request header `name`, one for each time that the client sent the header.
    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError>;

    /// Replaces all values of a request header, or adds the header if it is absent.
    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError>;

    /// Removes all values of a request header. An absent header is not an error.
    fn remove_request_header(&self, name: &str) -> Result<(), HostError>;

    /// Replaces all values of a response header, or adds the header if it is absent.
    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError>;

    /// Returns the first value of the response header `name` (lower case, or `:status`). May be called only in response
    /// callbacks.
    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns `size` bytes of the chunk of the response body whose callback is running, from offset `from` on.
    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError>;

    /// Returns the first `size` bytes of the buffered request body, fewer if it is shorter.
    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError>;

    /// Replaces the first `size` bytes of the buffered request body with `body`.
    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError>;

    /// Responds to the client now; the request is not forwarded.
    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError>;

    /// Returns whether [`Host::property`] can read nested values of a request's dynamic metadata (values that other
    /// Envoy filters attached to it).
    fn has_metadata(&self) -> bool;

    /// Returns the value of an environment variable of the proxy; `None` if it is unset or the filter may not read it.
    fn environment(&self, name: &str) -> Option<String>;

    /// Writes pairs of name and value for access logs, each as `foreword.<name>`. Writes nothing if another Foreword
    /// filter of the same request has already written the first name. Called once, when the request has ended.
    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError>;

    /// Returns the value of `key` in shared data, and the compare-and-swap number that changes with each write; `None`
    /// if there is no value.
    ///
    /// Shared data is the proxy's key-value store for all its worker threads. It outlives plugins. A compare-and-swap
    /// works only on an existing value.
    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError>;

    /// Sets the value of `key` in shared data. If `unchanged_since` is given, sets it only if the current value still
    /// has that compare-and-swap number. Returns whether the value was set.
    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError>;

    /// Returns a property (an attribute such as `upstream.address`) of the proxy or of the current request, as the
    /// proxy encodes it. `path` has the parts of its name. `None` if there is no such property.
    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError>;

    /// Sends a request to an Envoy cluster on behalf of the plugin, without a body if `body` is empty, and returns the
    /// call's number. The proxy passes the response, or a failure after at most `limit_ms` milliseconds, to
    /// [`Plugin::on_answer`](crate::Plugin::on_answer).
    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError>;

    /// Sends a request with a body to an Envoy cluster on behalf of the request whose callback is running. Returns the
    /// call's number, unique within that request. The proxy passes the response, or a failure after at most `limit_ms`
    /// milliseconds, to [`Exchange::on_answer`](crate::Exchange::on_answer), unless the request ends before.
    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError>;

    /// Returns the endpoint picker's pool of engines, with their state for the current request. `None` if the module
    /// that embeds the filter has no pool: the engines are then those of the configuration. Whether it has a pool must
    /// not change after the plugin is loaded.
    fn pool(&self) -> Option<EnginePool> {
        None
    }

    /// Resumes the current request, which an earlier request callback has paused. Must not be called from a request
    /// callback.
    fn resume(&self) -> Result<(), HostError>;

    /// Returns a function that resumes the current request, which the running request callback is about to pause. The
    /// filter passes it to [`Host::resume_other`] in a callback of another request or of the plugin, or drops it.
    /// `None` if the module that embeds the filter cannot resume a request from other callbacks.
    fn resumer(&self) -> Option<Resumer> {
        None
    }

    /// Resumes a paused request other than the current one. `resumer` is the function that [`Host::resumer`] returned
    /// for it.
    fn resume_other(&self, resumer: Resumer) {
        resumer();
    }

    /// Returns the size of the VM's linear memory, in bytes; `None` if the filter runs in the proxy's own memory.
    fn memory_bytes(&self) -> Option<u64>;

    /// Defines the counter `name` and returns its id. If it already exists, returns the existing counter's id.
    fn define_counter(&self, name: &str) -> Result<MetricId, HostError>;

    /// Defines the histogram `name` and returns its id. If it already exists, returns the existing histogram's id.
    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError>;

    /// Adds `amount` to a counter. The host may buffer the addition. Never called with zero, which Envoy refuses.
    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError>;

    /// Records one sample in a histogram. The host may buffer the sample.
    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError>;

    /// Returns the wall clock's time in nanoseconds since a fixed moment, to measure durations. The clock may be set
    /// back.
    fn now_ns(&self) -> u64;

    /// Returns the time of [`Host::now_ns`] in milliseconds.
    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }

    /// Writes a line to the proxy's log. Callers must never pass text of a request.
    fn log(&self, level: LogLevel, message: &str);
}

/// A function that resumes a paused request. Any thread may call it.
pub type Resumer = Box<dyn FnOnce() + Send>;

/// Identifies a counter or histogram within one plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricId(pub u32);

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// For successful events: a plugin was loaded, or an engine's event feed can be read again.
    Info,
    /// For failures in operation: of a call to the proxy, of an engine's event feed, or of an exchange of updates
    /// between gateways.
    Warn,
    /// For a plugin configuration that was refused.
    Error,
}

/// The error of a host call that the proxy refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the proxy refused {call} (status {status})")]
pub struct HostError {
    /// Name of the refused host call.
    pub call: &'static str,
    /// Status code that the proxy returned for the call.
    pub status: u32,
}
