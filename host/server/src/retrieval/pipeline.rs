//! Prefills a chat speculatively while its documents are still being searched for (RAGCache, section 5.3, Algorithm 2).
//!
//! ```text
//!   search   ── stage ──▶ [D1 D3] ── stage ──▶ [D1 D2] ── stage ── stage ──▶ [D1 D2], the end
//!                 │                    │                                        │
//!   engine        └ guess: prefill     └ the guess ends, the next begins:       └ the chat itself joins the guess:
//!                   of D1, D3            D1 is found in the cache                 its tokens are there already,
//!                                                                                  and its logits
//! ```
//!
//! * A *guess* is a speculative prefill with the best documents so far. It is made when these change. By default
//!   another rank is a change only for favoured documents, whose place depends on their rank ([`Compared`]); for others
//!   it changes only the hint after the documents, which is short.
//! * A guess whose documents changed ends after the engine's current step, whether or not another one replaces it.
//!   Computed tokens stay cached.
//! * No guess is made while at least [`EngineConfig::max_prefill_batch`] requests wait: under load no capacity is idle.
//! * The order of the documents is that of the policy over the cache, or begins like the previous guess if that had
//!   started, whichever reuses more tokens. Favoured documents keep their places, and with policy `retrieval` all
//!   documents do.
//! * Only the latest stage is used: the search continues while a guess is prepared. A guess whose documents changed
//!   before it was prepared is not submitted.
//!
//! [`EngineConfig::max_prefill_batch`]: foreword_engine::engine::EngineConfig

use super::Retriever;
use super::orders::{Known, Ordered};
use super::prompt::{self, Written};
use crate::canary::blocking;
use crate::failure::Failure;
use crate::kv::place::Placer;
use crate::metrics::Placements;
use crate::model::Model;
use crate::request::{Chat, SearchQuery};
use foreword_engine::engine::{Event, Generation, Kind, Request, SpeculationId};
use foreword_ordering::Skip;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::path::Locator;
use foreword_ordering::policy::Split;
use foreword_retrieval::ScoredDocument;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// The changes of the documents found so far that end a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compared {
    /// A guess ends if a document changes, or the rank of a document whose position in the prompt depends on its rank
    /// (with the policy `retrieval`, of any document).
    #[default]
    Documents,
    /// A guess ends if a document or the rank of any document changes: RAGCache's Algorithm 2 as written.
    Ranks,
}

/// Runs the search for the documents of one chat, and submits guesses.
pub struct Pipeline {
    /// Searches for the documents.
    pub retriever: Arc<Retriever>,
    /// The model whose engine computes the guesses and the chat.
    pub model: Arc<Model>,
    /// Finds where each document ends in a prompt.
    pub locator: Locator,
    /// Permits to parse, render and tokenise on a blocking thread, shared with all requests.
    pub preparing: Arc<Semaphore>,
    /// True if guesses are made. False if the chat could not use the KV state that they compute.
    pub speculates: bool,
    /// The chat's deadline, at which its guesses end too.
    pub deadline: Instant,
}

/// A chat request into which the retrieved documents were written.
pub struct Prepared {
    /// The body of the chat request with its documents, or without any if none were found.
    pub written: Written,
    /// Number of documents found.
    pub documents: usize,
    /// The id under which all guesses of this chat are submitted. The chat itself, submitted under the same id, uses
    /// what they have computed.
    pub id: SpeculationId,
    /// The guess with the final documents; `None` if there is none.
    pub guess: Option<Speculation>,
}

/// A guess: a prefill with the documents found so far, which was submitted to the engine. Dropping it cancels it.
pub struct Speculation {
    /// Fingerprints (hashes) of the documents, in the order of the prompt.
    documents: Vec<Fingerprint>,
    /// The documents' ids as [`Pipeline::compared`] returns them. If the documents found later have other ids, the
    /// guess is wrong.
    ids: Vec<String>,
    generation: Generation,
}

