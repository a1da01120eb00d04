//! The filter in a real proxy: callbacks of the proxy-wasm SDK in, host calls out. Compiled for Wasm only.
//!
//! The SDK panics on any status that it does not expect, in its trait methods and in most of `hostcalls`, and a panic
//! here is a trap. So each call is made only where Envoy can return no status but those that are handled (read in
//! Envoy's `source/extensions/common/wasm/context.cc` and proxy-wasm-cpp-host's `src/exports.cc`):
//!
//! | call | Envoy's statuses other than `Ok` | why they do not occur |
//! | --- | --- | --- |
//! | read or change request headers | BadArgument, headers released | see 1 |
//! | read or change response headers | BadArgument, headers released | only in the response-headers callback |
//! | read a body | BadArgument, range overflows | see 2 |
//! | call a cluster | BadArgument, InternalFailure, handled by the SDK | |
//! | resume a held request | none | |
//! | set the effective context, to resume a request | BadArgument, no context; handled by the SDK | see 3 |
//! | read a call's response status | BadArgument, no headers | only if Envoy announced headers |
//! | change the body | NotFound, no buffer | only after Envoy announced a body of more than zero bytes |
//! | read, write shared data | CasMismatch, handled by the SDK | |
//! | set the tick | none | |
//! | read a property | NotFound and failures, handled by the SDK | |
//! | write a property | NotFound, no stream; BadArgument, it is there already | see 4 |
//! | define, add, record | BadArgument, NotFound | fixed types, ids from `define`, never zero |
//! | respond, log, clock | none | |
//!
//! 1. [`Exchange`] asks only from the request-headers callback on and until a request callback returns `Continue` (with
//!    released headers: within that first callback); Envoy keeps the headers that long.
//! 2. The range lies within the bytes that Envoy announced. `NotFound`, for no buffer, is handled.
//! 3. Envoy resumes the request after the callback, and restores the context.
//! 4. Properties are written only in callbacks of a request; each once, and none where another filter wrote the first.
//!
//! The SDK exports every callback whether used or not, so using the response callbacks costs nothing more.
//!
//! Counts are buffered until the next tick ([`MetricBuffer`]): a call costs about a microsecond.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{
    Action, BufferType, ContextType, LogLevel as WasmLogLevel, MapType, MetricType, Status,
};

use crate::exchange::{Exchange, Flow};
use crate::host::{Host, HostError, LogLevel, MetricId, Resumer};
use crate::metric_buffer::MetricBuffer;
use crate::plugin::{Plugin, Tick};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|id| Box::new(Root { proxy: Proxy(id), plugin: None }));
}}

/// The proxy-wasm root context, of which there is one for each plugin configuration and worker thread.
struct Root {
    proxy: Proxy,
    plugin: Option<Arc<Plugin>>,
}

impl Context for Root {
    fn on_http_call_response(&mut self, call: u32, headers: usize, size: usize, _trailers: usize) {
        let Some(plugin) = &self.plugin else { return };
        let (status, body) = answer(headers, size, Plugin::MAX_ANSWER_BYTES);
        plugin.on_answer(&self.proxy, call, status, body.as_deref());
    }

    /// Handles the plugin's removal, after its last request. Writes the buffered metrics and stops the timer.
    fn on_done(&mut self) -> bool {
        tell_counts();
        // Stop the timer: Envoy would keep it running, and a request may just have requested a tick.
        set_tick(Duration::ZERO);
        true
    }
}

