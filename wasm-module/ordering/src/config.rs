//! The configuration of ordering: as written ([`RawConfig`]) and validated ([`Config`]).

use crate::conversation::memory;
use crate::head::config::{Head, RawHead};
use crate::hint::{HintTemplate, LocationTemplate};
use crate::object;
use crate::object::{ConfigError, Ranges, within};
use crate::policy::context_index::{ContextIndex, Rules, history};
use crate::policy::{MAX_CANDIDATES, Place, Placement, Policy, PolicyKind, PolicyOptions};
use crate::tree::Bounds;
use serde::Deserialize;

object! {
    /// The configuration of ordering as written. Every field is optional; an unknown field is an error.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawConfig in "" {
        /// Name of the [policy](PolicyKind) that orders the documents of a request.
        pub policy: String = "foresight".into(),
        /// The options of the policies; each reads only those that it uses.
        pub policy_options: RawPolicyOptions = RawPolicyOptions::default(),
        /// The options for the place in the prompt of the retriever's best documents, which the policy does not order.
        pub rank: RawRank = RawRank::default(),
        /// The wording of order hints (the retriever's ranking) and location hints (references to earlier copies), and
        /// whether order hints are written.
        pub hint: RawHint = RawHint::default(),
        /// The options for finding documents in a request's body.
        pub documents: RawDocuments = RawDocuments::default(),
        /// The bounds of the knowledge trees, which predict the contents of the engines' caches.
        pub tree: RawTree = RawTree::default(),
        /// The options for recording and forwarding a chat's earlier turns.
        pub conversation: RawConversation = RawConversation::default(),
        /// The options for making the part of the prompt before the documents (tools, system text) begin like that of
        /// earlier requests.
        pub head: RawHead = RawHead::default(),
    }
}

object! {
    /// The options of all policies (rules that order documents), as written; each policy reads those that it uses and
    /// ignores the others.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawPolicyOptions in "policy_options." {
        /// The seed of the pseudorandom order that the `random` policy applies.
        pub seed: u64 = 0,
        /// Number of recent requests of a tenant and model that `foresight` learns from; each takes about 250 bytes at
        /// 15 documents.
        pub window: u32 = 1024; 1..=u16::MAX.into(),
        /// The maximum number of positions by which `foresight` moves a document, up or down; unlimited if absent. The
        /// favoured documents (`rank.documents`) are moved farther, and are not counted where the others' positions are.
        pub max_displacement: Option<u32> = None; 0..=MAX_CANDIDATES.into(),
        /// The maximum number of contexts (document sets of requests) that `context-index` keeps for one tenant and
        /// model.
        pub max_contexts: u32 = 4096; 1..=1_000_000,
        /// Number of tokens in a block of the engine's prefix cache. A cached prefix shorter than a block counts as no
        /// match. With 1, any match counts.
        pub block_tokens: u32 = 1; 1..=MAX_BLOCK_TOKENS,
        /// Contexts (document sets of requests) from a log, with which `context-index` begins, one string for each
        /// request: the fingerprints of its documents, best first, each as 16 hexadecimal digits, without separators.
        /// The command `foreword index` writes these strings.
        pub history: Vec<String> = Vec::new(),
        /// True if `context-index` removes contexts (document sets of requests) that the engine evicted from its cache,
        /// as RAGBoost does. If false, it keeps up to `max_contexts` of them, so that recurring ones are sent in the
        /// same order again.
        pub forget_evicted: bool = false,
        /// The weight of documents' differences in position in the distance of two contexts (document sets of
        /// requests), by which `context-index` finds similar ones, in thousandths: RAGBoost's α.
        pub position_weight: u32 = 5; 0..=1000,
        /// True if `context-index` ends its search for similar contexts (document sets of requests) once all that are
        /// left are equally similar to the request, as RAGBoost does. If false, it continues with the oldest of them.
        pub stop_at_ties: bool = false,
        /// True if `context-index` sends the documents that contexts (document sets of requests) share sorted, as
        /// RAGBoost does. If false, it sends them in the order of the oldest context that has them.
        pub sort_shared: bool = false,
    }
}

