//! Reasons why an accepted request got no complete answer.

use std::time::Duration;

/// The reason that an accepted request failed. The messages contain nothing of the request's content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request's [`deadline`](super::Request) passed before the answer was complete.
    #[error("the request's deadline passed before its answer was complete")]
    Expired,
    /// A later request with the same [`SpeculationId`](super::SpeculationId) took the place of this one.
    #[error("a later request took the place of this one")]
    Superseded,
    /// The device failed while it computed the request, more often than
    /// [`EngineConfig::max_retries`](super::EngineConfig) allows, was given a step that it cannot compute, or is lost
    /// without a replacement. Contains the device's message.
    #[error("{0}")]
    Device(String),
    /// The device did not return from a step in time, and no replacement could be made or too many had failed.
    #[error("the device has not returned from a step for {} s", patience.as_secs_f32())]
    Stuck {
        /// The time limit of a step that was exceeded, [`EngineConfig::watchdog`](super::EngineConfig).
        patience: Duration,
    },
    /// No token can be chosen from the model's output, for instance because it contains NaN. Contains the reason.
    #[error("{0}")]
    Sampling(String),
    /// The grammar that the answer must follow exceeds the bound on the work for one token, because the request's
    /// grammar is too complex.
    #[error("{0}")]
    Grammar(String),
    /// The engine stopped before the request was complete.
    #[error("the engine stopped before the answer was complete")]
    Stopped,
}
