//! [`Host`] for the filter, implemented with Envoy's callbacks.
//!
//! | file | Envoy's part |
//! | --- | --- |
//! | `headers`, `body` | a request and its response |
//! | `calls` | cluster calls, resuming requests |
//! | `state` | access logs, attributes |
//! | `metrics` | counters, histograms |
//! | this file | the running hook's object, the log, the clock |
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

mod body;
mod calls;
mod headers;
mod metrics;
mod state;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::{SystemTime, UNIX_EPOCH};

use foreword_filter::{Host, HostError, LogLevel, MetricId, Resumer, SharedData};

use crate::abi::{self, EnvoyBuffer, ModuleBuffer};

/// Envoy's object for the running hook: a configuration or a request. It is valid only during the hook.
pub(crate) struct Envoy<'hook> {
    scope: Scope,
    /// The response or resumption that [`Envoy::finish`] performs; `None` for neither. A later one replaces an earlier one.
    last: RefCell<Option<Last>>,
    hook: PhantomData<&'hook ()>,
}

/// The last thing that a hook has Envoy do with its request. Envoy may run other hooks of the request within that call,
/// and end it.
enum Last {
    Resume,
    Respond {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
}

#[derive(Clone, Copy)]
enum Scope {
    /// The hook of a configuration, on the main thread. Metrics can be defined only while it is being loaded.
    Config(abi::HttpFilterConfigEnvoyPtr),
    /// The hook of a request.
    Request(abi::HttpFilterEnvoyPtr),
}

impl Envoy<'_> {
    /// # Safety
    /// `config` must be the running hook's, and the hook must outlive the value.
    pub(crate) unsafe fn config(config: abi::HttpFilterConfigEnvoyPtr) -> Self {
        Self {
            scope: Scope::Config(config),
            last: RefCell::default(),
            hook: PhantomData,
        }
    }

    /// # Safety
    /// `filter` must be the running hook's, and the hook must outlive the value.
    pub(crate) unsafe fn request(filter: abi::HttpFilterEnvoyPtr) -> Self {
        Self {
            scope: Scope::Request(filter),
            last: RefCell::default(),
            hook: PhantomData,
        }
    }

    /// Responds to the request, or resumes it, if the hook said so. Within this call, Envoy may run other hooks of the
    /// request, and destroy its exchange: nothing may hold a reference to that.
    pub(crate) fn finish(self) {
        match self.last.take() {
            None => {}
            Some(Last::Resume) => self.continue_decoding(),
            Some(Last::Respond {
                status,
                headers,
                body,
            }) => self.send_response(status, &headers, &body),
        }
    }

    /// Sets what [`Envoy::finish`] does.
    fn last(&self, call: &'static str, last: Last) -> Result<(), HostError> {
        self.filter(call)?;
        self.last.replace(Some(last));
        Ok(())
    }

    fn filter(&self, call: &'static str) -> Result<abi::HttpFilterEnvoyPtr, HostError> {
        match self.scope {
            Scope::Request(filter) => Ok(filter),
            Scope::Config(_) => Err(refused(call, NO_REQUEST)),
        }
    }
}

