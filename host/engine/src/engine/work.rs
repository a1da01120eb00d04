//! The device's work between two decisions, and the backend calls that compute it.
//!
//! Work is plain data, so a thread that holds only the device can compute it.

use super::prompt_scores::ScoredRows;
use crate::TokenId;
use crate::backend::{Backend, BackendError, Output, Segment, Step, Store};
use crate::cache::{DiskTier, SlotCopy, Transfer};
use crate::sampling::{Logprobs, SamplingError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The results of a step; the memory is reused for the next one.
#[derive(Default)]
pub(super) struct Answers {
    /// Logits `[rows, vocabulary] f32`: the rows of each segment that wants logits, in the order of the segments.
    pub(super) logits: Vec<f32>,
    /// Sampled tokens or errors, one for each segment with [`Output::Token`], in order.
    pub(super) drawn: Vec<Result<TokenId, SamplingError>>,
    /// Log-probabilities of prompt tokens, or an error, for each segment with [`Output::All`], in order.
    pub(super) scores: Vec<Result<Vec<Logprobs>, SamplingError>>,
}

/// The device's next work, decided by the engine and carried out in this order: moves of pages between tiers, copies
/// within the device, and a step.
#[derive(Default)]
pub(super) struct Work {
    /// Copies between device pages, host pages and disk.
    pub(super) transfers: Vec<Transfer>,
    /// The disk tier to which transfers write pages; `None` if there are no transfers or no disk.
    pub(super) disk: Option<Arc<dyn DiskTier>>,
    pub(super) copies: Vec<SlotCopy>,
    /// The step to compute, with a segment for each running sequence that gets tokens in it, in their order.
    pub(super) step: Step,
    /// For each segment with [`Output::All`], in order, the prompt tokens that its logits score.
    pub(super) scored: Vec<ScoredRows>,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.transfers.is_empty() && self.copies.is_empty() && self.has_no_step()
    }

    fn has_no_step(&self) -> bool {
        self.step.segments.is_empty() && self.step.loads.is_empty()
    }

    /// Carries out the work on `backend` and replaces `answers` with the results of its step; see [`Backend::run`]. A
    /// panic of the backend counts as an error, because it has the same effect as a failed device: undefined pages,
    /// which return to the pool.
    ///
    /// # Errors
    /// Returns the backend's error. Only pages that the work writes are affected, unless the device is lost.
    pub(super) fn run(
        &self,
        backend: &mut dyn Backend,
        answers: &mut Answers,
    ) -> Result<(), BackendError> {
        answers.logits.clear();
        answers.drawn.clear();
        answers.scores.clear();
        catch_unwind(AssertUnwindSafe(|| self.call(backend, answers))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let message = message.unwrap_or("no message");
            Err(BackendError::Device(format!("it panicked: {message}")))
        })
    }

    fn call(&self, backend: &mut dyn Backend, answers: &mut Answers) -> Result<(), BackendError> {
        self.transfer(backend)?;
        for copy in &self.copies {
            backend.copy_slots(copy.from, copy.to, copy.tokens)?;
        }
        if self.has_no_step() {
            return Ok(());
        }
        backend.run(&self.step, &mut answers.logits)?;
        answers.drawn = backend.drawn();
        self.checked(answers, backend.shape().vocabulary)?;
        self.score(answers, backend.shape().vocabulary as usize);
        Ok(())
    }

    /// Computes log-probabilities from the logits of segments with [`Output::All`] and adds them to `answers`.
    fn score(&self, answers: &mut Answers, vocabulary: usize) {
        let mut logits = answers.logits.as_slice();
        let mut scored = self.scored.iter();
        for segment in &self.step.segments {
            let (own, rest) = logits.split_at(rows(segment) * vocabulary);
            logits = rest;
            if segment.output == Output::All
                && let Some(scored) = scored.next()
            {
                answers.scores.push(scored.score(own, vocabulary));
            }
        }
    }

    /// Carries out the transfers in order. Consecutive copies to host memory are passed to the backend in one call.
    fn transfer(&self, backend: &mut dyn Backend) -> Result<(), BackendError> {
        let mut stores: Vec<Store> = Vec::new();
        for transfer in &self.transfers {
            if let Transfer::Store(store) = transfer {
                // Between two stores to one host page the page was saved or released: keep their order.
                if stores.iter().any(|earlier| earlier.to == store.to) {
                    backend.store(&std::mem::take(&mut stores))?;
                }
                stores.push(*store);
                continue;
            }
            backend.store(&std::mem::take(&mut stores))?;
            match transfer {
                Transfer::Store(_) => {}
                Transfer::Save { page, hash, parent } => {
                    if let Some(disk) = &self.disk {
                        disk.write(*hash, *parent, backend.host_page(*page)?);
                    }
                }
                Transfer::Fill { page, bytes } => {
                    let to = backend.host_page_mut(*page)?;
                    if to.len() != bytes.len() {
                        let (found, wanted) = (bytes.len(), to.len());
                        return Err(BackendError::Device(format!(
                            "a page of {found} bytes came back from disk, not of {wanted}"
                        )));
                    }
                    to.copy_from_slice(bytes);
                }
            }
        }
        backend.store(&stores)
    }

    /// Checks that the backend returned as many logits and sampled tokens as the step wants; otherwise returns an
    /// error.
    fn checked(&self, answers: &Answers, vocabulary: u32) -> Result<(), BackendError> {
        let segments = self.step.segments.iter();
        let rows: usize = segments.clone().map(rows).sum();
        let draws = |segment: &&Segment| matches!(segment.output, Output::Token(_));
        let tokens = segments.filter(draws).count();
        let (found, drawn) = (answers.logits.len(), answers.drawn.len());
        if found != rows * vocabulary as usize {
            return Err(BackendError::Device(format!(
                "it computed {found} logits, not {rows} rows of {vocabulary}"
            )));
        }
        if drawn != tokens {
            return Err(BackendError::Device(format!(
                "it chose {drawn} tokens, not {tokens}"
            )));
        }
        Ok(())
    }
}

/// Returns the number of rows of logits that a segment wants.
pub(super) fn rows(segment: &Segment) -> usize {
    match segment.output {
        Output::None | Output::Token(_) => 0,
        Output::Last => 1,
        Output::All => segment.tokens.len(),
    }
}
