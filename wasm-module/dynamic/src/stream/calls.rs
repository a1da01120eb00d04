//! Cluster calls, and resuming the requests that wait for them.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use foreword_filter::{HostError, Resumer};

use super::headers::of_headers;
use super::{Envoy, NO_CONFIG, NO_SUCH_THING, Scope, refused};
use crate::abi::{self, ModuleBuffer};

impl Envoy<'_> {
    /// Makes a call for a configuration; an error in a request's hook.
    pub(super) fn call_for_config(
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

    /// Makes a call for a request; an error in a configuration's hook.
    pub(super) fn call_for_request(
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

    /// Returns a function that resumes the request from any thread; `None` in a configuration's hook.
    pub(super) fn remote_resumer(&self) -> Option<Resumer> {
        let filter = self.filter("resumer").ok()?;
        // SAFETY: `filter` is the running hook's.
        let scheduler =
            unsafe { abi::envoy_dynamic_module_callback_http_filter_scheduler_new(filter) };
        let scheduler = (!scheduler.is_null()).then_some(Scheduler(scheduler))?;
        Some(Box::new(move || scheduler.commit()))
    }

    /// Resumes a paused request.
    pub(super) fn continue_decoding(&self) {
        if let Ok(filter) = self.filter("resume") {
            // SAFETY: `filter` is the running hook's.
            unsafe { abi::envoy_dynamic_module_callback_http_filter_continue_decoding(filter) };
        }
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
