//! The arms: the ways in which every question is asked. An arm is the order in which the client sends the documents,
//! and a configuration of the ordering core.
//!
//! | arm | the client sends | the core orders by | order hint | earlier turns' documents |
//! | --- | --- | --- | --- | --- |
//! | `retrieval` | best first | nothing | no | sent again |
//! | `ordered` | best first | the configured policy | no | sent again |
//! | `ordered+hint` | best first | the configured policy | yes | sent again |
//! | `ordered:free`, `:last`, `:first`, `:ends`, `:auto` | best first | same, best one there | `+hint` | sent again |
//! | `dedup` | best first | the configured policy | no | their bare labels |
//! | `dedup+hint` | best first | the configured policy | yes | location hints |
//! | `…+hint:top`, `…+hint:end` | best first | the configured policy | [elsewhere](super::hint_place) | as without |
//! | `random` | best first | chance | no | sent again |
//! | `reversed` | worst first | nothing | no | sent again |
//! | `first`, `middle`, `last` | the answer's document there | nothing | no | sent again |
//! | `stabilised` | best first | nothing | no | sent again; the prompt's head (system text and tools) is stabilised |
//! | `stabilised:tools`, `stabilised:words` | best first | nothing | no | the same, tools or system text alone |
//! | `gateway`, or the name given with it | best first | (the gateway does) | | |
//! The prompt's head is the client's, except in the arms that stabilise it, and in `dedup+hint` if the configuration
//! does. A changing head shows what stabilising gains: see [`head`](super::head).
//!
//! `dedup+hint` is what the filter does with the gateway's configuration. The core always replaces a repeated document
//! by words with its label, so `dedup`, the arm without hints, replaces it by the bare label.

use super::data::{Document, Turn};
use super::hint_place::{self, HintPlace};
use anyhow::{Context, Result};
use foreword_ordering::config::RawRank;
use foreword_ordering::head::config::{HeadMode, RawHead, RawPatterns};
use foreword_ordering::policy::Place;
use foreword_ordering::{Config, RawConfig};
use std::sync::Arc;

/// A way to ask each question of an evaluation: the order of its documents, and the configuration of the ordering core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arm {
    /// The retriever's order of the documents, best first. Every other arm (way to ask) is compared with this one.
    Retrieval,
    /// Documents in the order of the gateway's configured policy. No hints: the model is not told the retriever's
    /// ranking, and documents that an earlier turn contains are sent again.
    Ordered,
    /// Documents in the order of the configured policy, with the order hint: a sentence that tells the model the
    /// retriever's ranking.
    OrderedHint,
    /// Documents in the order of the configured policy, with the order hint (a sentence with the retriever's ranking)
    /// at the given place of the user message. The gateway itself writes it between documents and question.
    OrderedHintAt(HintPlace),
    /// Documents in the order of the configured policy, except that the retriever's best ones get the given place.
    /// Their number is that of the configuration (`rank.documents`), or the least that the place needs if that is more.
    /// If the flag is true, the order hint (a sentence with the retriever's ranking) is added.
    OrderedWith(Place, bool),
    /// Documents in the order of the configured policy, without order hints. A document that an earlier turn of the
    /// chat contains is replaced by its label (the name that it has in the prompt).
    Dedup,
    /// The gateway's configuration unchanged, which is what the filter does: documents in the order of the configured
    /// policy and, if the configuration enables them,
    /// (1) order hints (sentences with the retriever's ranking),
    /// (2) location hints (references to the earlier copy) in place of documents that an earlier turn of the chat
    /// contains.
    DedupHint,
    /// The gateway's configuration, except that order hints (sentences with the retriever's ranking) are at the given
    /// place of the user message. The gateway itself writes them between documents and question.
    DedupHintAt(HintPlace),
    /// The documents in a random order.
    Random,
    /// The retriever's order reversed: the worst document first.
    Reversed,
    /// The retriever's order, with the document that contains the answer moved to the first place.
    First,
    /// The retriever's order, with the document that contains the answer moved to the middle.
    Middle,
    /// The retriever's order, with the document that contains the answer moved to the last place.
    Last,
    /// The retriever's order, with the prompt's head (system text and tools) stabilised: tools get a stable order, and
    /// texts that change between requests are moved into the user message, kept at their first value or dropped.
    Stabilised,
    /// The retriever's order, with only the tools stabilised: they get a stable order. The system text stays unchanged.
    StabilisedTools,
    /// The retriever's order, with only the system text stabilised: texts in it that change between requests are moved
    /// into the user message, kept at their first value or dropped. The tools stay unchanged.
    StabilisedWords,
    /// The retriever's order, sent through the gateway of this name, whose filter orders the documents.
    Gateway(&'static str),
}

