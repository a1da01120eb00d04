//! Declares the part of Envoy 1.40's interface for dynamic modules that the filter uses, after
//! `source/extensions/dynamic_modules/abi/abi.h`, ABI `v0.2.0`.
//!
//! Names are Envoy's, without the prefix `envoy_dynamic_module_type_` of types. Enumerations are C's `unsigned int`.
//! Nothing here is safe to call except through [`crate::stream`].
#![allow(unsafe_code, reason = "declarations of foreign functions")]

use std::ffi::{c_char, c_void};

/// Envoy's object for a request; valid during a hook that receives it.
pub(crate) type HttpFilterEnvoyPtr = *mut c_void;
/// Envoy's object for a configuration; valid until `config_destroy`, and used only in its hooks.
pub(crate) type HttpFilterConfigEnvoyPtr = *mut c_void;

/// The version that `on_program_init` returns.
pub(crate) const ABI_VERSION: &std::ffi::CStr = c"v0.2.0";

/// Bytes owned by Envoy, valid until the hook returns or their owner is changed.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EnvoyBuffer {
    pub(crate) ptr: *const c_char,
    pub(crate) length: usize,
}

impl EnvoyBuffer {
    /// An empty buffer.
    pub(crate) const NOTHING: Self = Self {
        ptr: std::ptr::null(),
        length: 0,
    };
}

/// Bytes owned by the module; Envoy copies them before a call returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ModuleBuffer {
    pub(crate) ptr: *const c_char,
    pub(crate) length: usize,
}

impl ModuleBuffer {
    /// A null buffer; as a header's value it removes the header.
    pub(crate) const NULL: Self = Self {
        ptr: std::ptr::null(),
        length: 0,
    };

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            ptr: bytes.as_ptr().cast(),
            length: bytes.len(),
        }
    }
}

/// A header from the module.
#[repr(C)]
pub(crate) struct ModuleHttpHeader {
    pub(crate) key: ModuleBuffer,
    pub(crate) value: ModuleBuffer,
}

/// A header from Envoy.
#[repr(C)]
pub(crate) struct EnvoyHttpHeader {
    pub(crate) key: EnvoyBuffer,
    pub(crate) value: EnvoyBuffer,
}

/// Envoy's scheduler, by which any thread can schedule a configuration's hook; the module deletes it.
pub(crate) type ConfigSchedulerPtr = *mut c_void;
/// Envoy's scheduler, by which any thread can schedule a request's hook on its worker; the module deletes it.
pub(crate) type RequestSchedulerPtr = *mut c_void;

/// `http_header_type`: the request's headers.
pub(crate) const REQUEST_HEADER: u32 = 0;
/// `http_header_type`: the response's headers.
pub(crate) const RESPONSE_HEADER: u32 = 2;

/// `http_body_type`: the chunk of the request body passed to the running hook; absent in every other hook.
pub(crate) const RECEIVED_REQUEST_BODY: u32 = 0;
/// `http_body_type`: the request body buffered by earlier hooks.
pub(crate) const BUFFERED_REQUEST_BODY: u32 = 1;
/// `http_body_type`: the chunk of the response body passed to the running hook.
pub(crate) const RECEIVED_RESPONSE_BODY: u32 = 2;

/// `attribute_id`: the address of the host that a request was sent to.
pub(crate) const UPSTREAM_ADDRESS: u32 = 41;

/// `metrics_result`: success.
pub(crate) const METRICS_SUCCESS: u32 = 0;

/// `http_callout_init_result`: the call is in flight.
pub(crate) const CALL_MADE: u32 = 0;
/// `http_callout_result`: there is a response, with any status.
pub(crate) const CALL_ANSWERED: u32 = 0;
/// `http_callout_result`: the response exceeds Envoy's limit.
pub(crate) const CALL_TOO_LONG: u32 = 2;

/// `log_level`: info.
pub(crate) const LOG_INFO: u32 = 2;
/// `log_level`: warning.
pub(crate) const LOG_WARN: u32 = 3;
/// `log_level`: error.
pub(crate) const LOG_ERROR: u32 = 4;

/// `on_http_filter_*_status`: continue, the same number for every hook.
pub(crate) const CONTINUE: u32 = 0;
/// `on_http_filter_request_headers_status` and `…_trailers_status`: pause the request.
pub(crate) const STOP_ITERATION: u32 = 1;
/// `on_http_filter_request_body_status`: pause the request and buffer its body.
pub(crate) const STOP_ITERATION_AND_BUFFER: u32 = 1;

