//! [`Host`] for the filter, implemented with Envoy's callbacks.
//!
//! | file | Envoy's part |
//! | --- | --- |
//! | `headers`, `body` | a request and its response |
//! | `metrics` | counters, histograms |
//! | this file | the running hook's object, cluster calls, resuming requests, access logs, the log, the clock |
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

mod body;
mod headers;
mod metrics;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::{SystemTime, UNIX_EPOCH};

use foreword_filter::{Host, HostError, LogLevel, MetricId, Resumer, SharedData};

use self::headers::of_headers;
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

    /// Resumes a paused request.
    fn continue_decoding(&self) {
        if let Ok(filter) = self.filter("resume") {
            // SAFETY: `filter` is the running hook's.
            unsafe { abi::envoy_dynamic_module_callback_http_filter_continue_decoding(filter) };
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
        let filter = self.filter("response_body")?;
        let mut body = self.chunk(filter, abi::RECEIVED_RESPONSE_BODY);
        body.truncate(from.saturating_add(size));
        body.drain(..from.min(body.len()));
        Ok(body)
    }

    fn request_body(&self, size: usize) -> Result<Vec<u8>, HostError> {
        let filter = self.filter("request_body")?;
        let mut body = Vec::with_capacity(size);
        for kind in self.bodies(filter).into_iter().flatten() {
            body.extend(self.chunk(filter, kind));
        }
        body.truncate(size);
        Ok(body)
    }

    fn replace_request_body(&self, size: usize, body: &[u8]) -> Result<(), HostError> {
        const CALL: &str = "replace_request_body";
        let filter = self.filter(CALL)?;
        // The filter always replaces the whole body: after a part, appending would put the new bytes in the wrong
        // place.
        if size != self.body_size() {
            return Err(refused(CALL, NO_SUCH_THING));
        }
        let mut target = None;
        for kind in self.bodies(filter).into_iter().flatten() {
            // SAFETY: `filter` is the running hook's.
            let drained = unsafe {
                let size = abi::envoy_dynamic_module_callback_http_get_body_size(filter, kind);
                abi::envoy_dynamic_module_callback_http_drain_body(filter, kind, size)
            };
            if drained {
                target = Some(kind);
            }
        }
        let kind = target.ok_or(refused(CALL, NO_SUCH_THING))?;
        // SAFETY: as above; Envoy copies the bytes.
        let added = unsafe {
            abi::envoy_dynamic_module_callback_http_append_body(
                filter,
                kind,
                ModuleBuffer::of(body),
            )
        };
        if added {
            Ok(())
        } else {
            Err(refused(CALL, NO_SUCH_THING))
        }
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
        const CALL: &str = "set_log_fields";
        let filter = self.filter(CALL)?;
        // Envoy uses these names for the fields that a Wasm filter writes, so one log format serves both shells.
        let key = |name| format!("wasm.foreword.{name}");
        let Some((first, _)) = fields.first() else {
            return Ok(());
        };
        // SAFETY: `filter` is the running hook's.
        let known = unsafe {
            let key = key(first);
            abi::envoy_dynamic_module_callback_http_has_filter_state(
                filter,
                ModuleBuffer::of(key.as_bytes()),
            )
        };
        if known {
            return Ok(());
        }
        for (name, value) in fields {
            let key = key(name);
            // SAFETY: `filter` is the running hook's; Envoy copies key and value.
            let done = unsafe {
                abi::envoy_dynamic_module_callback_http_set_filter_state_bytes(
                    filter,
                    ModuleBuffer::of(key.as_bytes()),
                    ModuleBuffer::of(value.as_bytes()),
                )
            };
            if !done {
                return Err(refused(CALL, NO_SUCH_THING));
            }
        }
        Ok(())
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

    /// Returns the attribute `upstream.address`, the only one that the filter reads; `None` for any other.
    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        let (Scope::Request(filter), ["upstream", "address"]) = (self.scope, path) else {
            return Ok(None);
        };
        let mut value = EnvoyBuffer::NOTHING;
        // SAFETY: `filter` is the running hook's; `value` is written before the call returns, and copied at once.
        unsafe {
            let found = abi::envoy_dynamic_module_callback_http_filter_get_attribute_string(
                filter,
                abi::UPSTREAM_ADDRESS,
                &raw mut value,
            );
            Ok(found.then(|| bytes(&value).to_vec()))
        }
    }

    fn call_for_plugin(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u32, HostError> {
        const CALL: &str = "call";
        let Scope::Config(config) = self.scope else {
            return Err(refused(CALL, NO_CONFIG));
        };
        let mut headers = of_headers(headers);
        let mut id = 0;
        // SAFETY: `config` is the running hook's; `id` is written before the call returns, and Envoy copies the rest.
        let result = unsafe {
            abi::envoy_dynamic_module_callback_http_filter_config_http_callout(
                config,
                &raw mut id,
                ModuleBuffer::of(cluster.as_bytes()),
                headers.as_mut_ptr(),
                headers.len(),
                if body.is_empty() {
                    ModuleBuffer::NULL
                } else {
                    ModuleBuffer::of(body)
                },
                limit_ms,
            )
        };
        match (result, u32::try_from(id)) {
            (abi::CALL_MADE, Ok(id)) => Ok(id),
            (abi::CALL_MADE, Err(_)) => Err(refused(CALL, NO_SUCH_THING)),
            (status, _) => Err(refused(CALL, status)),
        }
    }

    fn call_for_request(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<u64, HostError> {
        const CALL: &str = "ask";
        let filter = self.filter(CALL)?;
        let mut headers = of_headers(headers);
        let mut id = 0;
        // SAFETY: `filter` is the running hook's; everything else outlives the call, which copies it. A response never
        // arrives before the call returns.
        let result = unsafe {
            abi::envoy_dynamic_module_callback_http_filter_http_callout(
                filter,
                &raw mut id,
                ModuleBuffer::of(cluster.as_bytes()),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::of(body),
                limit_ms,
            )
        };
        match result {
            abi::CALL_MADE => Ok(id),
            status => Err(refused(CALL, status)),
        }
    }

    fn resume(&self) -> Result<(), HostError> {
        self.last("resume", Last::Resume)
    }

    fn resumer(&self) -> Option<Resumer> {
        let filter = self.filter("resumer").ok()?;
        // SAFETY: `filter` is the running hook's.
        let scheduler =
            unsafe { abi::envoy_dynamic_module_callback_http_filter_scheduler_new(filter) };
        let scheduler = (!scheduler.is_null()).then_some(Scheduler(scheduler))?;
        Some(Box::new(move || scheduler.commit()))
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

/// Envoy's scheduler for a request.
struct Scheduler(abi::RequestSchedulerPtr);

// SAFETY: any thread may post an event to the worker's queue; Envoy drops the event if the request is over by then.
unsafe impl Send for Scheduler {}

impl Scheduler {
    fn commit(&self) {
        // SAFETY: the pointer is deleted when this is dropped, not before.
        unsafe { abi::envoy_dynamic_module_callback_http_filter_scheduler_commit(self.0, 0) };
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: from `scheduler_new`, and dropped once.
        unsafe { abi::envoy_dynamic_module_callback_http_filter_scheduler_delete(self.0) };
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