impl Arm {
    /// The arm (way to ask) that goes through a gateway to which `--gateway` gives no name.
    pub(super) const GATEWAY: Self = Self::Gateway("gateway");

    /// All arms (ways to ask) except those of gateways, with their names, in the order in which tables list them.
    const NAMED: [(Self, &str); 27] = [
        (Self::Retrieval, "retrieval"),
        (Self::Ordered, "ordered"),
        (Self::OrderedHint, "ordered+hint"),
        (Self::OrderedHintAt(HintPlace::Top), "ordered+hint:top"),
        (Self::OrderedHintAt(HintPlace::End), "ordered+hint:end"),
        (Self::OrderedWith(Place::Free, false), "ordered:free"),
        (Self::OrderedWith(Place::Free, true), "ordered:free+hint"),
        (Self::OrderedWith(Place::Last, false), "ordered:last"),
        (Self::OrderedWith(Place::Last, true), "ordered:last+hint"),
        (Self::OrderedWith(Place::First, false), "ordered:first"),
        (Self::OrderedWith(Place::First, true), "ordered:first+hint"),
        (Self::OrderedWith(Place::Ends, false), "ordered:ends"),
        (Self::OrderedWith(Place::Ends, true), "ordered:ends+hint"),
        (Self::OrderedWith(Place::Auto, false), "ordered:auto"),
        (Self::OrderedWith(Place::Auto, true), "ordered:auto+hint"),
        (Self::Dedup, "dedup"),
        (Self::DedupHint, "dedup+hint"),
        (Self::DedupHintAt(HintPlace::Top), "dedup+hint:top"),
        (Self::DedupHintAt(HintPlace::End), "dedup+hint:end"),
        (Self::Random, "random"),
        (Self::Reversed, "reversed"),
        (Self::First, "first"),
        (Self::Middle, "middle"),
        (Self::Last, "last"),
        (Self::Stabilised, "stabilised"),
        (Self::StabilisedTools, "stabilised:tools"),
        (Self::StabilisedWords, "stabilised:words"),
    ];

    /// The arms (ways to ask) that the option `--positions` adds.
    pub(super) const POSITIONS: [Self; 3] = [Self::First, Self::Middle, Self::Last];