object! {
    /// The configuration, as written, of where the retriever's best documents are placed in the prompt. These documents
    /// are called favoured; a policy orders all others so that the engine's cache is reused.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawRank in "rank." {
        /// Name of the [place](Place) of the favoured documents (the retriever's best): `last` (next to a question that
        /// follows the documents), `first`, `ends` (the best last, the second best first), `free` (no document is
        /// favoured), or `auto`.
        ///
        /// With `auto`, all documents keep the client's order, best first, in two cases: (1) this order begins with
        /// some cached tokens, and with at least as many as the order of `last`; (2) recent requests have more
        /// documents at the beginning in common in their clients' order than in the order of `last`. Otherwise `auto`
        /// is the same as `last`.
        pub place: String = Place::Auto.name().into(),
        /// Number of the retriever's best documents that are favoured, that is, placed as `place` says instead of being
        /// ordered for reuse.
        pub documents: u32 = 1; 1..=MAX_CANDIDATES.into(),
        /// Formats of documents in which the client's order does not express a ranking, such as a tool's results by
        /// date. Documents in these formats are never favoured (placed as `place` says).
        pub unranked: Vec<DocumentFormat> = vec![DocumentFormat::Results, DocumentFormat::Headings],
    }
}

/// The formats in which documents are found in a body. [`RawDocuments`] has an option of the same name for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentFormat {
    /// Elements of the body's `documents` array.
    Field,
    /// Texts between tags, such as `<document>…</document>`.
    Tags,
    /// Anthropic's `document` and `search_result` blocks in a message's content.
    Blocks,
    /// Elements of the JSON array `results` in a tool's result.
    Results,
    /// Contexts (retrieved documents) that AnythingLLM, Dify, LlamaIndex and RAGFlow write into a message.
    Clients,
    /// Items of a numbered list in a text, `[1] …`.
    Numbered,
    /// Texts between lines of dashes, `---`.
    Rules,
    /// Sections under headings in a tool's result.
    Headings,
    /// A tool's whole result. It is never ordered; location hints (references to an earlier copy) replace lines of it
    /// that an earlier result has.
    #[serde(skip_deserializing)]
    Outputs,
}

object! {
    /// The configuration of hints, sentences about the documents that the gateway writes into a message, as written.
    /// The default template is RAGBoost's (its sections 5.3 and 6); the default short hint takes 15 tokens for five
    /// documents instead of 30 to 50.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawHint in "hint." {
        /// True if a sentence after the documents (the order hint) gives the retriever's ranking whenever documents
        /// were moved.
        pub enabled: bool = true,
        /// The order hint (the sentence with the retriever's ranking) that is written where `short` is not; `{order}`
        /// stands for the documents' labels, best first.
        pub template: String = "Please read the context in the following priority order: {order} and answer the question."
            .into(),
        /// The form in which a document's label is written into hints (the gateway's sentences about documents);
        /// `{label}` stands for the document's id.
        pub label: String = "[{label}]".into(),
        /// The text between two labels in an order hint (the sentence with the retriever's ranking).
        pub separator: String = " > ".into(),
        /// The order hint (the sentence with the retriever's ranking) for documents with short names. `{order}` stands
        /// for their labels if all have up to three letters or digits, otherwise for their ordinal numbers in the
        /// prompt, best document first. `template` is used instead if (1) this text is empty, or (2) not all labels are
        /// that short and one is a number, which would read as an ordinal number. No hint is written if a location hint
        /// (a reference to an earlier copy) replaces a document.
        pub short: String = "Best documents first: {order}.".into(),
        /// The location hint: the sentence that is sent in place of a document that an earlier turn of the chat holds;
        /// `{document}` stands for the document's label.
        pub location: String = "Please refer to {document} in the previous conversation.".into(),
    }
}

