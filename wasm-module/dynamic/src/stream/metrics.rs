//! Counters and histograms.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use std::ffi::c_void;

use foreword_filter::{HostError, MetricId};

use super::{Envoy, NO_CONFIG, Scope, refused};
use crate::abi::{self, ModuleBuffer};

impl Envoy<'_> {
    pub(super) fn define(
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

    /// Adds to a counter or records in a histogram, through the running hook's request or configuration.
    pub(super) fn measure(
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

pub(super) type Define = unsafe extern "C" fn(
    abi::HttpFilterConfigEnvoyPtr,
    ModuleBuffer,
    *mut ModuleBuffer,
    usize,
    *mut usize,
) -> u32;
pub(super) type Measure =
    unsafe extern "C" fn(*mut c_void, usize, *mut ModuleBuffer, usize, u64) -> u32;