    /// Returns all arms (ways to ask) whose names are fixed, in the order in which tables list them. The last one is
    /// [`Self::GATEWAY`]; gateways to which the user gave a name are not among them.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let own = Self::NAMED.into_iter().map(|(arm, _)| arm);
        own.chain([Self::GATEWAY])
    }

    /// Returns the name of the arm (way to ask), as in tables and in the option `--arms`.
    pub(super) fn name(self) -> &'static str {
        if let Self::Gateway(name) = self {
            return name;
        }
        let mut named = Self::NAMED.into_iter();
        let named = named.find(|(arm, _)| *arm == self);
        named.map_or("", |(_, name)| name)
    }

    /// Returns the arm (way to ask) with this name; `None` if there is none.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|arm| arm.name() == name)
    }

    /// Returns whether the arm (way to ask) puts the document with the answer first, in the middle or last.
    pub(super) fn is_position(self) -> bool {
        Self::POSITIONS.contains(&self)
    }

    /// Returns whether requests of this arm (way to ask) go through a gateway, which orders the documents.
    pub(super) fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway(_))
    }

    /// Returns the place of the user message to which the evaluation moves the order hint (a sentence with the
    /// retriever's ranking). `None` for arms without the hint, and for those that leave it where the gateway writes it.
    pub(super) fn hint_place(self) -> Option<HintPlace> {
        match self {
            Self::OrderedHintAt(place) | Self::DedupHintAt(place) => Some(place),
            _ => None,
        }
    }

    /// Returns the ordering core's configuration for this arm (way to ask), derived from `base`, the gateway's
    /// configuration. `seed` determines the random order of [`Self::Random`]. Returns an error if the configuration is
    /// invalid for this arm.
    pub(super) fn config(self, base: &RawConfig, seed: u64) -> Result<Config> {
        let failed = || format!("the configuration for the arm {}", self.name());
        let mut raw = base.clone();
        let (hints, deduplicates) = match self {
            Self::OrderedHint | Self::OrderedHintAt(_) => (true, false),
            Self::OrderedWith(_, hint) => (hint, false),
            Self::Dedup => (false, true),
            Self::DedupHint | Self::DedupHintAt(_) => {
                (base.hint.enabled, base.conversation.deduplicate)
            }
            _ => (false, false),
        };
        raw.hint.enabled = hints;
        raw.conversation.deduplicate = deduplicates;
        raw.head = self.head(&base.head);
        match self {
            Self::Ordered | Self::OrderedHint | Self::Dedup | Self::DedupHint => {}
            Self::OrderedHintAt(_) | Self::DedupHintAt(_) => {
                hint_place::mark(&mut raw).with_context(failed)?;
            }
            Self::OrderedWith(place, _) => {
                raw.rank.place = place.name().into();
                let least = u32::from(place.least_documents());
                raw.rank.documents = raw.rank.documents.max(least);
            }
            Self::Random => {
                raw.policy = "random".into();
                raw.rank = RawRank::free();
                raw.policy_options.seed = seed;
            }
            _ => raw.policy = "retrieval".into(),
        }
        if self == Self::Dedup {
            raw.hint.location = "{document}".into();
        }
        Config::try_from(raw).with_context(failed)
    }

    /// Returns the configuration for stabilising the prompt's head (system text and tools) in this arm (way to ask);
    /// `base` is the gateway's.
    fn head(self, base: &RawHead) -> RawHead {
        let mut head = base.clone();
        match self {
            Self::DedupHint | Self::DedupHintAt(_) => return head,
            Self::Stabilised | Self::StabilisedTools | Self::StabilisedWords => {
                head.mode = HeadMode::Apply;
            }
            _ => head.mode = HeadMode::Off,
        }
        if self == Self::StabilisedTools {
            head.volatile.patterns = RawPatterns::Table(false);
            head.volatile.add.clear();
            head.volatile.learn = false;
        }
        if self == Self::StabilisedWords {
            (head.tools.order, head.tools.schemas) = (false, false);
        }
        if matches!(self, Self::StabilisedTools | Self::StabilisedWords) {
            (head.documents.numbers, head.documents.scores) = (false, false);
            (head.contexts.restore, head.contexts.relocate) = (false, false);
        }
        head
    }

    /// Returns the documents of a turn in the order in which the client sends them under this arm (way to ask).
    pub(super) fn arrange(self, turn: &Turn) -> Vec<&Arc<Document>> {
        let mut documents: Vec<_> = turn.documents.iter().collect();
        let last = documents.len().saturating_sub(1);
        let place = match self {
            Self::Reversed => {
                documents.reverse();
                return documents;
            }
            Self::First => 0,
            Self::Middle => documents.len() / 2,
            Self::Last => last,
            _ => return documents,
        };
        if let Some(at) = turn.answer_document {
            let answer = documents.remove(at);
            documents.insert(place, answer);
        }
        documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> Turn {
        let document = |id: &str| {
            Arc::new(Document {
                id: id.into(),
                title: String::new(),
                text: id.into(),
            })
        };
        Turn {
            question: "Why?".into(),
            documents: ["a", "b", "c", "d", "e"].map(document).to_vec(),
            answers: vec!["x".into()],
            answer_document: Some(1),
            choices: Vec::new(),
        }
    }

    #[test]
    fn an_arms_client_moves_the_answers_document_alone_or_reverses() {
        let turn = turn();
        let ids = |arm: Arm| -> String { arm.arrange(&turn).iter().map(|d| &*d.id).collect() };
        for arm in [Arm::Retrieval, Arm::DedupHint, Arm::Random, Arm::GATEWAY] {
            assert_eq!(ids(arm), "abcde");
        }
        assert_eq!(ids(Arm::Reversed), "edcba");
        assert_eq!(ids(Arm::First), "bacde");
        assert_eq!(ids(Arm::Middle), "acbde");
        assert_eq!(ids(Arm::Last), "acdeb");
    }

    #[test]
    fn names_lead_back_to_arms() {
        for arm in Arm::all() {
            assert_eq!(Arm::by_name(arm.name()), Some(arm));
        }
        assert_eq!(Arm::by_name("best"), None);
    }

    #[test]
    fn a_hint_elsewhere_needs_a_configuration_with_hints() {
        let mut base = RawConfig::default();
        base.hint.enabled = false;
        // The arms of single questions have hints, whatever the gateway's configuration says.
        let place = HintPlace::End;
        assert!(Arm::OrderedHintAt(place).config(&base, 0).is_ok());
        let error = Arm::DedupHintAt(place).config(&base, 0).err().unwrap();
        let words = "the configuration for the arm dedup+hint:end: hint.enabled is false";
        assert!(format!("{error:#}").starts_with(words), "{error:#}");
    }

    #[test]
    fn an_impossible_configuration_names_its_arm() {
        let mut base = RawConfig::default();
        base.hint.label = "no label".into();
        for arm in [Arm::OrderedHint, Arm::Retrieval] {
            let error = arm.config(&base, 0).err().unwrap();
            let words = format!("the arm {}: hint.label", arm.name());
            assert!(format!("{error:#}").contains(&words), "{error:#}");
        }
    }
}
