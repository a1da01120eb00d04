//! What Envoy calls: the 21 exports that Envoy 1.40 demands of an HTTP filter, and two of a configuration's own.
//!
//! Each hook ends its panics: an uncaught one would abort Envoy and every stream in it. A request whose hook panicked is
//! answered with 500, if that can still be done; the next finds everything as it was, but for what the orderer knew.
#![allow(
    unsafe_code,
    reason = "C functions that hand over Envoy's objects and take back our own"
)]

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foreword_filter::{Exchange, Flow, Host, LogLevel, Plugin};

use crate::abi::{self, EnvoyBuffer, EnvoyHttpHeader};
use crate::clock::Clock;
use crate::stream::{Envoy, bytes, log};

/// Ours behind a configuration.
struct Loaded {
    /// Its requests share it, and may outlive the configuration.
    plugin: Arc<Plugin>,
    /// Runs where engines' feeds are followed.
    _clock: Option<Clock>,
}

type Config = *const Loaded;
/// Ours behind a request: a boxed [`Exchange`].
type Filter = *mut Exchange;

/// The module is loaded; answers with the ABI that it was written for.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    // A panic's message may quote a request, so only its place is told. This hook is this library's own.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        log(LogLevel::Error, &format!("foreword panicked at {place}"));
    }));
    abi::ABI_VERSION.as_ptr()
}

/// Workers share a plugin.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Plugin>();
};

/// A configuration is loaded; null refuses it.
///
/// # Safety
/// Called by Envoy with its object and two buffers that live as long as the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: abi::HttpFilterConfigEnvoyPtr,
    _name: EnvoyBuffer,
    text: EnvoyBuffer,
) -> Config {
    guarded(std::ptr::null(), || {
        // SAFETY: both are this hook's.
        let (envoy, text) = unsafe { (Envoy::config(config), bytes(&text)) };
        match Plugin::load(&envoy, text) {
            Ok(plugin) => {
                // SAFETY: the configuration is this hook's.
                let clock = || unsafe { Clock::start(config) };
                let clock = plugin.has_feeds().then(clock).flatten();
                if plugin.has_feeds() && clock.is_none() {
                    log(LogLevel::Warn, NO_CLOCK);
                }
                Box::into_raw(Box::new(Loaded {
                    plugin: Arc::new(plugin),
                    _clock: clock,
                }))
            }
            Err(error) => {
                log(LogLevel::Error, &error.to_string());
                std::ptr::null()
            }
        }
    })
}

/// # Safety
/// Called by Envoy once for what `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: Config) {
    // SAFETY: from `Box::into_raw`; requests under way have plugins of their own.
    guarded((), || drop(unsafe { Box::from_raw(config.cast_mut()) }));
}

/// The clock has ticked. On the main thread.
///
/// # Safety
/// Called by Envoy with its object and what `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    envoy: abi::HttpFilterConfigEnvoyPtr,
    config: Config,
    _event: u64,
) {
    guarded((), || {
        // SAFETY: both are this hook's, and the configuration is destroyed after it.
        let (envoy, config) = unsafe { (Envoy::config(envoy), config.as_ref()) };
        if let Some(config) = config {
            config.plugin.on_tick(&envoy);
        }
    });
}

/// A configuration's call was answered, or will not be. On the main thread.
///
/// # Safety
/// Called by Envoy with its object, what `config_new` returned, and as many headers and pieces as it says, none of which
/// live longer than the hook.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
    envoy: abi::HttpFilterConfigEnvoyPtr,
    config: Config,
    call: u64,
    result: u32,
    headers: *const EnvoyHttpHeader,
    headers_length: usize,
    pieces: *const EnvoyBuffer,
    pieces_length: usize,
) {
    guarded((), || {
        // SAFETY: all are this hook's.
        let (envoy, config, headers, pieces) = unsafe {
            (
                Envoy::config(envoy),
                config.as_ref(),
                listed(headers, headers_length),
                listed(pieces, pieces_length),
            )
        };
        let (Some(config), Ok(call)) = (config, u32::try_from(call)) else {
            return;
        };
        // SAFETY: headers and pieces are this hook's.
        let (status, body) = unsafe { (status(headers), body(pieces, Plugin::MAX_ANSWER_BYTES)) };
        let status = status.filter(|_| result == abi::CALL_ANSWERED);
        (config.plugin).on_answer(&envoy, call, status, body.as_deref());
    });
}

/// A request begins.
///
/// # Safety
/// Called by Envoy with what `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: Config,
    _filter: abi::HttpFilterEnvoyPtr,
) -> Filter {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: from `config_new`, and not destroyed before its last `filter_new`.
        let plugin = unsafe { &(*config).plugin };
        Box::into_raw(Box::new(Exchange::new(Arc::clone(plugin))))
    })
}

