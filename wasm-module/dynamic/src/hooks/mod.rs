//! The functions that Envoy calls: the 21 exports that Envoy 1.40 requires of an HTTP filter, and two optional ones of
//! configurations (ticks, cluster calls).
//!
//! | file | hooks of |
//! | --- | --- |
//! | this file | the module; catching panics |
//! | `config` | a configuration |
//! | `request` | a request and its response |
//! | `unused` | features that the filter does not use |
//! | `answer` | none: it reads the responses of cluster calls |
//!
//! Each hook catches its panics: an uncaught one would abort Envoy and every stream in it. If a request's hook panics,
//! the client receives a 500, if that is still possible. Later requests are unaffected, except that the orderer may
//! lose its history.
#![allow(unsafe_code, reason = "an export, which Envoy finds by its name")]

mod answer;
mod config;
mod request;
#[cfg(test)]
mod tests;
mod unused;

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foreword_filter::LogLevel;

use crate::abi;
use crate::stream::log;

/// Returns the ABI version that the module was built for; called when Envoy loads it.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    // A panic's message may quote a request, so only its place is logged. The panic hook is this library's own.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        log(LogLevel::Error, &format!("foreword panicked at {place}"));
    }));
    abi::ABI_VERSION.as_ptr()
}

/// Runs `hook`; returns `fallback` if it panics.
fn guarded<T>(fallback: T, hook: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or(fallback)
}
