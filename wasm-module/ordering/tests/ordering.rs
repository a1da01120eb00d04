//! The core's integration tests.

mod clients;
#[path = "clients/model.rs"]
mod clients_model;
mod hostile;
#[path = "tool_lists/lists.rs"]
mod lists;
mod model;

mod conversation_model;
mod conversations;
mod cuts;
mod engines;
mod explain;
mod formats;
mod golden;
mod head_figures;
mod head_model;
mod heads;
mod hostile_bodies;
mod labels;
mod path;
mod ranks;
mod remote;
mod retrieved;
mod rewrite;
mod segments;
mod tenants;
mod tool_lists;
mod trials;
mod wandering;
