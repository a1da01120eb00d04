//! The search for one chat's documents: which response it awaits, and the next step after it.
//!
//! ```text
//!   begin ─┬─ vector known ────────────────▶ look up ─┬─ hit ──▶ over        (a sampled hit is verified in background)
//!          ├─ vector needed ─▶ Embedding ─────▲       └─ miss ─▶ Retrieving ─▶ over
//!          └─ no cache ─────────────────────────────────────────▲  └─ warm-up in background
//! ```

use foreword_ordering::Parsed;
use foreword_similarity::Sample;
use serde_json::{Map, Value};

use super::answers::{embedding, found};
use super::cache::{Cache, Hit};
use super::query::RetrievalQuery;
use super::reason::Reason;
use super::{Retrieval, Slot};
use crate::config::Peer;
use crate::host::{CallResponse, Host, HostError, LogLevel};

/// The search for the documents of one chat's question.
pub(crate) struct Search {
    tenant: String,
    wanted: RetrievalQuery,
    stage: Stage,
    vector: Option<Vec<f32>>,
    /// True if the client sent the vector although an embedder is configured. The vector may be another question's, so
    /// the search result is not stored for others.
    is_clients: bool,
    /// The calls in flight whose responses the chat does not wait for, by number.
    background: Vec<(u64, BackgroundCall)>,
    started_ns: u64,
    ended: Option<SearchReport>,
}

enum Stage {
    Embedding(u64),
    Retrieving(u64),
    Over,
}

enum BackgroundCall {
    WarmUp { _slot: Slot },
    Check(Sample),
}

/// The next step of a chat's search for documents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SearchStep {
    /// The chat waits for the response to a call of embedder or retriever.
    Wait,
    /// The search is over. The value is the documents as a JSON array, `None` if none were found, or the reason why the
    /// search failed.
    Over(Result<Option<String>, Reason>),
}

/// The report of a finished search for documents, for header and access log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchReport {
    /// The result of the search: `hit`, `miss`, `empty`, or the name of a [`Reason`].
    pub(crate) word: &'static str,
    pub(crate) milliseconds: u64,
}

impl SearchReport {
    pub(crate) fn at_once(reason: Reason) -> Self {
        Self {
            word: reason.name(),
            milliseconds: 0,
        }
    }
}

impl Search {
    /// Starts the search for documents for a chat's question. `header` is the embedding vector from the client's
    /// header. `None` if there is nothing to search for: the chat has documents, wants none, or has no question.
    /// Returns an error if the client's options or vector are invalid, or the question is too long.
    pub(crate) fn begin(
        host: &impl Host,
        retrieval: &Retrieval,
        parsed: &Parsed<'_>,
        header: Option<&[u8]>,
        (tenant, salt): (&str, Option<&str>),
    ) -> Result<Option<(Self, SearchStep)>, Reason> {
        let config = retrieval.config();
        let wanted = RetrievalQuery::read(config, parsed, header, tenant, salt);
        let wanted = wanted.inspect_err(|reason| {
            retrieval.metrics.searches.add(host, 1);
            retrieval.metrics.failed(host, *reason);
        })?;
        let Some(mut wanted) = wanted else {
            let is_off = parsed.retrieval() == Some("false");
            retrieval.metrics.opted_out.add(host, is_off.into());
            return Ok(None);
        };
        retrieval.metrics.searches.add(host, 1);
        let mut search = Self {
            tenant: tenant.to_owned(),
            is_clients: wanted.vector.is_some() && config.embedding.embedder.is_some(),
            vector: wanted.vector.take(),
            wanted,
            stage: Stage::Over,
            background: Vec::new(),
            started_ns: host.now_ns(),
            ended: None,
        };
        let step = match &config.embedding.embedder {
            _ if search.vector.is_some() => search.look_up(host, retrieval),
            Some(embedder) if search.may_hit(retrieval) => search.embed(host, retrieval, embedder),
            _ => search.retrieve(host, retrieval),
        };
        Ok(Some((search, step)))
    }

