//! A Wasm filter that holds a request until its body is complete, and does nothing else: the least that any filter costs
//! which reads whole bodies in Wasm. The bench `latency` measures Foreword's beside it.
//!
//! With the configuration `{"copy":true}` it also takes the body into the VM and puts it back, as whatever rewrites
//! bodies must. With `{"copy":true,"read":true}` it looks at every byte once for what a reader of JSON stops at, hashes the
//! body once, and tells a header each way: whatever knows a body and says so must do that much.

#[cfg(target_arch = "wasm32")]
mod filter;
