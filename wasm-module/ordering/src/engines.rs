//! Which engine a request goes to.
//!
//! ```text
//!                 tree of engine 0      would compute 900 tokens, has 4,000 to compute    4,900
//!   request ────▶ tree of engine 1      would compute 100 tokens, has 4,500 to compute    4,600 ◀── this one
//!                 tree of engine 2      would compute 900 tokens, is unhealthy
//! ```
//!
//! The request is ordered against what each engine is believed to hold, and goes where the fewest tokens must be computed
//! until it has been: its own that are not held there, and those of the requests before it (Preble's *E2*,
//! arXiv:2407.00023, with the load term of prefill alone: a load of zero exploits, a load above what is
//! saved explores). Of equals the first one in the list that the caller has turned. Chats stay where their earlier turns
//! were sent, as long as that engine is among the choices.
//!
//! Which engines are healthy and what they have to do, the caller knows.

use smallvec::SmallVec;

/// One of the engines behind a gateway, by its place in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u16);

/// An engine that a request may go to. Of several the one is chosen where the fewest tokens must be computed until the
/// request has been: its own that are not held there, and the outstanding ones. Chats stay where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCandidate {
    /// Which.
    pub engine: EngineId,
    /// Estimated tokens that it has to compute for requests that it has not answered yet.
    pub outstanding: u64,
}

/// Engines that trees are kept for.
pub const MAX_ENGINES: u16 = 64;

/// The choices that count: the one that a chat is at home with, if it is among them.
pub(crate) fn choices(
    choices: &[EngineCandidate],
    home: Option<EngineId>,
) -> SmallVec<[EngineCandidate; 4]> {
    let known = choices
        .iter()
        .filter(|choice| choice.engine.0 < MAX_ENGINES);
    let mut known: SmallVec<[EngineCandidate; 4]> = known.copied().collect();
    if let Some(home) = known
        .iter()
        .copied()
        .find(|choice| Some(choice.engine) == home)
    {
        known.clear();
        known.push(home);
    }
    if known.is_empty() {
        known.push(EngineCandidate::default());
    }
    known
}
