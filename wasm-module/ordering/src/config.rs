//! What the operator may set: as written ([`RawConfig`]) and as checked ([`Config`]).

use crate::hint::{HintTemplate, TemplateError};
use crate::policy::{MAX_CANDIDATES, PolicyKind, PolicyOptions};
use crate::tree::Bounds;
use serde::Deserialize;

/// Configuration as written. Every field may be absent; an unknown one is an error.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawConfig {
    /// Name of the [policy](PolicyKind).
    pub policy: String,
    /// What it is told.
    pub policy_options: RawPolicyOptions,
    /// The order hint.
    pub hint: RawHint,
    /// How documents are found.
    pub documents: RawDocuments,
    /// The knowledge trees' bounds.
    pub tree: RawTree,
}

/// What a policy is told, as written; each takes what concerns it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawPolicyOptions {
    /// Where `random` starts.
    pub seed: u64,
    /// Recent requests that `foresight` learns from; about 250 bytes each at 15 documents.
    pub window: u32,
    /// Places that `foresight` may move a document, up or down; absent: any number.
    pub max_displacement: Option<u32>,
    /// Contexts that `context-index` keeps.
    pub max_contexts: u32,
}

/// The order hint, as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawHint {
    /// Whether a request whose documents were moved is told the retriever's order.
    pub enabled: bool,
    /// Its words; `{order}` stands for the documents' labels, best first.
    pub template: String,
    /// A label; `{label}` stands for the document's id.
    pub label: String,
    /// What stands between labels.
    pub separator: String,
}

/// How documents are found, as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawDocuments {
    /// What happens to a `documents` array in the body.
    pub field: DocumentsField,
    /// Names of the tags that hold a document in a message.
    pub tags: Vec<String>,
    /// Documents in a request, at most; a request with more is passed as it came.
    pub max: u32,
}

/// What happens to a `documents` array in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentsField {
    /// The documents are written into the last user message, before its text, and the array becomes `null`. Most
    /// engines ignore the array unless the model's chat template happens to know it.
    Render,
    /// The array's elements are put in order; the engine's chat template renders them.
    Reorder,
    /// The array is left alone.
    Ignore,
}

/// The knowledge trees' bounds, as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawTree {
    /// Nodes in one tree; about 150 bytes each.
    pub max_nodes: u32,
    /// Tokens in one tree: set it to the engine's KV capacity. 0: bounded by `max_nodes` alone.
    pub max_tokens: u64,
    /// Trees, one per tenant and model; the least recently used one goes first.
    pub max_trees: u32,
}

/// Configuration as checked.
#[derive(Clone)]
pub struct Config {
    pub(crate) policy: PolicyKind,
    pub(crate) policy_options: PolicyOptions,
    pub(crate) hint: Option<HintTemplate>,
    pub(crate) field: DocumentsField,
    pub(crate) tags: Vec<String>,
    pub(crate) max_documents: u32,
    pub(crate) tree: Bounds,
    pub(crate) max_trees: u32,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON of the right shape; serde's own words, with line and column.
    #[error("{0}")]
    Shape(#[from] serde_json::Error),
    /// A field has a value that it may not have.
    #[error("{field}: {reason}")]
    Value {
        /// The field's path.
        field: &'static str,
        /// The value and what is allowed.
        reason: String,
    },
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            policy: "longest".into(),
            policy_options: RawPolicyOptions::default(),
            hint: RawHint::default(),
            documents: RawDocuments::default(),
            tree: RawTree::default(),
        }
    }
}

impl Default for RawPolicyOptions {
    fn default() -> Self {
        let options = PolicyOptions::default();
        Self {
            seed: options.seed,
            window: options.window.into(),
            max_displacement: options.max_displacement.map(u32::from),
            max_contexts: options.max_contexts,
        }
    }
}