/// # Safety
/// Called by Envoy once for what `filter_new` returned, after every other hook of the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter: Filter) {
    // SAFETY: from `Box::into_raw`.
    guarded((), || drop(unsafe { Box::from_raw(filter) }));
}

/// # Safety
/// Called by Envoy on the request's thread with its object and what `filter_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
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

/// # Safety
/// As `request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    _end_of_stream: bool,
) -> u32 {
    // SAFETY: both are this hook's.
    unsafe {
        on_response(envoy, filter, |exchange, envoy| {
            exchange.on_response_headers(envoy);
        });
    };
    abi::CONTINUE
}

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

/// The answer to a call of the request's has come, or none will.
///
/// # Safety
/// As `request_headers`; headers and body live as long as the call.
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
            let status = match result {
                abi::CALL_ANSWERED => status(listed(headers, headers_length)),
                abi::CALL_TOO_LONG => Some(200),
                _ => None,
            };
            let body = body(listed(chunks, chunks_length), exchange.max_answer_bytes());
            let body = body.filter(|_| result != abi::CALL_TOO_LONG);
            exchange.on_answer(envoy, call, status, body.as_deref());
            Flow::Continue
        });
    }
}

/// A list of Envoy's; null is an empty one.
///
/// # Safety
/// There are `length` items, for as long as the slice is in use.
unsafe fn listed<'hook, T>(items: *const T, length: usize) -> &'hook [T] {
    if items.is_null() {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(items, length) }
}

/// # Safety
/// The headers are of the running hook.
unsafe fn status(headers: &[EnvoyHttpHeader]) -> Option<u16> {
    // SAFETY: by the contract.
    let mut headers =
        (headers.iter()).map(|header| unsafe { (bytes(&header.key), bytes(&header.value)) });
    let (_, status) = headers.find(|(name, _)| *name == b":status")?;
    str::from_utf8(status).ok()?.parse().ok()
}

/// All of it, unless it is longer than `limit`.
///
/// # Safety
/// The chunks are of the running hook.
unsafe fn body(chunks: &[EnvoyBuffer], limit: usize) -> Option<Vec<u8>> {
    let size: usize = chunks.iter().map(|chunk| chunk.length).sum();
    if size > limit {
        return None;
    }
    // SAFETY: by the contract.
    let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| unsafe { bytes(chunk) }).collect();
    Some(pieces.concat())
}

