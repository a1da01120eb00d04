//! Replays whole prompts against a model of an engine's cache: tools, system text, history, documents, hints and
//! question, as the gateway would forward them.
//!
//! ```text
//!   body ──▶ Orderer ──▶ body as sent ──▶ pieces of its prompt ──▶ engine cache ──▶ tokens reused
//! ```
//!
//! The orderer is the gateway's own, so it makes the same decisions. The cache is [`EngineCache`], with paths of pieces
//! (a tool, a line or sentence of the system text, a message, a document) instead of only documents.

use super::logged::realm_hash;
use super::{Capacity, EngineCache, Replay, Request, Retrieved, Reuse};
use crate::Logged;
use foreword_ordering::feed::TenantKey;
use foreword_ordering::head::{self, SegmentKind};
use foreword_ordering::policy::{Order, PolicyKind};
use foreword_ordering::tree::Scope;
use foreword_ordering::{
    Config, ConfigError, EngineCandidate, EngineId, MAX_ENGINES, Orderer, RawConfig, Rewrite,
    RewriteOptions, Skip, Tenant, Trial,
};
use fxhash::FxHashMap;

/// The result of a replay of whole prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptReuse {
    /// Estimated tokens of the forwarded prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub reused_tokens: u64,
    /// Tokens of the forwarded documents, and of these, those found in the cache.
    pub documents: Reuse,
}

impl PromptReuse {
    /// Returns the share of prompt tokens found in the cache; 0 if there were no tokens.
    #[must_use]
    pub fn share(self) -> f64 {
        if self.prompt_tokens == 0 {
            0.0
        } else {
            self.reused_tokens as f64 / self.prompt_tokens as f64
        }
    }

    /// Returns the tokens that the engine had to compute.
    #[must_use]
    pub fn computed_tokens(self) -> u64 {
        self.prompt_tokens - self.reused_tokens
    }
}

/// A replay of whole prompts, request by request.
pub struct PromptReplay {
    orderer: Orderer,
    /// The configuration by which forwarded bodies are read: with as many documents as can be ordered, since engines
    /// compute those that the gateway does not order as well.
    reading: Config,
    /// The orderer for rankings, which have no body.
    rankings: Replay,
    cache: EngineCache,
    reuse: PromptReuse,
    /// Ids of engines, by their names in the log.
    engines: FxHashMap<String, EngineId>,
    /// True if the orderer decides, but original bodies are forwarded.
    as_came: bool,
}

impl PromptReplay {
    /// Returns a replay with an empty cache and no history. [`PolicyKind::Retrieval`] forwards original bodies.
    ///
    /// # Errors
    /// Returns an error if the configuration is not valid.
    pub fn new(
        mut raw: RawConfig,
        kind: PolicyKind,
        capacity: Capacity,
    ) -> Result<Self, ConfigError> {
        raw.policy = kind.name().into();
        // A configured block size takes precedence over the modelled cache's.
        if raw.policy_options.block_tokens == 1 {
            raw.policy_options.block_tokens = capacity.page_tokens.max(1);
        }
        raw.tree.max_nodes = 10_000_000;
        raw.tree.max_tokens = capacity.tokens.unwrap_or(0);
        raw.tree.max_trees = 10_000;
        let config = Config::try_from(raw)?;
        Ok(Self {
            rankings: Replay::of(config.policy(), capacity),
            reading: config.clone().with_most_documents(),
            orderer: Orderer::new(config),
            cache: EngineCache::new(capacity),
            reuse: PromptReuse::default(),
            engines: FxHashMap::default(),
            as_came: kind == PolicyKind::Retrieval,
        })
    }

    /// Makes [`PolicyKind::Retrieval`] rewrite bodies as well, as the rest of the configuration requires.
    pub fn order_all(&mut self) {
        self.as_came = false;
    }

