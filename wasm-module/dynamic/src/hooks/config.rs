//! The hooks of a configuration, all on Envoy's main thread.
#![allow(
    unsafe_code,
    reason = "C functions that hand over Envoy's objects and take back our own"
)]

use std::sync::Arc;
use std::time::Duration;

use foreword_filter::{LogLevel, Plugin};

use super::answer::{body, listed, status};
use super::guarded;
use crate::abi::{self, EnvoyBuffer, EnvoyHttpHeader};
use crate::clock::Clock;
use crate::stream::{Envoy, bytes, log};

/// The module's object for a configuration.
pub(super) struct Loaded {
    /// The plugin. Requests share it, and may outlive the configuration.
    pub(super) plugin: Arc<Plugin>,
    /// The clock; `None` if the plugin needs no ticks, or no thread can be started.
    _clock: Option<Clock>,
}

pub(super) type Config = *const Loaded;

/// Workers share a plugin, so it must be `Send` and `Sync`.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Plugin>();
};

/// Loads a configuration. Returns null to refuse it.
///
/// # Safety
/// Envoy calls it with its configuration object and two buffers that are valid during the call.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: abi::HttpFilterConfigEnvoyPtr,
    _name: EnvoyBuffer,
    text: EnvoyBuffer,
) -> Config {
    guarded(std::ptr::null(), || {
        // SAFETY: both are this hook's.
        let (envoy, text) = unsafe { (Envoy::config(config), bytes(&text)) };
        match Plugin::load(&envoy, text) {
            Ok(plugin) => {
                let interval = Duration::from_millis(Plugin::TICK_MS);
                // SAFETY: the configuration is this hook's.
                let clock = || unsafe { Clock::start(config, interval) };
                let clock = plugin.needs_ticks().then(clock).flatten();
                match &clock {
                    Some(clock) => plugin.wake_with(clock.waker()),
                    None if plugin.holds_requests() => {
                        log(LogLevel::Error, NO_CLOCK_FOR_BURSTS);
                        return std::ptr::null();
                    }
                    None if plugin.needs_ticks() => log(LogLevel::Warn, NO_CLOCK),
                    None => {}
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

/// Drops the module's object for a configuration. Requests in flight keep the plugin.
///
/// # Safety
/// Envoy calls it once for each result of `config_new`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: Config) {
    // SAFETY: from `Box::into_raw`; requests in flight have their own references to the plugin.
    guarded((), || drop(unsafe { Box::from_raw(config.cast_mut()) }));
}

/// Handles a tick of the clock, on the main thread.
///
/// # Safety
/// Envoy calls it with its configuration object and the result of `config_new`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
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

/// Handles the response to a call that the plugin made, or the call's failure, on the main thread.
///
/// # Safety
/// Envoy calls it with its configuration object, the result of `config_new`, and the given numbers of headers and
/// pieces, which are valid during the call.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
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
        let (status, body) = unsafe {
            (
                status(result, headers),
                body(result, pieces, Plugin::MAX_ANSWER_BYTES),
            )
        };
        (config.plugin).on_answer(&envoy, call, status, body.as_deref());
    });
}

const NO_CLOCK: &str = "there can be no thread, so engines' feeds are not followed: answers alone correct what is believed";
const NO_CLOCK_FOR_BURSTS: &str =
    "there can be no thread, so requests held by `bursts` could not be resumed";