/// Runs a response hook. The response goes on whatever happens.
///
/// # Safety
/// `envoy` and `filter` came with the running hook.
unsafe fn on_response(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    hook: impl FnOnce(&mut Exchange, &Envoy<'_>),
) {
    guarded((), || {
        // SAFETY: by the contract; Envoy calls one hook of a request at a time.
        if let Some(exchange) = unsafe { filter.as_mut() } {
            // SAFETY: by the contract.
            hook(exchange, &unsafe { Envoy::request(envoy) });
        }
    });
}

/// Runs a request hook. A panic answers 500 and keeps the request from going on; a request that `filter_new` could make
/// nothing for goes on as it came.
///
/// # Safety
/// `envoy` and `filter` came with the running hook.
unsafe fn on_request(
    envoy: abi::HttpFilterEnvoyPtr,
    filter: Filter,
    hook: impl FnOnce(&mut Exchange, &Envoy<'_>) -> Flow,
) -> Flow {
    // SAFETY: by the contract; Envoy calls one hook of a request at a time.
    let Some(exchange) = (unsafe { filter.as_mut() }) else {
        return Flow::Continue;
    };
    // SAFETY: by the contract.
    let envoy = unsafe { Envoy::request(envoy) };
    guarded(None, || Some(hook(exchange, &envoy))).unwrap_or_else(|| {
        let headers = [("content-type", "application/json")];
        guarded((), || {
            let body = exchange.failure();
            envoy.respond(500, &headers, &body).unwrap_or_default();
        });
        Flow::Hold
    })
}

/// Ends panics: `fallback` takes the place of the result.
fn guarded<T>(fallback: T, hook: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or(fallback)
}

const NO_CLOCK: &str = "there can be no thread, so engines' feeds are not followed: answers alone correct what is believed";

/// Hooks that Envoy demands and the filter has no use for: it streams no calls and, within a request, waits for no other
/// thread.
macro_rules! unused {
    ($($name:ident($($argument:ty),*) $(-> $status:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) $(-> unused!(@type $status))? {
            $(abi::$status)?
        }
    )*};
    (@type $status:ident) => { u32 };
}

unused! {
    envoy_dynamic_module_on_http_filter_scheduled(abi::HttpFilterEnvoyPtr, Filter, u64);
    envoy_dynamic_module_on_http_filter_http_stream_headers(
        abi::HttpFilterEnvoyPtr, Filter, u64, *mut c_void, usize, bool
    );
    envoy_dynamic_module_on_http_filter_http_stream_data(
        abi::HttpFilterEnvoyPtr, Filter, u64, *const c_void, usize, bool
    );
    envoy_dynamic_module_on_http_filter_http_stream_trailers(
        abi::HttpFilterEnvoyPtr, Filter, u64, *mut c_void, usize
    );
    envoy_dynamic_module_on_http_filter_http_stream_complete(abi::HttpFilterEnvoyPtr, Filter, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(abi::HttpFilterEnvoyPtr, Filter, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(abi::HttpFilterEnvoyPtr, Filter);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(abi::HttpFilterEnvoyPtr, Filter);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use std::ptr::null_mut;

    fn load(text: &str) -> Config {
        let text = EnvoyBuffer {
            ptr: text.as_ptr().cast(),
            length: text.len(),
        };
        // SAFETY: the fake Envoy looks at no pointer, and the text outlives the call.
        unsafe { envoy_dynamic_module_on_http_filter_config_new(null_mut(), text, text) }
    }

    #[test]
    fn a_configuration_outlives_its_removal_while_a_request_uses_it() {
        let config = load("{}");
        // SAFETY: each object came from the hook before it and is destroyed once.
        unsafe {
            let filter = envoy_dynamic_module_on_http_filter_new(config, null_mut());
            envoy_dynamic_module_on_http_filter_config_destroy(config);
            let status =
                envoy_dynamic_module_on_http_filter_request_headers(null_mut(), filter, true);
            assert_eq!(status, abi::CONTINUE);
            envoy_dynamic_module_on_http_filter_destroy(filter);
        }
    }

    #[test]
    fn a_bad_configuration_is_refused() {
        assert!(load(r#"{"no_such_field": 1}"#).is_null());
    }

    #[test]
    fn a_panic_ends_at_its_hook_and_answers_500() {
        let config = load("");
        // SAFETY: as above.
        unsafe {
            let filter = envoy_dynamic_module_on_http_filter_new(config, null_mut());
            assert_eq!(
                on_request(null_mut(), filter, |_, _| panic!("for the test")),
                Flow::Hold
            );
            assert_eq!(fake::take_answer(), Some(500));
            let flow = on_request(null_mut(), filter, |_, _| Flow::Continue);
            assert_eq!((flow, fake::take_answer()), (Flow::Continue, None));
            envoy_dynamic_module_on_http_filter_destroy(filter);
            envoy_dynamic_module_on_http_filter_config_destroy(config);
        }
    }

    #[test]
    fn a_request_that_nothing_could_be_made_for_goes_on() {
        // SAFETY: null is what `filter_new` returns after a panic.
        let status = unsafe {
            envoy_dynamic_module_on_http_filter_request_headers(null_mut(), null_mut(), false)
        };
        assert_eq!(status, abi::CONTINUE);
    }

    #[test]
    fn a_configuration_with_feeds_ticks_until_it_is_destroyed() {
        let text = br#"{"engines": [{"name": "e", "feed": {"cluster": "engine"}}]}"#;
        let text = EnvoyBuffer {
            ptr: text.as_ptr().cast(),
            length: text.len(),
        };
        // The fake Envoy follows no pointer; this one tells the schedulers of this test from others.
        let envoy: *mut c_void = std::ptr::without_provenance_mut(7);
        // SAFETY: as above.
        let config = unsafe { envoy_dynamic_module_on_http_filter_config_new(envoy, text, text) };
        while fake::schedulers(envoy).iter().all(|used| used.events < 2) {
            std::thread::yield_now();
        }
        // SAFETY: as above; there are no headers and no pieces.
        unsafe {
            envoy_dynamic_module_on_http_filter_config_scheduled(envoy, config, 0);
            envoy_dynamic_module_on_http_filter_config_http_callout_done(
                envoy,
                config,
                0,
                1,
                std::ptr::null(),
                0,
                std::ptr::null(),
                0,
            );
            envoy_dynamic_module_on_http_filter_config_destroy(config);
        }
        let [scheduled] = fake::schedulers(envoy)[..] else {
            panic!("one clock")
        };
        assert!(scheduled.deleted);
    }

    #[test]
    fn a_configuration_without_feeds_has_no_clock() {
        let config = load("{}");
        // SAFETY: destroyed once.
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(config) };
        assert_eq!(fake::schedulers(null_mut()), []);
    }
}
