//! Envoy as the filter sees it: [`Host`] by Envoy's callbacks.
//!
//! A request's body stands in two buffers: what earlier hooks held back, and what the running one brought (in the
//! trailers' hook there is none of the second). To the filter they are one.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::time::{SystemTime, UNIX_EPOCH};

use foreword_filter::{Host, HostError, LogLevel, MetricId};

use crate::abi::{self, EnvoyBuffer, ModuleBuffer, ModuleHttpHeader};
use crate::shared;

/// The objects of the running hook. Lives no longer than the hook.
pub(crate) struct Envoy<'hook> {
    scope: Scope,
    hook: PhantomData<&'hook ()>,
}

#[derive(Clone, Copy)]
enum Scope {
    /// A hook of a configuration, on the main thread. Metrics may be defined while it is being loaded.
    Config(abi::HttpFilterConfigEnvoyPtr),
    /// A request is under way.
    Request(abi::HttpFilterEnvoyPtr),
}

impl Envoy<'_> {
    /// # Safety
    /// `config` came with the running hook, which outlives the value.
    pub(crate) unsafe fn config(config: abi::HttpFilterConfigEnvoyPtr) -> Self {
        Self {
            scope: Scope::Config(config),
            hook: PhantomData,
        }
    }

    /// # Safety
    /// `filter` came with the running hook, which outlives the value.
    pub(crate) unsafe fn request(filter: abi::HttpFilterEnvoyPtr) -> Self {
        Self {
            scope: Scope::Request(filter),
            hook: PhantomData,
        }
    }

    /// Bytes of the response's chunk that goes by.
    pub(crate) fn response_size(&self) -> usize {
        let Ok(filter) = self.filter("response_size") else {
            return 0;
        };
        // SAFETY: `filter` is the running hook's.
        unsafe {
            abi::envoy_dynamic_module_callback_http_get_body_size(
                filter,
                abi::RECEIVED_RESPONSE_BODY,
            )
        }
    }

    /// Bytes of the body that have arrived.
    pub(crate) fn body_size(&self) -> usize {
        let Ok(filter) = self.filter("body_size") else {
            return 0;
        };
        // SAFETY: `filter` is the running hook's.
        let size =
            |body| unsafe { abi::envoy_dynamic_module_callback_http_get_body_size(filter, body) };
        self.bodies(filter).into_iter().flatten().map(size).sum()
    }

    fn filter(&self, call: &'static str) -> Result<abi::HttpFilterEnvoyPtr, HostError> {
        match self.scope {
            Scope::Request(filter) => Ok(filter),
            Scope::Config(_) => Err(refused(call, NO_REQUEST)),
        }
    }

    /// The buffers that make up the body, in order. When Envoy hands on what an earlier filter held back, both are the
    /// same buffer.
    fn bodies(&self, filter: abi::HttpFilterEnvoyPtr) -> [Option<u32>; 2] {
        // SAFETY: `filter` is the running hook's.
        let same = unsafe {
            abi::envoy_dynamic_module_callback_http_received_buffered_request_body(filter)
        };
        let buffered = (!same).then_some(abi::BUFFERED_REQUEST_BODY);
        [buffered, Some(abi::RECEIVED_REQUEST_BODY)]
    }

    fn header(
        &self,
        kind: u32,
        name: &str,
        call: &'static str,
    ) -> Result<Option<Vec<u8>>, HostError> {
        let filter = self.filter(call)?;
        let mut value = EnvoyBuffer::NOTHING;
        let name = ModuleBuffer::of(name.as_bytes());
        // SAFETY: `filter` is the running hook's; `value` is written before the call returns, and copied before
        // anything can change the header.
        unsafe {
            let found = abi::envoy_dynamic_module_callback_http_get_header(
                filter,
                kind,
                name,
                &raw mut value,
                0,
                std::ptr::null_mut(),
            );
            Ok(found.then(|| bytes(&value).to_vec()))
        }
    }

    /// What one of the buffers holds.
    fn chunk(&self, filter: abi::HttpFilterEnvoyPtr, kind: u32) -> Vec<u8> {
        let mut body = Vec::new();
        // SAFETY: `filter` is the running hook's; Envoy writes as many pieces as it has just counted, and nothing changes
        // the body before they are copied.
        unsafe {
            let count = abi::envoy_dynamic_module_callback_http_get_body_chunks_size(filter, kind);
            let mut pieces = vec![EnvoyBuffer::NOTHING; count];
            if count > 0
                && abi::envoy_dynamic_module_callback_http_get_body_chunks(
                    filter,
                    kind,
                    pieces.as_mut_ptr(),
                )
            {
                for piece in &pieces {
                    body.extend_from_slice(bytes(piece));
                }
            }
        }
        body
    }

    fn set_header(
        &self,
        kind: u32,
        name: &str,
        value: ModuleBuffer,
        call: &'static str,
    ) -> Result<(), HostError> {
        let filter = self.filter(call)?;
        let name = ModuleBuffer::of(name.as_bytes());
        // SAFETY: `filter` is the running hook's; name and value outlive the call, which copies them.
        let done = unsafe {
            abi::envoy_dynamic_module_callback_http_set_header(filter, kind, name, value)
        };
        if done {
            Ok(())
        } else {
            Err(refused(call, NO_SUCH_THING))
        }
    }

    fn define(
        &self,
        define: Define,
        name: &str,
        call: &'static str,
    ) -> Result<MetricId, HostError> {
        let Scope::Config(config) = self.scope else {
            return Err(refused(call, NO_CONFIG));
        };
        let mut id = 0;
        let name = ModuleBuffer::of(name.as_bytes());
        // SAFETY: `config` is the running hook's; there are no labels; `id` is written before the call returns.
        let result = unsafe { define(config, name, std::ptr::null_mut(), 0, &raw mut id) };
        match (result, u32::try_from(id)) {
            (abi::METRICS_SUCCESS, Ok(id)) => Ok(MetricId(id)),
            (status, _) => Err(refused(call, status)),
        }
    }

    /// Adds to a counter or a histogram, by the call for whom this is: a request's worker or a configuration.
    fn measure(
        &self,
        [by_request, by_config]: [Measure; 2],
        id: MetricId,
        value: u64,
        call: &'static str,
    ) -> Result<(), HostError> {
        let (measure, object) = match self.scope {
            Scope::Request(filter) => (by_request, filter),
            Scope::Config(config) => (by_config, config),
        };
        // SAFETY: the object is the running hook's; there are no labels.
        let result = unsafe { measure(object, id.0 as usize, std::ptr::null_mut(), 0, value) };
        match result {
            abi::METRICS_SUCCESS => Ok(()),
            status => Err(refused(call, status)),
        }
    }
}

