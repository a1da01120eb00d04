//! The hooks that Envoy requires but the filter does not use: of streaming calls, and of write buffers' watermarks.
#![allow(unsafe_code, reason = "exports, which Envoy finds by their names")]

use std::ffi::c_void;

use super::request::Filter;
use crate::abi;

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
