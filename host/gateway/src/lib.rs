//! Foreword's filter behind Envoy's external-processing protocol (`envoy.service.ext_proc.v3`): a third shell around
//! [`foreword_filter`], beside the Wasm module and the dynamic module.
//!
//! ```text
//!   gateway 1: worker, worker, …  ┐                      ┌─ ProcessingStream ─ Exchange ┐
//!                                 ├─ gRPC, a stream ─────┼─ ProcessingStream ─ Exchange ┼─ Plugin: one set of trees,
//!   gateway 2: worker, worker, …  ┘  for each request    └─ ProcessingStream ─ Exchange ┘  one similarity cache
//! ```
//!
//! | module | owns |
//! | --- | --- |
//! | [`service`] | the gRPC service: admission of streams, their order of events, their errors |
//! | `stream` | one request: what the protocol's messages mean to the filter, and its decisions in the protocol's words |
//! | `proxy` | the filter's [`Host`](foreword_filter::Host), for a request and for the plugin |
//! | [`processor`] | what all streams share: the plugin and its reload, bounds, clusters, metrics |
//! | [`pool`] | the endpoints that an endpoint picker chooses from, and their load |
//! | `calls` | HTTP calls that the filter makes: retrieval, engines' feeds |
//! | [`metrics`] | counters and histograms, as Prometheus reads them |
//! | [`server`] | a process's life: listeners, probes, reload, drain |
//!
//! With a [`pool`], the same service is an endpoint picker of the Gateway API's inference extension.
//!
//! This crate decides nothing about requests: the filter and the core do. All gateways share one
//! [`Plugin`](foreword_filter::Plugin). Its mutex is held for the microseconds that an ordering takes; parsing,
//! rendering of refusals and the protocol run concurrently on all cores.
//!
//! It works wherever ext_proc does, and several gateways share their knowledge. It costs round trips. Envoy's messages
//! take a minute to compile, so it is a separate binary.

#![forbid(unsafe_code)]

mod calls;
pub mod metrics;
pub mod pool;
pub mod processor;
mod proxy;
pub mod server;
pub mod service;
mod stream;
