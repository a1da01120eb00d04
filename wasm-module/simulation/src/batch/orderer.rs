//! Puts the documents of a batch's bodies into the planned order, with the gateway's own core.
//!
//! The core follows the engine's cache. So before a planned body is ordered, the core records only the documents in the
//! planned order as resident: the longest match is then the whole plan. Hints, limits and the bytes that move are the
//! core's, as in the gateway.

use super::BatchOrder;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::listing::{Request, documents_of};
use foreword_ordering::policy::Placement;
use foreword_ordering::tree::Scope;
use foreword_ordering::{
    Config, ConfigError, EngineId, Orderer, PeerUpdate, RawConfig, Residency, Tenant,
};
use fxhash::FxHashMap;

/// Orders the documents of bodies, one body at a time.
///
/// Each body is ordered by itself, without content of earlier ones, since the requests of a batch are independent. So
/// documents are not pinned, whatever the configuration says.
pub struct BatchOrderer {
    orderer: Orderer,
    /// Locates documents without moving them.
    finder: Orderer,
}

/// The first documents in a body's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstDocuments {
    /// The name of the model.
    pub model: Box<str>,
    /// Hash of the prompt before the documents.
    pub scope: Scope,
    /// The favoured documents before the others, in prompt order, with their estimated tokens.
    pub leading: Vec<(Fingerprint, u32)>,
    /// The documents of the shared part, with their estimated tokens, best first.
    pub documents: Vec<(Fingerprint, u32)>,
}

/// Why a configuration cannot be used for a batch.
#[derive(Debug, thiserror::Error)]
pub enum BatchConfigError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policy `retrieval` moves no document, so no plan can be followed.
    #[error(
        "policy \"retrieval\" leaves documents in the client's order, which a plan changes: choose another policy, or the order of the input"
    )]
    Unmoved,
}

impl BatchOrderer {
    /// Returns an orderer for the gateway's configuration. A plan replaces the policy, except that `foresight` with a
    /// `max_displacement` follows the plan only that far.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid, or if no plan can be followed with it.
    pub fn new(raw: &RawConfig, order: BatchOrder) -> Result<Self, BatchConfigError> {
        let mut raw = raw.clone();
        raw.conversation.pin = false;
        let finder = RawConfig {
            policy: "retrieval".into(),
            ..raw.clone()
        };
        if order == BatchOrder::Plan {
            // The configuration is checked before the policy is replaced.
            Config::try_from(raw.clone())?;
            if raw.policy == "retrieval" {
                return Err(BatchConfigError::Unmoved);
            }
            if raw.policy != "foresight" || raw.policy_options.max_displacement.is_none() {
                raw.policy = "longest".into();
            }
            raw.policy_options.block_tokens = 1;
        }
        Ok(Self {
            orderer: Orderer::new(Config::try_from(raw)?),
            finder: Orderer::new(Config::try_from(finder)?),
        })
    }

    /// Returns the first documents in the prompt of `body`; `None` if the core finds none or skips the body.
    pub fn find(&mut self, body: &[u8]) -> Option<FirstDocuments> {
        self.finder.clear();
        let found = self.finder.rewrite(Tenant::default(), body).ok()?;
        let run = found.path.runs.into_iter().next()?;
        let listed = documents_of(body, self.finder.config()).ok()?;
        let tokens: FxHashMap<Fingerprint, u32> = (listed.iter())
            .flat_map(|group| &group.documents)
            .map(|document| (document.fingerprint, document.tokens))
            .collect();
        let weigh = |document: &Fingerprint| tokens.get(document).copied().unwrap_or(1);
        let documents: Vec<_> = (run.documents.iter())
            .map(|document| (*document, weigh(document)))
            .collect();
        let is_first = |group: &&Request| {
            let mut all = group.documents.iter();
            all.any(|document| Some(&document.fingerprint) == run.documents.first())
        };
        let is_ranked = (listed.iter().find(is_first)).is_some_and(|group| group.is_ranked);
        let placement = match is_ranked {
            true => self.orderer.config().policy_options().placement,
            false => Placement::FREE,
        };
        let split = placement.split(documents.len());
        let leading = split.leading.iter();
        Some(FirstDocuments {
            model: found.record.undone().model,
            scope: run.scope,
            leading: leading
                .filter_map(|&rank| documents.get(usize::from(rank)).copied())
                .collect(),
            documents: documents
                .into_iter()
                .skip(usize::from(split.shared))
                .collect(),
        })
    }

    /// Orders `body` by the configured policy, like a gateway that receives the requests in this order. `None` if
    /// nothing changes or the core skips the body.
    pub fn order(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        let rewrite = self.orderer.rewrite(Tenant::default(), body);
        rewrite.ok()?.body
    }

