//! Chooses the engine for a request.
//!
//! ```text
//!                 tree of engine 0      would compute 900 tokens, has 4,000 to compute    4,900
//!   request ────▶ tree of engine 1      would compute 100 tokens, has 4,500 to compute    4,600 ◀── this one
//!                 tree of engine 2      would compute 900 tokens, is unhealthy
//! ```
//!
//! The request is ordered against what each engine is believed to hold. It goes to the engine with the least pending
//! prefill: the request's own uncached tokens there, plus those of requests in flight. This is Preble's *E2*
//! (arXiv:2407.00023) with the load term of prefill alone: with no load it exploits the cache, and a load above what
//! the cache saves makes it explore. Among equals, the first in the caller's list wins; the caller rotates the list.
//! Chats stay with the engine of their earlier turns, as long as it is among the choices.
//!
//! The caller knows which engines are healthy and how much each has to compute.

use smallvec::SmallVec;

/// One of the engines behind a gateway, by its place in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u16);

/// An engine that a request may go to. The request goes to the candidate with the least pending prefill: the request's
/// own uncached tokens there, plus the outstanding ones. Chats stay with their engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCandidate {
    /// The engine's id.
    pub engine: EngineId,
    /// Estimated tokens that the engine has yet to compute for other requests.
    pub outstanding: u64,
}

/// Most engines that trees are kept for.
pub const MAX_ENGINES: u16 = 64;

/// Returns the choices that count: only the chat's own engine, if it is among them.
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