impl Default for RawHint {
    /// RAGBoost's words (its section on order hints).
    fn default() -> Self {
        Self {
            enabled: true,
            template: "Please read the context in the following priority order: {order} and answer the question."
                .into(),
            label: "[{label}]".into(),
            separator: " > ".into(),
        }
    }
}

impl Default for RawDocuments {
    fn default() -> Self {
        Self {
            field: DocumentsField::Render,
            tags: ["document", "doc", "passage", "source"]
                .map(String::from)
                .to_vec(),
            max: 512,
        }
    }
}

impl Default for RawTree {
    fn default() -> Self {
        Self {
            max_nodes: 65_536,
            max_tokens: 0,
            max_trees: 16,
        }
    }
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

impl Config {
    /// Reads and checks a JSON configuration; an empty text gives the defaults.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice::<RawConfig>(text)?.try_into()
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        let within = |field, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                refuse(
                    field,
                    format!("{value} is out of range, it must be {low} to {high}"),
                )
            }
        };
        let Some(policy) = PolicyKind::by_name(&raw.policy) else {
            let names = PolicyKind::ALL.map(PolicyKind::name);
            return refuse(
                "policy",
                format!("`{}` is not one of {}", raw.policy, names.join(", ")),
            );
        };
        let options = &raw.policy_options;
        within(
            "policy_options.window",
            options.window.into(),
            1,
            u16::MAX.into(),
        )?;
        within(
            "policy_options.max_contexts",
            options.max_contexts.into(),
            1,
            1_000_000,
        )?;
        if let Some(places) = options.max_displacement {
            within(
                "policy_options.max_displacement",
                places.into(),
                0,
                MAX_CANDIDATES.into(),
            )?;
        }
        let narrow = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let policy_options = PolicyOptions {
            seed: options.seed,
            window: narrow(options.window),
            max_displacement: options.max_displacement.map(narrow),
            max_contexts: options.max_contexts,
        };
        within(
            "documents.max",
            raw.documents.max.into(),
            1,
            MAX_CANDIDATES.into(),
        )?;
        within("tree.max_nodes", raw.tree.max_nodes.into(), 1, 10_000_000)?;
        within("tree.max_trees", raw.tree.max_trees.into(), 1, 10_000)?;
        within("documents.tags", raw.documents.tags.len() as u64, 0, 32)?;
        for tag in &raw.documents.tags {
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
            if tag.is_empty() || tag.len() > 64 || !tag.chars().all(is_name) {
                return refuse(
                    "documents.tags",
                    format!(
                        "`{tag}` is not a tag name: 1 to 64 ASCII letters, digits, `-`, `_`, `.` or `:`"
                    ),
                );
            }
        }
        let hint = if raw.hint.enabled {
            let template =
                HintTemplate::new(&raw.hint.template, &raw.hint.label, &raw.hint.separator);
            Some(template.map_err(|error| match error {
                TemplateError::NoOrder => ConfigError::Value {
                    field: "hint.template",
                    reason: "it must contain `{order}` once".into(),
                },
                TemplateError::NoLabel => ConfigError::Value {
                    field: "hint.label",
                    reason: "it must contain `{label}` once".into(),
                },
            })?)
        } else {
            None
        };
        Ok(Self {
            policy,
            policy_options,
            hint,
            field: raw.documents.field,
            tags: raw.documents.tags,
            max_documents: raw.documents.max,
            tree: Bounds {
                max_nodes: raw.tree.max_nodes,
                max_tokens: (raw.tree.max_tokens > 0).then_some(raw.tree.max_tokens),
            },
            max_trees: raw.tree.max_trees,
        })
    }
}

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
            assert_eq!(config.policy.name(), "longest");
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
        assert_eq!(
            error(r#"{"hint": {"template": "no"}}"#),
            "hint.template: it must contain `{order}` once"
        );
        assert_eq!(
            error(r#"{"hint": {"label": "x"}}"#),
            "hint.label: it must contain `{label}` once"
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
