//! Tests of several parts at once, and of what is written about them; `gateway`, `ext_proc`, `soak` and `instructions`
//! are programs of their own, which run in other ways or alone.

mod artefact;
mod batch;
mod chart;
mod clients;
mod evaluate;
mod features;
mod feed;
mod gateways;
mod manifests;
mod promises;
mod recipes;
mod record;
mod residency;
mod retrieval;
mod routes;
mod schema;
