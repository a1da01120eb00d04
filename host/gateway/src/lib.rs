//! Foreword's filter as an external processor for Envoy (`envoy.service.ext_proc.v3`): a third shell around
//! [`foreword_filter`], next to the Wasm module and the dynamic module.
//!
//! ```text
//!   gateway 1: worker, worker, …  ┐                      ┌─ ProcessingStream ─ Exchange ┐
//!                                 ├─ gRPC, a stream ─────┼─ ProcessingStream ─ Exchange ┼─ Plugin: one set of trees,
//!   gateway 2: worker, worker, …  ┘  for each request    └─ ProcessingStream ─ Exchange ┘  one similarity cache
//! ```
//!
//! | module | owns |
//! | --- | --- |
//! | [`service`] | the gRPC service: admission of streams, the order of their messages, their errors |
//! | `stream` | one request: translates messages for the filter, and the filter's decisions into messages |
//! | `proxy` | the filter's [`Host`](foreword_filter::Host), for a request and for the plugin |
//! | [`processor`] | what all streams share: the plugin and its reload, limits, clusters, metrics |
//! | [`pool`] | the endpoints that an endpoint picker chooses from, and their load |
//! | `calls` | HTTP calls that the filter makes: to retrievers and to engines' feeds |
//! | [`metrics`] | counters and histograms, as Prometheus reads them |
//! | [`server`] | the process: listeners, probes, drain |
//!
//! With a [`pool`], the same service is an endpoint picker of the Gateway API's inference extension.
//!
//! This crate makes no decisions about requests; the filter and the core do. All gateways share one
//! [`Plugin`](foreword_filter::Plugin), whose mutex is held only for the microseconds of an ordering; parsing,
//! rendering of refusals and the protocol run concurrently on all cores.
//!
//! An external processor works wherever Envoy's ext_proc does, and gateways that share it share their knowledge; it
//! costs round trips. It is a separate binary because Envoy's protobuf messages take a minute to compile.

#![forbid(unsafe_code)]

mod calls;
pub mod metrics;
pub mod pool;
pub mod processor;
mod proxy;
pub mod server;
pub mod service;
mod stream;