    /// Orders `body` so that its first documents are in the order `planned`; `None` as for [`Self::order`].
    pub fn order_as(&mut self, body: &[u8], planned: &[Fingerprint]) -> Option<Vec<u8>> {
        let first = self.find(body)?;
        let tokens: FxHashMap<Fingerprint, u32> = first.documents.iter().copied().collect();
        let planned = planned.iter().filter_map(|document| {
            let tokens = *tokens.get(document)?;
            Some((*document, tokens))
        });
        let path = first.leading.iter().copied().chain(planned);
        // History of other bodies is useless here, and would take memory.
        self.orderer.clear();
        self.orderer.learn(&PeerUpdate::Residency(Residency {
            engine: EngineId::default(),
            model: first.model,
            events: vec![Event::Stored {
                tenant: TenantKey::default(),
                scope: first.scope,
                path: path.collect(),
            }],
        }));
        self.order(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::config::RawRank;
    use foreword_ordering::policy::Place;
    use proptest::prelude::*;

    fn body(model: &str, documents: &[u64], tags: bool) -> String {
        let text = |document: &u64| format!("text {document} {}", "x".repeat(*document as usize));
        if tags {
            let blocks: String = documents
                .iter()
                .map(|document| {
                    format!(
                        r#"<document id=\"d{document}\">{}</document>"#,
                        text(document)
                    )
                })
                .collect();
            return format!(
                r#"{{"model":"{model}","messages":[{{"role":"system","content":"S"}},{{"role":"user","content":"{blocks} Why?"}}]}}"#
            );
        }
        let list: Vec<String> = documents
            .iter()
            .map(|document| format!(r#"{{"id":"d{document}","text":"{}"}}"#, text(document)))
            .collect();
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"Why?"}}],"documents":[{}]}}"#,
            list.join(",")
        )
    }

    /// The documents in the order of their texts.
    fn order_in(body: &str, documents: &[u64]) -> Vec<u64> {
        let mut found: Vec<(usize, u64)> = documents
            .iter()
            .map(|document| (body.find(&format!("text {document} ")).unwrap(), *document))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, document)| document).collect()
    }

    proptest! {
        #[test]
        fn documents_stand_exactly_as_planned_around_the_favoured_ones(
            bodies in proptest::collection::vec((
                proptest::collection::hash_set(0..40_u64, 1..20),
                any::<u64>(),
                any::<bool>(),
                any::<bool>(),
            ), 1..8),
            place in proptest::sample::select(&Place::ALL[..]),
            favoured in 1..4_u16,
        ) {
            let rank = RawRank { place: place.name().into(), documents: favoured.into(), ..RawRank::default() };
            let raw = RawConfig { rank, ..RawConfig::default() };
            let mut orderer = BatchOrderer::new(&raw, BatchOrder::Plan).unwrap();
            for (set, seed, tags, named) in bodies {
                let documents: Vec<u64> = set.into_iter().collect();
                let body = body(if named { "m" } else { "" }, &documents, tags);
                let found = orderer.find(body.as_bytes()).unwrap();
                let split = Placement { place, documents: favoured }.split(documents.len());
                prop_assert_eq!(found.leading.len(), split.leading.len());
                prop_assert_eq!(found.documents.len(), documents.len() - usize::from(split.shared));
                let mut places: Vec<u16> = (0..found.documents.len() as u16).collect();
                foreword_ordering::random::Random::new(seed).shuffle(&mut places);
                let planned: Vec<Fingerprint> =
                    places.iter().map(|&place| found.documents[usize::from(place)].0).collect();
                let order = split.with(&places);
                let expected: Vec<u64> = order.iter().map(|&rank| documents[usize::from(rank)]).collect();
                let sent = orderer.order_as(body.as_bytes(), &planned);
                let sent = sent.map_or(body, |sent| String::from_utf8(sent).unwrap());
                prop_assert_eq!(order_in(&sent, &documents), expected);
            }
        }
    }

    #[test]
    fn a_policy_that_moves_nothing_cannot_follow_a_plan_and_a_bounded_one_follows_so_far() {
        let mut raw = RawConfig {
            policy: "retrieval".into(),
            rank: RawRank::free(),
            ..RawConfig::default()
        };
        let refused = BatchOrderer::new(&raw, BatchOrder::Plan).err().unwrap();
        assert!(matches!(refused, BatchConfigError::Unmoved));
        assert!(BatchOrderer::new(&raw, BatchOrder::Input).is_ok());
        raw.policy = "best".into();
        assert!(matches!(
            BatchOrderer::new(&raw, BatchOrder::Plan).err(),
            Some(BatchConfigError::Config(_))
        ));

        raw.policy = "foresight".into();
        raw.policy_options.max_displacement = Some(1);
        let mut orderer = BatchOrderer::new(&raw, BatchOrder::Plan).unwrap();
        let body = body("m", &[1, 2, 3], false);
        let found = orderer.find(body.as_bytes()).unwrap();
        let planned: Vec<_> = found
            .documents
            .iter()
            .rev()
            .map(|document| document.0)
            .collect();
        let sent = orderer.order_as(body.as_bytes(), &planned).unwrap();
        assert_ne!(
            order_in(std::str::from_utf8(&sent).unwrap(), &[1, 2, 3]),
            [3, 2, 1]
        );
    }

    #[test]
    fn nothing_of_one_body_gets_into_another() {
        let mut raw = crate::placing_freely();
        raw.conversation.pin = true;
        let mut orderer = BatchOrderer::new(&raw, BatchOrder::Input).unwrap();
        orderer.order(body("m", &[1, 2], false).as_bytes());
        let next = r#"{"model":"m","messages":[{"role":"user","content":"Why?"},{"role":"assistant","content":"So."},{"role":"user","content":"And?"}],"documents":[{"id":"d9","text":"text 9 "}]}"#;
        let sent = orderer.order(next.as_bytes()).unwrap();
        assert!(!String::from_utf8(sent).unwrap().contains("text 1 "));
    }

    #[test]
    fn a_body_without_documents_is_left_alone() {
        let mut orderer = BatchOrderer::new(&crate::placing_freely(), BatchOrder::Plan).unwrap();
        for body in [
            r#"{"input":"x"}"#,
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            "{}",
        ] {
            assert_eq!(orderer.find(body.as_bytes()), None);
            assert_eq!(orderer.order_as(body.as_bytes(), &[]), None);
        }
    }
}