impl RootContext for Root {
    /// Loads the plugin configuration of `size` bytes. If it returns `false`, Envoy refuses the configuration: at start
    /// Envoy exits, on an update it keeps the old one.
    fn on_configure(&mut self, size: usize) -> bool {
        let configuration = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, size);
        let configuration = configuration.ok().flatten().unwrap_or_default();
        match Plugin::load(&self.proxy, &configuration) {
            Ok(plugin) => {
                plugin.wake_with(|| set_tick(Plugin::WAKE_DELAY));
                set_tick(plugin.until_tick(&self.proxy));
                self.plugin = Some(Arc::new(plugin));
                true
            }
            Err(error) => {
                self.proxy.log(LogLevel::Error, &error.to_string());
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let Some(plugin) = &self.plugin else { return };
        if plugin.on_tick(&self.proxy) == Tick::Full {
            tell_counts();
        }
        // The interval may have been shortened, by this plugin or by the one that it replaced.
        if !plugin.is_woken() {
            set_tick(plugin.until_tick(&self.proxy));
        }
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        // The SDK panics on `None`, so a request before a configuration gets a context that refuses it.
        Some(match &self.plugin {
            Some(plugin) => Box::new(Stream {
                exchange: Exchange::new(Arc::clone(plugin)),
                proxy: Proxy(context_id),
            }),
            None => Box::new(Unconfigured),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// Sets the interval of the timer callback `on_tick` for the root context of the running context; zero stops it.
fn set_tick(interval: Duration) {
    let _ = hostcalls::set_tick_period(interval);
}

/// An HTTP context of a plugin without a configuration. It is unknown whether cache salts are on, so it refuses every
/// request. Envoy sends no requests to a plugin whose configuration was refused.
struct Unconfigured;

impl Context for Unconfigured {}

impl HttpContext for Unconfigured {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let _ = hostcalls::send_http_response(503, Vec::new(), None);
        Action::Pause
    }
}

/// The proxy-wasm HTTP context of one request and its response.
struct Stream {
    exchange: Exchange,
    proxy: Proxy,
}

impl Context for Stream {
    fn on_http_call_response(&mut self, call: u32, headers: usize, size: usize, _trailers: usize) {
        let (status, body) = answer(headers, size, self.exchange.max_answer_bytes());
        self.exchange
            .on_answer(&self.proxy, call.into(), status, body.as_deref());
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        action(self.exchange.on_request_headers(&self.proxy, end_of_stream))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        action(
            self.exchange
                .on_request_body(&self.proxy, size, end_of_stream),
        )
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        action(self.exchange.on_request_trailers(&self.proxy))
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        self.exchange.on_response_headers(&self.proxy);
        if end_of_stream {
            self.exchange.on_response_body(&self.proxy, 0, true);
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.exchange
            .on_response_body(&self.proxy, size, end_of_stream);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.exchange.on_response_trailers(&self.proxy);
        Action::Continue
    }

    fn on_log(&mut self) {
        self.exchange.on_done(&self.proxy);
    }
}

/// Returns the status of the response to a cluster call (`None` if the call failed), and its body (`None` if it is
/// longer than `limit` bytes). `headers` and `size` are the number of its headers and the bytes of its body.
fn answer(headers: usize, size: usize, limit: usize) -> (Option<u16>, Option<Vec<u8>>) {
    // A failed call's response has no headers, and reading one would trap.
    let status = (headers > 0)
        .then(|| hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, ":status"))
        .and_then(|status| str::from_utf8(&status.ok()??).ok()?.parse().ok());
    let body = (size <= limit)
        .then(|| hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, size))
        .and_then(|body| Some(body.ok()?.unwrap_or_default()));
    (status, body)
}

fn action(flow: Flow) -> Action {
    match flow {
        Flow::Continue => Action::Continue,
        Flow::Hold => Action::Pause,
    }
}

/// The proxy around this VM, in callbacks of the proxy-wasm context that has this id.
struct Proxy(u32);

impl Host for Proxy {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name)
            .map_err(refused("request_header"))
    }

    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError> {
        let headers = hostcalls::get_map_bytes(MapType::HttpRequestHeaders)
            .map_err(refused("request_header_values"))?;
        let values = headers.into_iter().filter(|(known, _)| known == name);
        Ok(values.map(|(_, value)| value).collect())
    }

    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        hostcalls::set_map_value(MapType::HttpRequestHeaders, name, Some(value))
            .map_err(refused("set_request_header"))
    }