object! {
    /// The options for finding documents in a request's body, as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawDocuments in "documents." {
        /// The treatment of the documents of the body's `documents` array.
        pub field: DocumentsField = DocumentsField::Render,
        /// Names of the tags that enclose a document in a message.
        pub tags: Vec<String> = ["document", "doc", "passage", "source", "contextItem"]
            .map(String::from)
            .to_vec(),
        /// Names of tags that enclose documents only if a text has two or more elements with this tag and none with one
        /// of `tags`, since they have other uses too.
        pub loose_tags: Vec<String> = ["context", "reference", "file"].map(String::from).to_vec(),
        /// True if `document` and `search_result` blocks of a message's content are ordered (Anthropic). On by default,
        /// since these blocks hold nothing else. Blocks with citations stay in place, since citations count blocks.
        pub blocks: bool = true,
        /// True if the elements of a tool result's JSON array `results` are ordered, if each has a `url`, `path`,
        /// `file`, `filename`, `uri` or `href`. On by default: these are search results. No order hint (a sentence with
        /// the retriever's ranking) is written into JSON.
        pub results: bool = true,
        /// True if contexts (retrieved documents) that AnythingLLM, Dify, LlamaIndex and RAGFlow write into texts
        /// without tags are documents. On by default: each is recognised by phrases that no other text contains.
        pub clients: bool = true,
        /// True if the items of a numbered list, `[1] …` and so on, are documents. Off by default, since they may be
        /// steps. Items keep their numbers, so that answers' citations hold; a document is therefore recognised again
        /// only under the same number.
        pub numbered: bool = false,
        /// True if the text between lines of dashes, `---`, is a document. Off by default, since it may be anything.
        /// Such documents have no names, so no order hint gives the retriever's ranking.
        pub rules: bool = false,
        /// True if sections of a tool's result under headings, `# …`, are documents. Off by default, since most results
        /// with headings are one document.
        pub headings: bool = false,
        /// True if a location hint (a reference to an earlier copy) replaces lines of a tool's result that a result in
        /// an earlier turn contains byte for byte, such as those of a file that an agent reads again. Requires
        /// `conversation.deduplicate`, at least 480 bytes of adjacent repeated lines, and a result in which no other
        /// format is found. The hint quotes the first and the last of the lines. Nothing is moved, and such results do
        /// not count for `max`. Off by default.
        pub outputs: bool = false,
        /// The maximum number of documents in a request; a request with more is forwarded unchanged.
        pub max: u32 = 512; 1..=MAX_CANDIDATES.into(),
    }
}

/// The treatment of the documents of the body's `documents` array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentsField {
    /// The documents are written into the last user message, before its text, and the array becomes `null`. Most
    /// engines ignore the array unless the model's chat template supports it.
    Render,
    /// The array's elements are ordered in place, and the engine's chat template renders them.
    Reorder,
    /// The array is forwarded unchanged.
    Ignore,
}

object! {
    /// The bounds of the knowledge trees, which predict the contents of the engines' caches, as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawTree in "tree." {
        /// The maximum number of nodes (documents in the context of all before them) in the tree of one tenant, model
        /// and engine; each takes about 150 bytes. The least recently used leaves are evicted.
        pub max_nodes: u32 = 65_536; 1..=10_000_000,
        /// The maximum number of estimated document tokens in the tree of one tenant, model and engine: set it to the
        /// engine's KV capacity. With 0, only `max_nodes` limits a tree.
        pub max_tokens: u64 = 0,
        /// The maximum number of pairs of tenant and model that have trees (one tree for each engine) in a worker.
        /// Beyond it, a pair of the tenant with the most pairs is evicted.
        pub max_trees: u32 = 16; 1..=10_000,
    }
}

object! {
    /// The options for recording and forwarding a chat's earlier turns, as written.
    ///
    /// A chat is identified by the roles and contents of its messages, byte for byte, and by the request's `user`,
    /// `safety_identifier`, `prompt_cache_key` and `metadata.user_id`. A client that cuts off or edits a chat's
    /// beginning starts another chat.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawConversation in "conversation." {
        /// True if a location hint (a reference to an earlier copy) replaces a document that an earlier turn of the
        /// chat holds byte for byte. The document needs a label that no other document of the chat has, and a block
        /// longer than the hint.
        pub deduplicate: bool = true,
        /// True if the favoured documents (the retriever's best ones, see `rank`) are sent again even if an earlier
        /// turn holds them, next to the question for instance, where small models read best. Each of the others is
        /// replaced by a location hint (a reference to the earlier copy).
        pub repeat_favoured: bool = false,
        /// True if documents of a `documents` array stay in the message into which they were first written
        /// (`documents.field: render`) when the chat continues. The client's history does not contain them; if they are
        /// not pinned, they vanish from the prompt at the next turn, and the engine's KV state of everything after them
        /// is lost.
        ///
        /// If true, **the model sees the documents of earlier turns too**, and prompts grow by them, up to
        /// `max_pinned_tokens`. Pinned documents are found by the text of the chat, so any client of the tenant that
        /// sends a chat's beginning gets answers from its documents. Chats that begin with the same text but other
        /// documents cannot be distinguished, and nothing is pinned in their common part. If users of one tenant must
        /// not see each other's documents, let `user`, `safety_identifier` or `prompt_cache_key` name the user (clients
        /// must not be able to choose it), or leave this off, which is the default.
        pub pin: bool = false,
        /// The maximum number of estimated tokens of the documents pinned (repeated at later turns) in one chat. The
        /// documents of a turn that would exceed it are not pinned; those of earlier turns stay pinned. Leave room for
        /// these tokens in the engine's context length.
        pub max_pinned_tokens: u32 = 8_192,
        /// The maximum number of messages recorded for one tenant and model; the least recently used are evicted first.
        /// With 0, none are recorded, and every request is ordered without regard to its chat's earlier turns.
        pub max_entries: u32 = 16_384; 0..=10_000_000,
        /// The maximum size of the records of one tenant's and model's messages, including documents that later turns
        /// repeat, in estimated bytes.
        pub max_bytes: u64 = 8 << 20,
        /// The parts of a model's answers that gateways keep in memory. When the chat continues and the client has
        /// changed such a part, the original is restored (OpenAI's chat API). Otherwise the engine renders the earlier
        /// turn differently from the tokens that it computed. `none` by default, since a gateway that keeps answers has
        /// **words of answers** in memory (of up to 512 chats).
        pub answers: KeptAnswers = KeptAnswers::None,
        /// The maximum number of bytes that a gateway keeps of the model's answers in one chat; later answers of the
        /// chat are not kept.
        pub max_answers_bytes: u32 = 131_072; 1..=1_048_576,
    }
}

