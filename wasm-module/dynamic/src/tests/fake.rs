//! Envoy's side of the ABI for the tests: it defines metrics, and records the last response and the schedulers; other
//! calls have no effect. Tests with real Envoy are in `tests/`.
#![allow(unsafe_code, reason = "definitions of what Envoy defines otherwise")]

use std::cell::{Cell, RefCell};
use std::sync::Mutex;

use crate::abi::{
    ConfigSchedulerPtr, EnvoyBuffer, HttpFilterConfigEnvoyPtr, HttpFilterEnvoyPtr, ModuleBuffer,
    ModuleHttpHeader,
};

thread_local! {
    /// Status of the last response sent on this thread.
    static ANSWERED: RefCell<Option<u32>> = const { RefCell::new(None) };
    /// Number of times that a request was resumed on this thread.
    static RESUMED: Cell<u32> = const { Cell::new(0) };
}

/// The use of each scheduler in the process.
static SCHEDULERS: Mutex<Vec<Scheduled>> = Mutex::new(Vec::new());

/// The use of a scheduler.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// The scheduler's configuration.
    pub(crate) config: usize,
    pub(crate) events: usize,
    pub(crate) deleted: bool,
}

/// The schedulers of a configuration.
pub(crate) fn schedulers(config: HttpFilterConfigEnvoyPtr) -> Vec<Scheduled> {
    let all = SCHEDULERS.lock().unwrap();
    let of_it = all
        .iter()
        .filter(|scheduled| scheduled.config == config.addr());
    of_it.copied().collect()
}

/// Changes a scheduler's record. Its pointer is its index plus one.
fn scheduled(scheduler: ConfigSchedulerPtr, change: impl FnOnce(&mut Scheduled)) {
    change(&mut SCHEDULERS.lock().unwrap()[scheduler.addr() - 1]);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(
    config: HttpFilterConfigEnvoyPtr,
) -> ConfigSchedulerPtr {
    let mut all = SCHEDULERS.lock().unwrap();
    all.push(Scheduled {
        config: config.addr(),
        ..Scheduled::default()
    });
    std::ptr::without_provenance_mut(all.len())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
    scheduler: ConfigSchedulerPtr,
    _: u64,
) {
    scheduled(scheduler, |scheduled| scheduled.events += 1);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(
    scheduler: ConfigSchedulerPtr,
) {
    scheduled(scheduler, |scheduled| {
        assert!(!scheduled.deleted, "deleted twice");
        scheduled.deleted = true;
    });
}

pub(crate) fn take_answer() -> Option<u32> {
    ANSWERED.take()
}

pub(crate) fn take_resumed() -> u32 {
    RESUMED.take()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_send_response(
    _: HttpFilterEnvoyPtr,
    status: u32,
    _: *mut ModuleHttpHeader,
    _: usize,
    _: ModuleBuffer,
    _: ModuleBuffer,
) {
    ANSWERED.set(Some(status));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_continue_decoding(_: HttpFilterEnvoyPtr) {
    RESUMED.set(RESUMED.get() + 1);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_new(
    _: HttpFilterEnvoyPtr,
) -> ConfigSchedulerPtr {
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
    _: ConfigSchedulerPtr,
    _: u64,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_delete(_: ConfigSchedulerPtr) {}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_log(_: u32, _: ModuleBuffer) {}

/// Functions without effect, which return `false` or 0; for metrics 0 means success.
macro_rules! nothing {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) -> $result { <$result>::default() }
    )*};
}

nothing! {
    envoy_dynamic_module_callback_http_get_header(
        HttpFilterEnvoyPtr, u32, ModuleBuffer, *mut EnvoyBuffer, usize, *mut usize
    ) -> bool;
    envoy_dynamic_module_callback_http_set_header(HttpFilterEnvoyPtr, u32, ModuleBuffer, ModuleBuffer) -> bool;
    envoy_dynamic_module_callback_http_filter_get_attribute_string(HttpFilterEnvoyPtr, u32, *mut EnvoyBuffer) -> bool;
    envoy_dynamic_module_callback_http_get_body_size(HttpFilterEnvoyPtr, u32) -> usize;
    envoy_dynamic_module_callback_http_get_body_chunks_size(HttpFilterEnvoyPtr, u32) -> usize;
    envoy_dynamic_module_callback_http_get_body_chunks(HttpFilterEnvoyPtr, u32, *mut EnvoyBuffer) -> bool;
    envoy_dynamic_module_callback_http_drain_body(HttpFilterEnvoyPtr, u32, usize) -> bool;
    envoy_dynamic_module_callback_http_append_body(HttpFilterEnvoyPtr, u32, ModuleBuffer) -> bool;
    envoy_dynamic_module_callback_http_received_buffered_request_body(HttpFilterEnvoyPtr) -> bool;
    envoy_dynamic_module_callback_http_filter_http_callout(
        HttpFilterEnvoyPtr, *mut u64, ModuleBuffer, *mut ModuleHttpHeader, usize, ModuleBuffer, u64
    ) -> u32;
    envoy_dynamic_module_callback_http_has_filter_state(HttpFilterEnvoyPtr, ModuleBuffer) -> bool;
    envoy_dynamic_module_callback_http_set_filter_state_bytes(HttpFilterEnvoyPtr, ModuleBuffer, ModuleBuffer) -> bool;
    envoy_dynamic_module_callback_http_filter_config_define_counter(
        HttpFilterConfigEnvoyPtr, ModuleBuffer, *mut ModuleBuffer, usize, *mut usize
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_config_define_histogram(
        HttpFilterConfigEnvoyPtr, ModuleBuffer, *mut ModuleBuffer, usize, *mut usize
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_increment_counter(
        HttpFilterEnvoyPtr, usize, *mut ModuleBuffer, usize, u64
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_record_histogram_value(
        HttpFilterEnvoyPtr, usize, *mut ModuleBuffer, usize, u64
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_config_http_callout(
        HttpFilterConfigEnvoyPtr, *mut u64, ModuleBuffer, *mut ModuleHttpHeader, usize, ModuleBuffer, u64
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_config_increment_counter(
        HttpFilterConfigEnvoyPtr, usize, *mut ModuleBuffer, usize, u64
    ) -> u32;
    envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
        HttpFilterConfigEnvoyPtr, usize, *mut ModuleBuffer, usize, u64
    ) -> u32;
}