    fn remove_request_header(&self, name: &str) -> Result<(), HostError> {
        hostcalls::remove_map_value(MapType::HttpRequestHeaders, name)
            .map_err(refused("remove_request_header"))
    }

    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        hostcalls::set_map_value(MapType::HttpResponseHeaders, name, Some(value))
            .map_err(refused("set_response_header"))
    }

    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, name)
            .map_err(refused("response_header"))
    }

    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError> {
        hostcalls::get_buffer(BufferType::HttpResponseBody, from, size)
            .map(Option::unwrap_or_default)
            .map_err(refused("response_body"))
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        hostcalls::get_buffer(BufferType::HttpRequestBody, 0, size)
            .map(Option::unwrap_or_default)
            .map_err(refused("request_body"))
    }

    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError> {
        hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, body)
            .map_err(refused("replace_request_body"))
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError> {
        hostcalls::send_http_response(u32::from(status), headers.to_vec(), Some(body))
            .map_err(refused("respond"))
    }

    fn has_metadata(&self) -> bool {
        true
    }

    fn environment(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        let key = |name| format!("foreword.{name}");
        let Some((first, _)) = fields.first() else {
            return Ok(());
        };
        let known =
            hostcalls::get_property(vec![&key(first)]).map_err(refused("set_log_fields"))?;
        if known.is_some() {
            return Ok(());
        }
        for (name, value) in fields {
            hostcalls::set_property(vec![&key(name)], Some(value.as_bytes()))
                .map_err(refused("set_log_fields"))?;
        }
        Ok(())
    }

    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        let (value, number) = hostcalls::get_shared_data(key).map_err(refused("shared_data"))?;
        // An existing value always has a number.
        Ok(value.zip(number))
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError> {
        match hostcalls::set_shared_data(key, Some(value), unchanged_since) {
            Ok(()) => Ok(true),
            Err(Status::CasMismatch) => Ok(false),
            Err(status) => Err(refused("set_shared_data")(status)),
        }
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        hostcalls::get_property(path.to_vec()).map_err(refused("property"))
    }

    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError> {
        let limit = Duration::from_millis(limit_ms);
        let body = (!body.is_empty()).then_some(body);
        hostcalls::dispatch_http_call(cluster, headers.to_vec(), body, Vec::new(), limit)
            .map_err(refused("call"))
    }

    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        let limit = Duration::from_millis(limit_ms);
        hostcalls::dispatch_http_call(cluster, headers.to_vec(), Some(body), Vec::new(), limit)
            .map(u64::from)
            .map_err(refused("ask"))
    }

    fn resume(&self) -> Result<(), HostError> {
        hostcalls::resume_http_request().map_err(refused("resume"))
    }

    fn resumer(&self) -> Option<Resumer> {
        let context = self.0;
        Some(Box::new(move || {
            // Setting the context is an error if the request is over.
            if hostcalls::set_effective_context(context).is_ok() {
                let _ = hostcalls::resume_http_request();
            }
        }))
    }

    fn resume_other(&self, resumer: Resumer) {
        resumer();
        let _ = hostcalls::set_effective_context(self.0);
    }

    fn memory_bytes(&self) -> Option<u64> {
        const PAGE_BYTES: u64 = 64 << 10;
        let pages = core::arch::wasm32::memory_size::<0>();
        u64::try_from(pages).ok()?.checked_mul(PAGE_BYTES)
    }

    fn define_counter(&self, name: &str) -> Result<MetricId, HostError> {
        hostcalls::define_metric(MetricType::Counter, name)
            .map(MetricId)
            .map_err(refused("define_counter"))
    }

    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError> {
        hostcalls::define_metric(MetricType::Histogram, name)
            .map(MetricId)
            .map_err(refused("define_histogram"))
    }

    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError> {
        TALLY.with_borrow_mut(|metric_buffer| metric_buffer.add(counter, amount));
        Ok(())
    }

    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError> {
        if TALLY.with_borrow_mut(|metric_buffer| metric_buffer.record(histogram, value)) {
            return Ok(());
        }
        hostcalls::record_metric(histogram.0, value).map_err(refused("record"))
    }

    fn now_ns(&self) -> u64 {
        // Not `Instant`: older hosts have no monotonic clock under WASI, and `Instant::now` panics there.
        hostcalls::get_current_time()
            .ok()
            .and_then(|now| now.duration_since(UNIX_EPOCH).ok())
            .and_then(|since| u64::try_from(since.as_nanos()).ok())
            .unwrap_or_default()
    }

    fn log(&self, level: LogLevel, message: &str) {
        let level = match level {
            LogLevel::Info => WasmLogLevel::Info,
            LogLevel::Warn => WasmLogLevel::Warn,
            LogLevel::Error => WasmLogLevel::Error,
        };
        let _ = hostcalls::log(level, message);
    }
}

thread_local! {
    /// Buffered metrics of all plugins of this VM, which has one thread. While the buffer is borrowed, only metric host
    /// calls are made, and these cause no callbacks.
    static TALLY: RefCell<MetricBuffer> = const { RefCell::new(MetricBuffer::new()) };
}

/// Writes the buffered metrics of this VM to the proxy. Errors are ignored, since counting must not fail a request.
fn tell_counts() {
    TALLY.with_borrow_mut(|metric_buffer| {
        metric_buffer.tell(
            |histogram, value| {
                let _ = hostcalls::record_metric(histogram.0, value);
            },
            |counter, amount| {
                let amount = i64::try_from(amount).unwrap_or(i64::MAX);
                let _ = hostcalls::increment_metric(counter.0, amount);
            },
        );
    });
}

fn refused(call: &'static str) -> impl Fn(Status) -> HostError {
    move |status| HostError {
        call,
        status: status as u32,
    }
}