/// The parts of a model's answers that gateways keep, to restore them if the client changed them when the chat
/// continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptAnswers {
    /// No part of an answer is kept.
    None,
    /// The arguments of tool calls as the model wrote them.
    Arguments,
    /// The arguments of tool calls and the model's reasoning.
    All,
}

/// The validated configuration of ordering.
#[derive(Clone)]
pub struct Config {
    pub(crate) policy: PolicyKind,
    pub(crate) policy_options: PolicyOptions,
    /// The index of the contexts (document sets of requests) in `policy_options.history`, with which the
    /// `context-index` policy begins; `None` if there are none.
    pub(crate) history: Option<std::sync::Arc<ContextIndex>>,
    /// Formats of documents in which the client's order does not express a ranking.
    pub(crate) unranked: Vec<DocumentFormat>,
    pub(crate) hint: Option<HintTemplate>,
    /// The validated options for finding documents in a body.
    pub(crate) documents: RawDocuments,
    pub(crate) tree: Bounds,
    pub(crate) max_trees: u32,
    /// The template of location hints (references to a document's earlier copy); `None` if `conversation.deduplicate`
    /// is off.
    pub(crate) deduplicate: Option<LocationTemplate>,
    /// True if no location hint (a reference to an earlier copy) replaces a favoured document (one of the retriever's
    /// best, placed by `rank`).
    pub(crate) repeats_favoured: bool,
    /// The maximum number of estimated tokens of documents pinned (repeated at later turns) in one chat; `None` if
    /// pinning is off.
    pub(crate) pin: Option<u32>,
    pub(crate) memory: memory::Bounds,
    /// The parts of a model's answers that are kept, and the maximum number of bytes kept for one chat.
    pub(crate) answers: (KeptAnswers, u32),
    pub(crate) head: Head,
}

impl RawRank {
    /// Returns the configuration in which no document is favoured (given a fixed place as one of the retriever's best):
    /// the policy orders all documents.
    #[must_use]
    pub fn free() -> Self {
        Self {
            place: Place::Free.name().into(),
            ..Self::default()
        }
    }
}

impl Default for PolicyOptions {
    fn default() -> Self {
        Self::of(&RawPolicyOptions::default())
    }
}

impl PolicyOptions {
    /// Returns the options of the ordering policies as configured, except for the placement of favoured documents (the
    /// retriever's best): no document is favoured in the result, until the caller sets that.
    fn of(raw: &RawPolicyOptions) -> Self {
        Self {
            seed: raw.seed,
            window: narrow(raw.window),
            max_displacement: raw.max_displacement.map(narrow),
            max_contexts: raw.max_contexts,
            forget_evicted: raw.forget_evicted,
            context_index: Rules {
                position_weight: narrow(raw.position_weight),
                stops_at_ties: raw.stop_at_ties,
                sorts: raw.sort_shared,
            },
            block_tokens: raw.block_tokens,
            placement: Placement::FREE,
        }
    }
}

fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

impl Default for Config {
    #[allow(
        clippy::expect_used,
        reason = "the defaults are constants, and a test builds them"
    )]
    fn default() -> Self {
        Self::try_from(RawConfig::default()).expect("the defaults are valid")
    }
}