    /// Orders a logged body like the gateway. Returns the body to forward; `None` for the original body, for instance
    /// if it has no documents.
    ///
    /// # Errors
    /// Returns the reason why the body cannot be read.
    pub fn decide(&mut self, logged: &Logged<'_>) -> Result<Option<Vec<u8>>, Skip> {
        Ok(self.rewrite(logged)?.and_then(|rewrite| rewrite.body))
    }

    /// Orders a logged body as [`Self::decide`] does; `None` for a body without documents or user message.
    pub(crate) fn rewrite(&mut self, logged: &Logged<'_>) -> Result<Option<Rewrite>, Skip> {
        let count = u16::try_from(self.engines.len()).unwrap_or(u16::MAX);
        let known = self.engines.entry(logged.engine.clone().into_owned());
        let engine = *known.or_insert(EngineId(count));
        let choices = [EngineCandidate {
            engine,
            outstanding: 0,
        }];
        let is_numbered = engine.0 < MAX_ENGINES;
        let terms = RewriteOptions {
            key_of: Some(TenantKey::of),
            trial: if self.as_came {
                Trial::DryRun
            } else {
                Trial::None
            },
            choices: if is_numbered { &choices } else { &[] },
            ..RewriteOptions::default()
        };
        let tenant = Tenant::named(&logged.tenant);
        match (self.orderer).rewrite_on(&terms, tenant, logged.body.as_bytes()) {
            Ok(rewrite) => Ok(Some(rewrite)),
            Err(Skip::NoDocuments | Skip::NoUserMessage) => Ok(None),
            Err(skip) => Err(skip),
        }
    }

    /// Serves a logged body; `sent` is the result of [`Self::decide`], so `None` for the original one.
    ///
    /// # Errors
    /// Returns the reason why the body cannot be read.
    pub fn serve(&mut self, logged: &Logged<'_>, sent: Option<&[u8]>) -> Result<(), Skip> {
        let sent = sent.unwrap_or(logged.body.as_bytes());
        let config = &self.reading;
        let parsed = match foreword_ordering::parse(sent, config) {
            Err(Skip::NoUserMessage) => return Ok(()),
            parsed => parsed?,
        };
        let segments = parsed.segments(config);
        let pieces = head::sent(&parsed, &segments);
        let salt = parsed.client_salt().unwrap_or_default();
        let realm = [parsed.model(), salt, &*logged.tenant, &*logged.engine];
        self.serve_pieces(Scope(realm_hash(&realm, 0)), &pieces);
        Ok(())
    }

    /// Orders a ranking of documents without a body.
    pub fn decide_ranking(&mut self, request: &Request) -> Order {
        self.rankings.decide(request)
    }

    /// Serves a ranking in the order `order`; its prompt consists of the documents.
    pub fn serve_ranking(&mut self, request: &Request, order: &Order) {
        let path = (order.iter()).filter_map(|&rank| request.documents.get(usize::from(rank)));
        let pieces: Vec<(SegmentKind, Retrieved)> = path
            .map(|document| (SegmentKind::Document, document.clone()))
            .collect();
        self.serve_pieces(request.scope, &pieces);
    }

    fn serve_pieces(&mut self, scope: Scope, pieces: &[(SegmentKind, Retrieved)]) {
        let found = self
            .cache
            .serve(scope, pieces.iter().map(|(_, piece)| piece));
        let mut at = 0;
        for (kind, piece) in pieces {
            let tokens = u64::from(piece.tokens);
            self.reuse.prompt_tokens += tokens;
            if *kind == SegmentKind::Document {
                self.reuse.documents.document_tokens += tokens;
                // A page boundary may have cut the last one.
                self.reuse.documents.reused_tokens += found.saturating_sub(at).min(tokens);
            }
            at += tokens;
        }
        self.reuse.reused_tokens += found;
    }

    /// Returns the configuration for ordering bodies.
    pub(crate) fn config(&self) -> &Config {
        self.orderer.config()
    }