    /// Handles the response to the call with the number `call` of this chat, and returns the chat's next step. `None`
    /// if the chat does not wait for that response.
    pub(crate) fn on_answer(
        &mut self,
        host: &impl Host,
        retrieval: &Retrieval,
        call: u64,
        answer: CallResponse<'_>,
    ) -> Option<SearchStep> {
        match self.stage {
            Stage::Embedding(waiting) if waiting == call => {
                self.stage = Stage::Over;
                Some(match embedding(answer) {
                    Ok(vector) => {
                        self.vector = Some(vector);
                        self.look_up(host, retrieval)
                    }
                    Err(reason) => self.fail(host, retrieval, reason),
                })
            }
            Stage::Retrieving(waiting) if waiting == call => {
                self.stage = Stage::Over;
                Some(self.retrieved(host, retrieval, answer))
            }
            _ => {
                self.on_beside(host, retrieval, call, answer);
                None
            }
        }
    }

    /// Returns the report of the search; `None` until the search is over.
    pub(crate) fn ended(&self) -> Option<SearchReport> {
        self.ended
    }

    /// Returns whether the cached result of a similar question may be used for this chat.
    fn may_hit(&self, retrieval: &Retrieval) -> bool {
        retrieval.cache.is_some() && self.wanted.is_cacheable
    }

    fn embed(&mut self, host: &impl Host, retrieval: &Retrieval, embedder: &Peer) -> SearchStep {
        let model = retrieval.config().embedding.model.as_ref();
        let mut body = Map::new();
        body.insert("input".to_owned(), self.wanted.question.as_str().into());
        body.insert("encoding_format".to_owned(), "base64".into());
        body.extend(model.map(|model| ("model".to_owned(), model.as_str().into())));
        let body = Value::Object(body);
        retrieval.metrics.embeddings.add(host, 1);
        match call(host, embedder, body.to_string().as_bytes()) {
            Ok(call) => {
                self.stage = Stage::Embedding(call);
                SearchStep::Wait
            }
            Err(_) => self.fail(host, retrieval, Reason::Unreachable),
        }
    }

    /// Looks the question's vector up in the similarity cache, and returns the chat's next step. On a miss, or if no
    /// cached result may be used, calls the retriever.
    fn look_up(&mut self, host: &impl Host, retrieval: &Retrieval) -> SearchStep {
        let (Some(vector), true) = (&self.vector, self.may_hit(retrieval)) else {
            return self.retrieve(host, retrieval);
        };
        let start = host.now_ns();
        let found = with_cache(retrieval, |cache| {
            if let Some(sharing) = &retrieval.sharing {
                retrieval
                    .metrics
                    .learnt
                    .add(host, sharing.learn(host, cache));
            }
            cache.lookup(&self.tenant, vector, host.now_ms())
        });
        let elapsed = host.now_ns().saturating_sub(start);
        retrieval.metrics.looked_up(host, elapsed);
        match found.unwrap_or(Err(Reason::Busy)) {
            Err(reason) => self.fail(host, retrieval, reason),
            Ok(None) => self.retrieve(host, retrieval),
            Ok(Some(Hit { elements, sample })) => {
                retrieval.metrics.hits.add(host, 1);
                if let Some(sample) = sample {
                    let body = self.wanted.body(self.vector.as_deref());
                    if let Ok(call) = call(host, &retrieval.config().retriever, &body) {
                        self.background.push((call, BackgroundCall::Check(sample)));
                    }
                }
                let documents = elements.iter().map(|element| &**element);
                self.over(host, retrieval, "hit", documents)
            }
        }
    }

    fn retrieve(&mut self, host: &impl Host, retrieval: &Retrieval) -> SearchStep {
        let body = self.wanted.body(self.vector.as_deref());
        match call(host, &retrieval.config().retriever, &body) {
            Ok(call) => {
                self.stage = Stage::Retrieving(call);
                self.warm_up(host, retrieval);
                SearchStep::Wait
            }
            Err(_) => self.fail(host, retrieval, Reason::Unreachable),
        }
    }

    /// Has the engine prefill the chat's first system messages during the search. Does nothing if warm-ups are not
    /// configured, the chat has no such messages, or too many warm-ups are in flight.
    fn warm_up(&mut self, host: &impl Host, retrieval: &Retrieval) {
        let warm_up = retrieval.config().warm_up.as_ref();
        let (Some(warm_up), Some(opening)) = (warm_up, self.wanted.opening.take()) else {
            return;
        };
        let Some(slot) = retrieval.slot() else {
            retrieval.metrics.skipped_warm_ups.add(host, 1);
            return;
        };
        retrieval.metrics.warm_ups.add(host, 1);
        match call(host, &warm_up.engine, opening.as_bytes()) {
            Ok(call) => self
                .background
                .push((call, BackgroundCall::WarmUp { _slot: slot })),
            Err(_) => retrieval.metrics.failed_warm_ups.add(host, 1),
        }
    }

