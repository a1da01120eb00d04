//! Why a request that was taken in got no complete answer.

/// The reasons, by what can be done about them. Their words name no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The device failed under the request more often than [`EngineConfig::max_retries`](super::EngineConfig) allows,
    /// or was handed a step that it cannot compute.
    #[error("{0}")]
    Device(String),
    /// The model's output cannot be chosen from: it is not numbers.
    #[error("{0}")]
    Sampling(String),
    /// The engine ended first.
    #[error("the engine ended before the answer did")]
    Stopped,
}
