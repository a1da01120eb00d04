//! The server over real HTTP, with the real engine on a scripted backend (see `support::parrot`).
//!
//! One binary, so that it links once.

mod binary;
mod chat;
mod completions;
mod kv;
mod kv_zmq;
mod lifecycle;
mod limits;
mod probes;
mod refusals;
mod streaming;
mod support;
