//! Who computes what next.

mod plan;

pub use plan::{Limits, Plan, Running, State, Waiting, plan};
