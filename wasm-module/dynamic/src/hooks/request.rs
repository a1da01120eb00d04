//! The hooks of a request and its response, on the request's worker thread.
#![allow(
    unsafe_code,
    reason = "C functions that hand over Envoy's objects and take back our own"
)]

use std::sync::Arc;

use foreword_filter::{Exchange, Flow, Host};

use super::answer::{body, listed, status};
use super::config::Config;
use super::guarded;
use crate::abi::{self, EnvoyBuffer, EnvoyHttpHeader};
use crate::stream::Envoy;

/// The module's object for a request: a boxed [`Exchange`].
pub(super) type Filter = *mut Exchange;

/// Creates the module's object for a request; null if that panics.
///
/// # Safety
/// Envoy calls it with the result of `config_new`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: Config,
    _filter: abi::HttpFilterEnvoyPtr,
) -> Filter {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: from `config_new`, and not destroyed before the last `filter_new`.
        let plugin = unsafe { &(*config).plugin };
        Box::into_raw(Box::new(Exchange::new(Arc::clone(plugin))))
    })
}

/// Drops the module's object for a request.
///
/// # Safety
/// Envoy calls it once for each result of `filter_new`, after every other hook of the request.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter: Filter) {
    // SAFETY: from `Box::into_raw`.
    guarded((), || drop(unsafe { Box::from_raw(filter) }));
}

/// Handles the request's headers.
///
/// # Safety
/// Envoy calls it on the request's worker thread with its request object and the result of `filter_new`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: both are this hook's.
    let flow = unsafe {
        on_request(envoy, filter, |exchange, envoy| {
            exchange.on_request_headers(envoy, end_of_stream)
        })
    };
    match flow {
        Flow::Continue => abi::CONTINUE,
        Flow::Hold => abi::STOP_ITERATION,
    }
}

/// Handles a chunk of the request's body.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: both are this hook's.
    let flow = unsafe {
        on_request(envoy, filter, |exchange, envoy| {
            exchange.on_request_body(envoy, envoy.body_size(), end_of_stream)
        })
    };
    match flow {
        Flow::Continue => abi::CONTINUE,
        Flow::Hold => abi::STOP_ITERATION_AND_BUFFER,
    }
}

/// Handles the request's trailers.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
) -> u32 {
    // SAFETY: both are this hook's.
    let flow = unsafe {
        on_request(envoy, filter, |exchange, envoy| {
            exchange.on_request_trailers(envoy)
        })
    };
    match flow {
        Flow::Continue => abi::CONTINUE,
        Flow::Hold => abi::STOP_ITERATION,
    }
}

/// Handles the response's headers.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: both are this hook's.
    unsafe {
        on_response(envoy, filter, |exchange, envoy| {
            exchange.on_response_headers(envoy);
            if end_of_stream {
                exchange.on_response_body(envoy, 0, true);
            }
        });
    };
    abi::CONTINUE
}

/// Handles a chunk of the response's body.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: both are this hook's.
    unsafe {
        on_response(envoy, filter, |exchange, envoy| {
            exchange.on_response_body(envoy, envoy.response_size(), end_of_stream);
        });
    }
    abi::CONTINUE
}

/// Handles the response's trailers.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
) -> u32 {
    // SAFETY: both are this hook's.
    unsafe {
        on_response(envoy, filter, |exchange, envoy| {
            exchange.on_response_trailers(envoy);
        });
    };
    abi::CONTINUE
}

/// Handles the end of request and response, however they ended.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
) {
    // SAFETY: both are this hook's.
    unsafe {
        on_response(envoy, filter, |exchange, envoy| exchange.on_done(envoy));
    }
}

/// Handles the response to a call made for the request, or the call's failure.
///
/// # Safety
/// As `request_headers`; headers and chunks, in the given numbers, are valid during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_callout_done(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    call: u64,
    result: u32,
    headers: *const EnvoyHttpHeader,
    headers_length: usize,
    chunks: *const EnvoyBuffer,
    chunks_length: usize,
) {
    // SAFETY: both are this hook's, and so are headers and chunks.
    unsafe {
        on_request(envoy, filter, |exchange, envoy| {
            let status = status(result, listed(headers, headers_length));
            let limit = exchange.max_answer_bytes();
            let body = body(result, listed(chunks, chunks_length), limit);
            exchange.on_answer(envoy, call, status, body.as_deref());
            Flow::Continue
        });
    }
}

/// Resumes a request that a burst holds, on the request's worker thread.
///
/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    _event: u64,
) {
    // SAFETY: both are this hook's.
    unsafe {
        on_request(envoy, filter, |exchange, envoy| {
            if exchange.is_held() {
                exchange.on_resumed();
                let _ = envoy.resume();
            }
            Flow::Continue
        });
    }
}

/// Runs a response hook. The response continues even if the hook panics.
///
/// # Safety
/// `envoy` and `filter` must be the running hook's.
unsafe fn on_response(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    hook: impl FnOnce(&mut Exchange, &Envoy<'_>),
) {
    // SAFETY: by the contract.
    let envoy = unsafe { Envoy::request(envoy) };
    guarded((), || {
        // SAFETY: by the contract; Envoy runs no other hook of the request before `finish`.
        if let Some(exchange) = unsafe { filter.as_mut() } {
            hook(exchange, &envoy);
        }
    });
    envoy.finish();
}

/// Runs a request hook. If it panics, the client receives a 500, and the request is not forwarded. So it is if
/// `filter_new` returned null, since salts may be required.
///
/// # Safety
/// `envoy` and `filter` must be the running hook's.
pub(super) unsafe fn on_request(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    hook: impl FnOnce(&mut Exchange, &Envoy<'_>) -> Flow,
) -> Flow {
    // SAFETY: by the contract.
    let envoy = unsafe { Envoy::request(envoy) };
    // SAFETY: by the contract; Envoy runs no other hook of the request before `finish`, behind which this is not used.
    let mut exchange = unsafe { filter.as_mut() };
    let flow = guarded(None, || {
        exchange.as_mut().map(|exchange| hook(exchange, &envoy))
    });
    let flow = flow.unwrap_or_else(|| {
        let headers = [("content-type", "application/json")];
        guarded((), || {
            let body = exchange.map_or_else(Vec::new, |exchange| exchange.failure());
            envoy.respond(500, &headers, &body).unwrap_or_default();
        });
        Flow::Hold
    });
    envoy.finish();
    flow
}
