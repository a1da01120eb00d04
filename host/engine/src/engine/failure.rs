//! Why a request that was taken in got no complete answer.

use std::time::Duration;

/// The reasons, by what can be done about them. Their words name no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// [`Request::deadline`](super::Request) passed.
    #[error("the request's time was over before its answer was complete")]
    Expired,
    /// A later request of the same [`SpeculationId`](super::SpeculationId) took its place.
    #[error("a later request took the place of this one")]
    Superseded,
    /// The device failed under the request more often than [`EngineConfig::max_retries`](super::EngineConfig) allows,
    /// was handed a step that it cannot compute, or is lost and there is none to replace it.
    #[error("{0}")]
    Device(String),
    /// The device did not come back from a step, again and again, or there is none to replace it.
    #[error("the device has not come back from a step for {} s", patience.as_secs_f32())]
    Stuck {
        /// [`EngineConfig::watchdog`](super::EngineConfig).
        patience: Duration,
    },
    /// The model's output cannot be chosen from: it is not numbers.
    #[error("{0}")]
    Sampling(String),
    /// The engine ended first.
    #[error("the engine ended before the answer did")]
    Stopped,
}
