//! A Wasm filter that only holds a request until its body is complete: the least cost of any filter that reads whole
//! bodies in Wasm. The bench `latency` compares Foreword's filter with it.
//!
//! With the configuration `{"copy":true}` it also copies the body into the VM and back, as every filter that rewrites
//! bodies must. With `{"copy":true,"read":true}` it also scans every byte once for the characters that a JSON reader
//! stops at, hashes the body once, and sets a header each way, which is the least work of a filter that reads a body
//! and reports on it.

#[cfg(target_arch = "wasm32")]
mod filter;