impl Host for Envoy<'_> {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.header(abi::REQUEST_HEADER, name, 0, "request_header")
    }

    fn request_header_values(&self, name: &str) -> Result<Vec<Vec<u8>>, HostError> {
        let value = |at| self.header(abi::REQUEST_HEADER, name, at, "request_header_values");
        (0..).map_while(|at| value(at).transpose()).collect()
    }

    fn set_request_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        let value = ModuleBuffer::of(value.as_bytes());
        self.set_header(abi::REQUEST_HEADER, name, value, "set_request_header")
    }

    fn remove_request_header(&self, name: &str) -> Result<(), HostError> {
        self.set_header(
            abi::REQUEST_HEADER,
            name,
            ModuleBuffer::NULL,
            "remove_request_header",
        )
    }

    fn set_response_header(&self, name: &str, value: &str) -> Result<(), HostError> {
        let value = ModuleBuffer::of(value.as_bytes());
        self.set_header(abi::RESPONSE_HEADER, name, value, "set_response_header")
    }

    fn response_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.header(abi::RESPONSE_HEADER, name, 0, "response_header")
    }

    fn response_body(&self, from: usize, size: usize) -> Result<Vec<u8>, HostError> {
        self.response_part(from, size)
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        self.arrived(size)
    }

    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError> {
        self.replace(size, body)
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let last = Last::Respond {
            status,
            headers: headers.iter().map(owned).collect(),
            body: body.to_vec(),
        };
        self.last("respond", last)
    }

    /// Returns `false`: this ABI gives access only to texts at the first level of a namespace, and a JWT's payload is
    /// deeper.
    fn has_metadata(&self) -> bool {
        false
    }

    fn environment(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        self.write_fields(fields)
    }

    fn shared_data(&self, key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
        Ok(DATA.get(key))
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError> {
        Ok(DATA.set(key, value, unchanged_since))
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        self.attribute(path)
    }

    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError> {
        self.call_for_config(cluster, headers, body, limit_ms)
    }

    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        self.call_for_request(cluster, headers, body, limit_ms)
    }

    fn resume(&self) -> Result<(), HostError> {
        self.last("resume", Last::Resume)
    }

    fn resumer(&self) -> Option<Resumer> {
        self.remote_resumer()
    }

    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    fn define_counter(&self, name: &str) -> Result<MetricId, HostError> {
        self.define(
            abi::envoy_dynamic_module_callback_http_filter_config_define_counter,
            name,
            "define_counter",
        )
    }

    fn define_histogram(&self, name: &str) -> Result<MetricId, HostError> {
        self.define(
            abi::envoy_dynamic_module_callback_http_filter_config_define_histogram,
            name,
            "define_histogram",
        )
    }

    fn add(&self, counter: MetricId, amount: u64) -> Result<(), HostError> {
        self.measure(
            [
                abi::envoy_dynamic_module_callback_http_filter_increment_counter,
                abi::envoy_dynamic_module_callback_http_filter_config_increment_counter,
            ],
            counter,
            amount,
            "add",
        )
    }

    fn record(&self, histogram: MetricId, value: u64) -> Result<(), HostError> {
        self.measure(
            [
                abi::envoy_dynamic_module_callback_http_filter_record_histogram_value,
                abi::envoy_dynamic_module_callback_http_filter_config_record_histogram_value,
            ],
            histogram,
            value,
            "record",
        )
    }

    fn now_ns(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| u64::try_from(since.as_nanos()).ok())
            .unwrap_or_default()
    }

    fn log(&self, level: LogLevel, message: &str) {
        log(level, message);
    }
}

/// Writes a line to Envoy's log.
pub(crate) fn log(level: LogLevel, message: &str) {
    let level = match level {
        LogLevel::Info => abi::LOG_INFO,
        LogLevel::Warn => abi::LOG_WARN,
        LogLevel::Error => abi::LOG_ERROR,
    };
    // SAFETY: the call needs no object, and copies the message.
    unsafe { abi::envoy_dynamic_module_callback_log(level, ModuleBuffer::of(message.as_bytes())) };
}

/// # Safety
/// The buffer must be Envoy's, and its bytes must not change while the slice is in use.
pub(crate) unsafe fn bytes(buffer: &EnvoyBuffer) -> &[u8] {
    if buffer.ptr.is_null() {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(buffer.ptr.cast(), buffer.length) }
}

fn refused(call: &'static str, status: u32) -> HostError {
    HostError { call, status }
}

/// Shared data of the whole process, like Envoy's for Wasm VMs.
static DATA: SharedData = SharedData::new();

/// Status of a host call that Envoy refused without a reason.
const NO_SUCH_THING: u32 = 100;
/// Status of a host call that needs a request, in a configuration's hook.
const NO_REQUEST: u32 = 101;
/// Status of a host call that needs a configuration, in a request's hook.
const NO_CONFIG: u32 = 102;
