//! A Wasm filter that holds a request until its body is complete, and does nothing else: the least that any filter costs
//! which reads whole bodies in Wasm. The bench `latency` measures Foreword's beside it.
//!
//! With the configuration `{"copy":true}` it also takes the body into the VM and puts it back, as whatever rewrites
//! bodies must.

#[cfg(target_arch = "wasm32")]
mod filter;