impl RawConfig {
    /// Parses a JSON configuration without validating its values; an empty text gives the defaults.
    ///
    /// # Errors
    /// Returns [`ConfigError::Shape`] if the text is not JSON, has an unknown field or a value of the wrong type.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        let mut raw = Self::default();
        if !text.trim_ascii().is_empty() {
            raw.read_json(text)?;
        }
        Ok(raw)
    }

    /// Overwrites the fields of this configuration that a JSON configuration names, without validating their values;
    /// the other fields stay unchanged.
    ///
    /// # Errors
    /// Returns [`ConfigError::Shape`] as [`RawConfig::from_json`] does; fields read before the error are overwritten.
    pub fn read_json(&mut self, text: &[u8]) -> Result<(), ConfigError> {
        let mut json = serde_json::Deserializer::from_slice(text);
        Self::deserialize_in_place(&mut json, self)?;
        Ok(json.end()?)
    }
}

impl Config {
    /// Parses and validates a JSON configuration; an empty text gives the defaults.
    ///
    /// # Errors
    /// Returns [`ConfigError`] for a wrong shape or a value that is not allowed.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        RawConfig::from_json(text)?.try_into()
    }

    /// Returns this configuration with the largest possible `documents.max`, for tools that analyse recorded requests.
    #[must_use]
    pub fn with_most_documents(mut self) -> Self {
        self.documents.max = MAX_CANDIDATES;
        self
    }

    /// Returns a new policy as configured. It has learnt nothing from requests; `context-index` begins with the
    /// configured history.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Policy> {
        if self.policy == PolicyKind::ContextIndex
            && let Some(history) = &self.history
        {
            let index = ContextIndex::of(&self.policy_options);
            let index = index.with_history(std::sync::Arc::clone(history));
            return self.policy_options.place(Box::new(index));
        }
        self.policy.build(&self.policy_options)
    }

    /// Returns the options with which [`Config::policy`] builds the ordering policy.
    #[must_use]
    pub fn policy_options(&self) -> PolicyOptions {
        self.policy_options
    }

    /// Returns this configuration with another placement of favoured documents (the retriever's best).
    #[must_use]
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.policy_options.placement = placement;
        self
    }

    /// Returns this configuration with another `policy_options.block_tokens`.
    #[must_use]
    pub fn with_block_tokens(mut self, block_tokens: u32) -> Self {
        self.policy_options.block_tokens = block_tokens;
        self
    }

    /// Returns the number of tokens in a block of the engine's cache.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.policy_options.block_tokens
    }

    /// Returns the validated configuration of stabilising the prompt's head (tools, system text).
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the parts of a model's answers that gateways keep, and the maximum number of bytes kept for one chat.
    #[must_use]
    pub fn answers(&self) -> (KeptAnswers, u32) {
        self.answers
    }

    /// Returns whether earlier user messages get back the contexts (retrieved documents) that their client has removed
    /// from the chat's history.
    pub(crate) fn keeps_contexts(&self) -> bool {
        self.pin.is_some() && self.head.keeps_contexts()
    }

    /// Returns whether documents of a `documents` array are written into messages and pinned there, that is, repeated
    /// in the chat's later requests.
    pub(crate) fn pins(&self) -> bool {
        self.pin.is_some() && self.documents.field == DocumentsField::Render
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        raw.policy_options.check()?;
        raw.rank.check()?;
        raw.documents.check()?;
        raw.tree.check()?;
        raw.conversation.check()?;
        let unnamed = |field, name: &str, names: &[&str]| ConfigError::Value {
            field,
            reason: format!("`{name}` is not one of {}", names.join(", ")),
        };
        let policy = PolicyKind::by_name(&raw.policy).ok_or_else(|| {
            unnamed(
                "policy",
                &raw.policy,
                &PolicyKind::ALL.map(PolicyKind::name),
            )
        })?;
        let place = Place::by_name(&raw.rank.place)
            .ok_or_else(|| unnamed("rank.place", &raw.rank.place, &Place::ALL.map(Place::name)))?;
        let policy_options = PolicyOptions {
            placement: match place {
                Place::Free => Placement::FREE,
                Place::Last | Place::First | Place::Ends | Place::Auto => Placement {
                    place,
                    documents: narrow(raw.rank.documents),
                },
            },
            ..PolicyOptions::of(&raw.policy_options)
        };
        let history = history::read(&raw.policy_options.history, policy_options.context_index)
            .or_else(|reason| refuse("policy_options.history", reason))?;
        for (field, tags) in [
            ("documents.tags", &raw.documents.tags),
            ("documents.loose_tags", &raw.documents.loose_tags),
        ] {
            within(field, &(tags.len() as u64), 0..=32)?;
            for tag in tags {
                let is_name =
                    |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
                if tag.is_empty() || tag.len() > 64 || !tag.chars().all(is_name) {
                    return refuse(
                        field,
                        format!(
                            "`{tag}` is not a tag name: 1 to 64 ASCII letters, digits, `-`, `_`, `.` or `:`"
                        ),
                    );
                }
            }
        }
        let head = Head::new(raw.head)?;
        let words = &raw.hint;
        // Templates are validated even if they are unused.
        let hint = HintTemplate::new(
            &words.template,
            &words.label,
            &words.separator,
            &words.short,
        )?;
        let location = LocationTemplate::new(&words.location, &words.label)?;
        Ok(Self {
            policy,
            policy_options,
            history,
            unranked: raw.rank.unranked,
            hint: words.enabled.then_some(hint),
            documents: raw.documents,
            tree: Bounds {
                max_nodes: raw.tree.max_nodes,
                max_tokens: (raw.tree.max_tokens > 0).then_some(raw.tree.max_tokens),
            },
            max_trees: raw.tree.max_trees,
            deduplicate: raw.conversation.deduplicate.then_some(location),
            repeats_favoured: raw.conversation.repeat_favoured,
            pin: (raw.conversation.pin).then_some(raw.conversation.max_pinned_tokens),
            memory: memory::Bounds {
                max_entries: raw.conversation.max_entries,
                max_bytes: raw.conversation.max_bytes,
            },
            answers: (raw.conversation.answers, raw.conversation.max_answers_bytes),
            head,
        })
    }
}