unsafe extern "C" {
    pub(crate) fn envoy_dynamic_module_callback_log(level: u32, message: ModuleBuffer);

    pub(crate) fn envoy_dynamic_module_callback_http_get_header(
        filter: HttpFilterEnvoyPtr,
        header_type: u32,
        key: ModuleBuffer,
        result: *mut EnvoyBuffer,
        index: usize,
        optional_size: *mut usize,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_set_header(
        filter: HttpFilterEnvoyPtr,
        header_type: u32,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: HttpFilterEnvoyPtr,
        attribute: u32,
        result: *mut EnvoyBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_get_body_size(
        filter: HttpFilterEnvoyPtr,
        body_type: u32,
    ) -> usize;

    pub(crate) fn envoy_dynamic_module_callback_http_get_body_chunks_size(
        filter: HttpFilterEnvoyPtr,
        body_type: u32,
    ) -> usize;

    pub(crate) fn envoy_dynamic_module_callback_http_get_body_chunks(
        filter: HttpFilterEnvoyPtr,
        body_type: u32,
        result: *mut EnvoyBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_drain_body(
        filter: HttpFilterEnvoyPtr,
        body_type: u32,
        bytes: usize,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_append_body(
        filter: HttpFilterEnvoyPtr,
        body_type: u32,
        data: ModuleBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_received_buffered_request_body(
        filter: HttpFilterEnvoyPtr,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_send_response(
        filter: HttpFilterEnvoyPtr,
        status: u32,
        headers: *mut ModuleHttpHeader,
        headers_length: usize,
        body: ModuleBuffer,
        details: ModuleBuffer,
    );

    pub(crate) fn envoy_dynamic_module_callback_http_filter_http_callout(
        filter: HttpFilterEnvoyPtr,
        id: *mut u64,
        cluster: ModuleBuffer,
        headers: *mut ModuleHttpHeader,
        headers_length: usize,
        body: ModuleBuffer,
        timeout_ms: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_continue_decoding(
        filter: HttpFilterEnvoyPtr,
    );

    pub(crate) fn envoy_dynamic_module_callback_http_filter_scheduler_new(
        filter: HttpFilterEnvoyPtr,
    ) -> RequestSchedulerPtr;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
        scheduler: RequestSchedulerPtr,
        event: u64,
    );

    pub(crate) fn envoy_dynamic_module_callback_http_filter_scheduler_delete(
        scheduler: RequestSchedulerPtr,
    );

    pub(crate) fn envoy_dynamic_module_callback_http_has_filter_state(
        filter: HttpFilterEnvoyPtr,
        key: ModuleBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
        filter: HttpFilterEnvoyPtr,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: HttpFilterConfigEnvoyPtr,
        name: ModuleBuffer,
        label_names: *mut ModuleBuffer,
        label_names_length: usize,
        id: *mut usize,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_define_histogram(
        config: HttpFilterConfigEnvoyPtr,
        name: ModuleBuffer,
        label_names: *mut ModuleBuffer,
        label_names_length: usize,
        id: *mut usize,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_increment_counter(
        filter: HttpFilterEnvoyPtr,
        id: usize,
        label_values: *mut ModuleBuffer,
        label_values_length: usize,
        value: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_record_histogram_value(
        filter: HttpFilterEnvoyPtr,
        id: usize,
        label_values: *mut ModuleBuffer,
        label_values_length: usize,
        value: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
        config: HttpFilterConfigEnvoyPtr,
        id: usize,
        label_values: *mut ModuleBuffer,
        label_values_length: usize,
        value: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
        config: HttpFilterConfigEnvoyPtr,
        id: usize,
        label_values: *mut ModuleBuffer,
        label_values_length: usize,
        value: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_http_callout(
        config: HttpFilterConfigEnvoyPtr,
        id: *mut u64,
        cluster: ModuleBuffer,
        headers: *mut ModuleHttpHeader,
        headers_length: usize,
        body: ModuleBuffer,
        limit_ms: u64,
    ) -> u32;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(
        config: HttpFilterConfigEnvoyPtr,
    ) -> ConfigSchedulerPtr;

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
        scheduler: ConfigSchedulerPtr,
        event: u64,
    );

    pub(crate) fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(
        scheduler: ConfigSchedulerPtr,
    );
}