impl Speculation {
    /// Cancels the guess. Returns the fingerprints of its documents if the engine had started it, so that some of them
    /// may be cached; otherwise `None`.
    fn end(mut self) -> Option<Vec<Fingerprint>> {
        let begun = matches!(self.generation.try_next(), Some(Event::Started { .. }));
        begun.then_some(self.documents)
    }

    /// Keeps the guess until the engine ends it, because the chat itself, submitted under the same id, continues or
    /// replaces it.
    pub async fn handed_over(mut self) {
        while self.generation.next().await.is_some() {}
    }
}

impl Pipeline {
    /// Searches for the documents of a chat with this `body` (without the fields `retrieval` and `documents`) and writes them into it,
    /// for the tenant of `salt`. Meanwhile submits guesses.
    ///
    /// # Errors
    /// Returns the search's errors, and [`Failure::Invalid`] if the core does not accept the chat. A failed guess is
    /// only logged.
    pub async fn run(
        self: Arc<Self>,
        body: String,
        salt: String,
        mut asked: SearchQuery,
    ) -> Result<Prepared, Failure> {
        let (stages, mut latest) = watch::channel(Vec::new());
        let retriever = Arc::clone(&self.retriever);
        // The search ends with this future, which is dropped when the client disconnects.
        let connected = Arc::new(());
        asked.ask.caller = Some(Arc::downgrade(&connected));
        let mut searching = tokio::task::spawn_blocking(move || {
            retriever.search(asked, &mut |found| {
                // The receiver is dropped when the client has disconnected.
                match stages.send(found.to_vec()) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
        });
        let id = SpeculationId(NEXT.fetch_add(1, Ordering::Relaxed));
        let chat = Arc::new(Unanswered { body, salt, id });
        let mut guess: Option<Speculation> = None;
        // The documents of the last guess that has ended, in order.
        let mut before: Option<Vec<Fingerprint>> = None;
        let found = loop {
            tokio::select! {
                biased;
                found = &mut searching => break found.map_err(Failure::internal)??,
                Ok(()) = latest.changed() => {
                    let found = latest.borrow_and_update().clone();
                    self.end_if_wrong(&chat.salt, &mut guess, &mut before, &found);
                    if self.speculates && guess.is_none() {
                        guess = self.guess(&chat, found, before.clone(), &latest).await;
                    }
                }
            }
        };
        self.end_if_wrong(&chat.salt, &mut guess, &mut before, &found);
        let documents = found.len();
        if let Some(guess) = &guess {
            before = Some(guess.documents.clone());
        }
        let written = self.prepare(move |this| {
            let (written, documents) = this.write(&chat, &found, before.as_deref())?;
            let orders = &this.retriever.orders;
            orders.remember(&chat.salt, &documents, &written.order);
            Ok(written)
        });
        Ok(Prepared {
            written: written.await?,
            documents,
            id,
            guess,
        })
    }

    /// Submits a guess with the documents `found` so far. Returns `None` if the engine is busy, the documents in
    /// `latest` have changed by the time the prompt is ready, or the guess fails. `before` has the fingerprints of the
    /// documents of the previous guess, in order.
    async fn guess(
        self: &Arc<Self>,
        chat: &Arc<Unanswered>,
        found: Vec<ScoredDocument>,
        before: Option<Vec<Fingerprint>>,
        latest: &watch::Receiver<Vec<ScoredDocument>>,
    ) -> Option<Speculation> {
        if found.is_empty() || !self.model.engine().takes_speculations() {
            return None;
        }
        let ids = self.compared(&chat.salt, &found);
        let asking = Arc::clone(chat);
        let prepared = self.prepare(move |this| {
            let (written, documents) = this.write(&asking, &found, before.as_deref())?;
            Ok((this.request(&asking, &written)?, documents))
        });
        let submitted = prepared.await.and_then(|(request, documents)| {
            if self.compared(&chat.salt, &latest.borrow()) != ids {
                return Ok(None);
            }
            let generation = self.model.submit(request)?;
            Ok(Some((generation, documents)))
        });
        match submitted {
            Ok(submitted) => submitted.map(|(generation, documents)| Speculation {
                documents,
                ids,
                generation,
            }),
            Err(failure) => {
                tracing::debug!(%failure, "no guess");
                None
            }
        }
    }

    /// Runs `work` on a blocking thread, while holding one of the permits to parse, render and tokenise; there is one
    /// for each core.
    async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let this = Arc::clone(self);
        blocking(&self.preparing, move || work(&this)).await
    }

    /// Writes the documents `found` into the chat's body. Returns the body, and the documents' fingerprints in the
    /// order of the prompt. `before` has the fingerprints of the documents of the last speculative prefill, which the
    /// engine may have cached.
    fn write(
        &self,
        chat: &Unanswered,
        found: &[ScoredDocument],
        before: Option<&[Fingerprint]>,
    ) -> Result<(Written, Vec<Fingerprint>), Failure> {
        if found.is_empty() {
            let written = Written {
                body: chat.body.clone().into_bytes(),
                path: None,
                order: Vec::new(),
            };
            return Ok((written, Vec::new()));
        }
        let mut documents = Vec::new();
        let feed = self.model.engine().feed();
        let written = prompt::write(
            &self.retriever.writing,
            &chat.body,
            found,
            |scope, known| {
                let held = self
                    .retriever
                    .orders
                    .choose(feed, &chat.salt, Some(scope), known);
                let split = self.retriever.orders.split(&chat.salt, known.len());
                let order = best(known, before.unwrap_or_default(), held, split);
                documents = (order.iter())
                    .filter_map(|&rank| known.get(usize::from(rank)))
                    .map(|known| known.fingerprint)
                    .collect();
                order
            },
        );
        let skipped = |skip: Skip| Failure::invalid("retrieval", format!("retrieval: {skip}"));
        Ok((written.map_err(skipped)?, documents))
    }

    /// Cancels `guess` if its documents are not those `found`, and sets it to `None`. If the engine had started it,
    /// stores the fingerprints of its documents in `before`.
    fn end_if_wrong(
        &self,
        salt: &str,
        guess: &mut Option<Speculation>,
        before: &mut Option<Vec<Fingerprint>>,
        found: &[ScoredDocument],
    ) {
        let wrong = guess.take_if(|guess| guess.ids != self.compared(salt, found));
        if let Some(documents) = wrong.and_then(Speculation::end) {
            *before = Some(documents);
        }
    }

    /// Returns the ids of `found` in a form that two search results share if a guess for one fits the other: first, in
    /// rank order, the documents whose position depends on their rank, then the others sorted.
    fn compared(&self, salt: &str, found: &[ScoredDocument]) -> Vec<String> {
        let ids = found.iter().map(|found| found.document.id.clone());
        let mut ids: Vec<String> = ids.collect();
        if self.retriever.compared == Compared::Documents {
            let ranked = usize::from(self.retriever.orders.split(salt, ids.len()).shared);
            if let Some(others) = ids.get_mut(ranked..) {
                others.sort_unstable();
            }
        }
        ids
    }

    /// Returns the engine's request for a guess: a prefill of the chat's prompt without an answer.
    fn request(&self, chat: &Unanswered, written: &Written) -> Result<Request, Failure> {
        let parsed = Chat::parse(&written.body)?;
        let path = written.path.as_ref();
        // Only the chat itself is counted in the metrics.
        let counts = Placements::default();
        let placer = Placer::new(&self.locator, path, &written.body, &counts);
        let (request, ..) = self.model.chat_request(&parsed, &placer)?;
        Ok(Request {
            kind: Kind::Prefill,
            speculation: Some(chat.id),
            deadline: Some(self.deadline),
            constraint: None,
            top_logprobs: None,
            prompt_logprobs: None,
            ..request
        })
    }
}

/// Returns the order that reuses more tokens: `held`, which is based on the cache, or one that begins like `before`,
/// the documents of the previous guess. The best-ranked documents keep the positions that `split` fixes.
fn best(known: &[Known<'_>], before: &[Fingerprint], held: Ordered, split: Split) -> Vec<u16> {
    let rank = |fingerprint: &Fingerprint| {
        let at = known
            .iter()
            .position(|known| known.fingerprint == *fingerprint)?;
        u16::try_from(at).ok()
    };
    let leading = split.leading.len();
    let mut shared: Vec<u16> = (before.iter().skip(leading))
        .map_while(|document| rank(document)?.checked_sub(split.shared))
        .collect();
    let others = (known.len() as u16).saturating_sub(split.shared);
    let rest: Vec<u16> = (0..others).filter(|rank| !shared.contains(rank)).collect();
    shared.extend(rest);
    let order = split.with(&shared);
    let alike = (order.iter().zip(before)).map_while(|(&rank, before)| {
        let known = known.get(usize::from(rank))?;
        (known.fingerprint == *before).then_some(u64::from(known.tokens))
    });
    let tokens: u64 = alike.sum();
    if tokens <= held.matched_tokens {
        return held.order;
    }
    order.to_vec()
}

/// A chat whose documents are still being searched for.
struct Unanswered {
    body: String,
    salt: String,
    id: SpeculationId,
}

/// The speculation id that the next chat will get.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::policy::{Place, Placement};

    #[test]
    fn what_is_being_computed_stays_in_front_unless_more_is_held() {
        let known: Vec<Known<'_>> = [1, 2, 3]
            .map(|document| Known {
                id: "",
                fingerprint: Fingerprint(document),
                tokens: 10,
            })
            .to_vec();
        let before = |documents: &[u64]| -> Vec<Fingerprint> {
            documents
                .iter()
                .map(|document| Fingerprint(*document))
                .collect()
        };
        let held = |order: &[u16], matched_tokens| Ordered {
            order: order.to_vec(),
            matched: 1,
            matched_tokens,
        };
        let ranks = || held(&[0, 1, 2], 0);
        let free = |count| Placement::FREE.split(count);
        let best = |known: &[Known<'_>], before: &[Fingerprint], held| {
            super::best(known, before, held, free(known.len()))
        };
        assert_eq!(best(&known, &[], ranks()), [0, 1, 2]);
        // Document 9 is not among them: the computed documents after it are lost.
        assert_eq!(best(&known, &before(&[3, 9, 1]), ranks()), [2, 0, 1]);
        assert_eq!(best(&known, &before(&[9, 3]), ranks()), [0, 1, 2]);
        assert_eq!(best(&known, &before(&[3]), held(&[1, 0, 2], 20)), [1, 0, 2]);
        let two = before(&[3, 2]);
        assert_eq!(best(&known, &two, held(&[1, 0, 2], 20)), [1, 0, 2]);
        assert_eq!(best(&known, &two, held(&[1, 0, 2], 19)), [2, 1, 0]);
    }
    #[test]
    fn a_guess_moves_no_favoured_document() {
        let known: Vec<Known<'_>> = [1, 2, 3, 4]
            .map(|document| Known {
                id: "",
                fingerprint: Fingerprint(document),
                tokens: 10,
            })
            .to_vec();
        let order = |place, documents, before: &[u64]| {
            let split = Placement { place, documents }.split(known.len());
            let before: Vec<Fingerprint> = before.iter().copied().map(Fingerprint).collect();
            let held = Ordered {
                order: vec![9],
                ..Ordered::default()
            };
            best(&known, &before, held, split)
        };
        // Document 2 was the best, and is no longer.
        assert_eq!(order(Place::Last, 1, &[4, 3, 1, 2]), [3, 2, 1, 0]);
        assert_eq!(order(Place::Last, 1, &[1, 4]), [9]);
        assert_eq!(order(Place::First, 1, &[1, 4, 3, 2]), [0, 3, 2, 1]);
        assert_eq!(order(Place::First, 1, &[2, 4, 3, 1]), [9]);
        assert_eq!(order(Place::Ends, 2, &[2, 4, 3, 1]), [1, 3, 2, 0]);
        // With policy `retrieval`, all are favoured and first.
        assert_eq!(order(Place::First, 4, &[1, 3]), [0, 1, 2, 3]);
    }
}