/// The maximum number of tokens in a block of an engine's cache; hybrid models have up to about 8,000.
const MAX_BLOCK_TOKENS: u64 = 65_536;

fn refuse<T>(field: &'static str, reason: String) -> Result<T, ConfigError> {
    Err(ConfigError::Value { field, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::from_json(text.as_bytes())
            .err()
            .unwrap()
            .to_string()
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        for text in ["", " \n", "{}"] {
            let config = Config::from_json(text.as_bytes()).unwrap();
            assert_eq!(config.policy.name(), "foresight");
            assert!(config.hint.is_some());
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        assert_eq!(
            error(r#"{"policy": "best"}"#),
            "policy: `best` is not one of retrieval, random, sorted, recency, greedy, context-index, longest, foresight"
        );
        assert_eq!(
            error(r#"{"policy_options": {"window": 65536}}"#),
            "policy_options.window: 65536 is out of range, it must be 1 to 65535"
        );
        assert!(
            error(r#"{"policy_options": {"max_displacement": 5000}}"#)
                .starts_with("policy_options.max_displacement: 5000 is out of range")
        );
        assert_eq!(
            error(r#"{"documents": {"max": 0}}"#),
            "documents.max: 0 is out of range, it must be 1 to 4096"
        );
        assert!(
            error(r#"{"documents": {"tags": ["a b"]}}"#)
                .starts_with("documents.tags: `a b` is not a tag name")
        );
        assert!(
            error(r#"{"documents": {"loose_tags": [""]}}"#)
                .starts_with("documents.loose_tags: `` is not a tag name")
        );
        assert_eq!(
            error(r#"{"hint": {"template": "no"}}"#),
            "hint.template: it must contain `{order}` once"
        );
        assert_eq!(
            error(r#"{"hint": {"short": "none"}}"#),
            "hint.short: it must contain `{order}` once"
        );
        assert_eq!(
            error(r#"{"hint": {"label": "x"}}"#),
            "hint.label: it must contain `{label}` once"
        );
        assert_eq!(
            error(r#"{"hint": {"location": "{document} {document}"}}"#),
            "hint.location: it must contain `{document}` once"
        );
        assert_eq!(
            error(r#"{"conversation": {"max_entries": 10000001}}"#),
            "conversation.max_entries: 10000001 is out of range, it must be 0 to 10000000"
        );
        assert!(
            error(r#"{"tree": {"max_nodes": 0}}"#).starts_with("tree.max_nodes: 0 is out of range")
        );
    }

    #[test]
    fn a_wrong_shape_is_named_with_its_place() {
        assert!(
            error(r#"{"polcy": "longest"}"#)
                .starts_with("unknown field `polcy`, expected one of `policy`")
        );
        assert!(error(r#"{"documents": {"field": "drop"}}"#).starts_with("unknown variant `drop`"));
        assert!(error("{").contains("line 1 column 1"));
    }
}