    /// Returns the result so far.
    #[must_use]
    pub fn reuse(&self) -> PromptReuse {
        self.reuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(kind: PolicyKind, page_tokens: u32) -> PromptReplay {
        let capacity = Capacity {
            tokens: None,
            page_tokens,
        };
        let raw = crate::placing_freely();
        PromptReplay::new(raw, kind, capacity).unwrap()
    }

    fn body(system: &str, documents: &[&str], question: &str) -> String {
        let documents: Vec<String> = documents
            .iter()
            .map(|id| format!(r#"{{"id":"{id}","text":"{}"}}"#, id.repeat(400)))
            .collect();
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}],"documents":[{}]}}"#,
            documents.join(",")
        )
    }

    fn serve(replay: &mut PromptReplay, body: &str) -> PromptReuse {
        let before = replay.reuse();
        let logged = Logged::read(body.as_bytes()).unwrap();
        let sent = replay.decide(&logged).unwrap();
        replay.serve(&logged, sent.as_deref()).unwrap();
        let after = replay.reuse();
        PromptReuse {
            prompt_tokens: after.prompt_tokens - before.prompt_tokens,
            reused_tokens: after.reused_tokens - before.reused_tokens,
            documents: Reuse::default(),
        }
    }

    #[test]
    fn a_prompt_that_comes_again_is_reused_whole_and_one_with_another_clock_is_not() {
        for kind in PolicyKind::ALL {
            let mut replay = replay(kind, 1);
            let first = serve(&mut replay, &body("Be brief.", &["a", "b"], "Why?"));
            assert_eq!(first.reused_tokens, 0);
            assert!(first.prompt_tokens > 200, "{first:?}");
            if matches!(kind, PolicyKind::Random) {
                continue;
            }
            let again = serve(&mut replay, &body("Be brief.", &["a", "b"], "Why?"));
            assert_eq!(again.reused_tokens, again.prompt_tokens, "{}", kind.name());
            let clock = serve(
                &mut replay,
                &body("It is 14:03. Be brief.", &["a", "b"], "Why?"),
            );
            assert_eq!(clock.reused_tokens, 0);
        }
    }

    #[test]
    fn order_matters_in_the_clients_order_and_not_in_ours() {
        let reused = |kind| {
            let mut replay = replay(kind, 1);
            serve(&mut replay, &body("Be brief.", &["a", "b"], "Why?"));
            serve(&mut replay, &body("Be brief.", &["b", "a"], "How?")).reused_tokens
        };
        assert!(reused(PolicyKind::Retrieval) < 10);
        assert!(reused(PolicyKind::Foresight) > 200);
    }

    #[test]
    fn the_head_alone_is_reused_too_and_in_whole_pages() {
        let mut exact = replay(PolicyKind::Foresight, 1);
        let mut paged = replay(PolicyKind::Foresight, 528);
        let head = "Be brief and cite what you use. ".repeat(100);
        let both = [&mut exact, &mut paged].map(|replay| {
            serve(replay, &body(&head, &["a"], "Why?"));
            serve(replay, &body(&head, &["b"], "How?")).reused_tokens
        });
        assert!(both[0] > 790 && both[0] < 810, "{both:?}");
        assert_eq!(both[1], 528);
    }

    #[test]
    fn salts_and_engines_share_nothing() {
        let mut replay = replay(PolicyKind::Foresight, 1);
        let body = body("Be brief.", &["a"], "Why?");
        let line = |engine: &str| format!(r#"{{"request":{body},"engine":"{engine}"}}"#);
        serve(&mut replay, &line("one"));
        assert_eq!(serve(&mut replay, &line("two")).reused_tokens, 0);
        assert!(serve(&mut replay, &line("one")).reused_tokens > 100);
        let salted = body.replacen('{', r#"{"cache_salt":"s","#, 1);
        assert_eq!(serve(&mut replay, &salted).reused_tokens, 0);
    }
}