    fn retrieved(
        &mut self,
        host: &impl Host,
        retrieval: &Retrieval,
        answer: CallResponse<'_>,
    ) -> SearchStep {
        let found = match found(answer, self.wanted.limit) {
            Ok(found) => found,
            Err(reason) => return self.fail(host, retrieval, reason),
        };
        retrieval.compare_metric(host, &found);
        let may_keep = self.may_hit(retrieval) && !self.is_clients;
        if let (Some(vector), true) = (&self.vector, may_keep) {
            let is_kept = with_cache(retrieval, |cache| {
                cache.keep(&self.tenant, vector, &found, host.now_ms())
            });
            if let (Some(sharing), Some(true)) = (&retrieval.sharing, is_kept) {
                sharing.publish(host, &self.tenant, vector, &found);
            }
        }
        retrieval.metrics.misses.add(host, 1);
        let word = if found.documents.is_empty() {
            retrieval.metrics.empty.add(host, 1);
            "empty"
        } else {
            "miss"
        };
        let documents = found.documents.iter().map(|document| &*document.element);
        self.over(host, retrieval, word, documents)
    }

    /// Handles the response to a call that the chat does not wait for: a warm-up, or the search that verifies a sampled
    /// hit of the similarity cache.
    fn on_beside(
        &mut self,
        host: &impl Host,
        retrieval: &Retrieval,
        call: u64,
        answer: CallResponse<'_>,
    ) {
        let Some(at) = self.background.iter().position(|(known, _)| *known == call) else {
            return;
        };
        match self.background.swap_remove(at) {
            (_, BackgroundCall::WarmUp { .. }) => {
                let failed = answer.status != Some(200);
                retrieval.metrics.failed_warm_ups.add(host, failed.into());
            }
            (_, BackgroundCall::Check(sample)) => {
                let Ok(found) = found(answer, self.wanted.limit) else {
                    return;
                };
                let wrong = with_cache(retrieval, |cache| {
                    cache.report(&self.tenant, &sample, &found)
                });
                retrieval.metrics.sampled.add(host, 1);
                let wrong = wrong.is_some_and(|wrong| wrong);
                retrieval.metrics.false_hits.add(host, wrong.into());
            }
        }
    }

    fn over<'d>(
        &mut self,
        host: &impl Host,
        retrieval: &Retrieval,
        word: &'static str,
        documents: impl Iterator<Item = &'d str>,
    ) -> SearchStep {
        self.end(host, retrieval, word);
        let documents: Vec<&str> = documents.collect();
        let array = (!documents.is_empty()).then(|| format!("[{}]", documents.join(",")));
        SearchStep::Over(Ok(array))
    }

    fn fail(&mut self, host: &impl Host, retrieval: &Retrieval, reason: Reason) -> SearchStep {
        retrieval.metrics.failed(host, reason);
        self.end(host, retrieval, reason.name());
        SearchStep::Over(Err(reason))
    }

    fn end(&mut self, host: &impl Host, retrieval: &Retrieval, word: &'static str) {
        let elapsed = host.now_ns().saturating_sub(self.started_ns);
        retrieval.metrics.held(host, elapsed);
        self.ended = Some(SearchReport {
            word,
            milliseconds: elapsed / 1_000_000,
        });
    }
}

/// Calls `work` with the similarity cache locked, and returns its result. `None` if there is no cache, or an outer
/// callback on this thread has locked it.
fn with_cache<T>(retrieval: &Retrieval, work: impl FnOnce(&mut Cache) -> T) -> Option<T> {
    let cache = retrieval.cache.as_ref()?;
    let mut cache = cache.lock(Cache::clear)?;
    Some(work(&mut cache))
}

fn call(host: &impl Host, peer: &Peer, body: &[u8]) -> Result<u64, HostError> {
    let authorization = peer.token.as_ref().map(|token| format!("Bearer {token}"));
    let mut headers = vec![
        (":method", "POST"),
        (":path", peer.path.as_str()),
        (":authority", peer.cluster.as_str()),
        ("content-type", "application/json"),
        ("accept", "application/json"),
    ];
    if let Some(authorization) = &authorization {
        headers.push(("authorization", authorization));
    }
    let asked = host.call_for_request(&peer.cluster, &headers, body, peer.timeout_ms);
    // Envoy returns an error for an unknown cluster.
    asked.inspect_err(|error| host.log(LogLevel::Warn, &error.to_string()))
}