type Define = unsafe extern "C" fn(
    abi::HttpFilterConfigEnvoyPtr,
    ModuleBuffer,
    *mut ModuleBuffer,
    usize,
    *mut usize,
) -> u32;
type Measure = unsafe extern "C" fn(*mut c_void, usize, *mut ModuleBuffer, usize, u64) -> u32;

impl Host for Envoy<'_> {
    fn request_header(&self, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.header(abi::REQUEST_HEADER, name, "request_header")
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
        self.header(abi::RESPONSE_HEADER, name, "response_header")
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
        // The filter always replaces the whole; appending would put anything else in the wrong place.
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
        let filter = self.filter("respond")?;
        let mut headers = of_headers(headers);
        // SAFETY: `filter` is the running hook's; headers, body and details outlive the call, which copies them.
        unsafe {
            abi::envoy_dynamic_module_callback_http_send_response(
                filter,
                status.into(),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::of(body),
                ModuleBuffer::of(b"foreword"),
            );
        }
        Ok(())
    }

    /// This ABI shows texts in the first level of a namespace alone, and a JWT's payload is deeper.
    fn has_metadata(&self) -> bool {
        false
    }

    fn environment(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn set_log_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        const CALL: &str = "set_log_fields";
        let filter = self.filter(CALL)?;
        // Under the names by which Envoy shows what a Wasm filter writes: one log format serves both shells.
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
        Ok(shared::get(key))
    }

    fn set_shared_data(
        &self,
        key: &str,
        value: &[u8],
        unchanged_since: Option<u32>,
    ) -> Result<bool, HostError> {
        Ok(shared::set(key, value, unchanged_since))
    }

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

    /// Only for a configuration: a request makes no calls of its own.
    fn call(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
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
                ModuleBuffer::NULL,
                limit_ms,
            )
        };
        match (result, u32::try_from(id)) {
            (abi::CALL_MADE, Ok(id)) => Ok(id),
            (abi::CALL_MADE, Err(_)) => Err(refused(CALL, NO_SUCH_THING)),
            (status, _) => Err(refused(CALL, status)),
        }
    }

    fn ask(
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
        // SAFETY: `filter` is the running hook's; everything else outlives the call, which copies it. An answer never comes
        // before the call returns.
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
        let filter = self.filter("resume")?;
        // SAFETY: `filter` is the running hook's.
        unsafe { abi::envoy_dynamic_module_callback_http_filter_continue_decoding(filter) };
        Ok(())
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
    // SAFETY: needs no object, and copies the message.
    unsafe { abi::envoy_dynamic_module_callback_log(level, ModuleBuffer::of(message.as_bytes())) };
}

/// # Safety
/// The buffer is Envoy's and what it shows is not changed while the slice is in use.
pub(crate) unsafe fn bytes(buffer: &EnvoyBuffer) -> &[u8] {
    if buffer.ptr.is_null() {
        return &[];
    }
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts(buffer.ptr.cast(), buffer.length) }
}

/// Headers as Envoy reads them, while the texts are there.
fn of_headers(headers: &[(&str, &str)]) -> Vec<ModuleHttpHeader> {
    let header = |(name, value): &(&str, &str)| ModuleHttpHeader {
        key: ModuleBuffer::of(name.as_bytes()),
        value: ModuleBuffer::of(value.as_bytes()),
    };
    headers.iter().map(header).collect()
}

fn refused(call: &'static str, status: u32) -> HostError {
    HostError { call, status }
}

/// Envoy said no without saying why.
const NO_SUCH_THING: u32 = 100;
/// A call for a request, in a configuration's hook.
const NO_REQUEST: u32 = 101;
/// A call for a configuration, in a request's hook.
const NO_CONFIG: u32 = 102;
