//! Maps causes of cache misses to remedies: a line of the gateway's configuration, or else advice for the client or the
//! engine.

use foreword_ordering::head::{Cause, Volatile};
use serde_json::{Value, json};

/// The advice against a cause of cache misses, and the part of the gateway's configuration that implements it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remedy {
    /// The advice against the cause, in one sentence or two.
    pub(crate) words: &'static str,
    /// The part of the gateway's configuration to change; `None` if the gateway cannot help.
    pub(crate) part: Option<Part>,
}

/// A part of the gateway's configuration (`ordering`) that can be a remedy against cache misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Sends a request's tools in a stable order, and equal tools with their JSON keys in the same order.
    Tools,
    /// Moves changing values of known form, such as dates and ids, out of the prompt's head (system text and tools)
    /// into the newest user message, or replaces them by their first value in the chat.
    Patterns,
    /// Moves these out of the prompt's head (system text and tools) into the newest user message: changing values of
    /// known form, such as dates and ids (see [`Part::Patterns`]), and other lines and sentences that are found to
    /// change between requests.
    Learned,
    /// Takes position numbers and scores, which change between requests, out of documents and writes them in sentences
    /// after the documents.
    Documents,
    /// Keeps each document in the turn of the chat in which it was first sent, even if the client sends it no longer.
    Pin,
    /// Orders documents so that prompts begin with the same documents as earlier prompts.
    Policy,
}

impl Part {
    /// Returns the fields of the gateway's `ordering` configuration, as JSON, that enable this part and disable the
    /// others. The ordering policy stays as it is.
    pub(crate) fn alone(self) -> Value {
        let off = json!({
            "mode": "apply",
            "tools": {"order": false, "schemas": false},
            "volatile": {"patterns": false, "learn": false},
            "documents": {"numbers": false, "scores": false},
        });
        let head = |change: Value| {
            let mut head = off.clone();
            for (name, value) in change.as_object().into_iter().flatten() {
                head[name] = value.clone();
            }
            json!({"head": head, "conversation": {"pin": false}})
        };
        match self {
            Self::Tools => head(json!({"tools": {"order": true, "schemas": true}})),
            Self::Patterns => head(json!({"volatile": {"patterns": true, "learn": false}})),
            Self::Learned => head(json!({"volatile": {"patterns": true, "learn": true}})),
            Self::Documents => head(json!({"documents": {"numbers": true, "scores": true}})),
            Self::Pin => json!({"head": off, "conversation": {"pin": true}}),
            Self::Policy => json!({"head": {"mode": "off"}, "conversation": {"pin": false}}),
        }
    }

    /// Returns the line of the plugin's configuration that enables this part and no other one.
    pub(crate) fn configuration(self) -> String {
        let part = self.alone();
        let line = match self {
            Self::Policy => json!({"policy": "foresight"}),
            Self::Pin => json!({"conversation": part["conversation"], "head": part["head"]}),
            _ => json!({"head": part["head"]}),
        };
        let line = format!("\"ordering\":{line}");
        line.replace(':', ": ").replace(',', ", ")
    }
}

impl Remedy {
    /// Returns the remedy against `cause`. `volatile` is the kind of the changing value, if the cause is one.
    pub(crate) fn of(cause: Cause, volatile: Option<Volatile>) -> Self {
        let words = match cause {
            Cause::None | Cause::FirstSeen => "Nothing is to be mended.",
            Cause::ToolOrder => "The gateway can send tools in one order.",
            Cause::KeyOrder => {
                "The gateway can send equal tools in the form in which they came first; in a text, the client must sort keys."
            }
            Cause::ToolSet => {
                "Let the client send the same tools in every request of a kind (`tool_choice` may forbid what is not to be called); the gateway can at least keep their order."
            }
            Cause::ToolSchema => {
                "Take out of the tool's description what changes: let the client send one text for each version."
            }
            Cause::SystemText => {
                "The system text itself was changed. What belongs to one request goes behind the documents, into the user's message."
            }
            Cause::VolatileValue if matches!(volatile, Some(Volatile::DateTime | Volatile::Id)) => {
                "The gateway can move what changes behind the documents, or keep a chat's first value."
            }
            Cause::VolatileValue => {
                "The gateway can learn which words change and move them behind the documents."
            }
            Cause::Whitespace => {
                "White space alone differs: let the client render its template in one place only."
            }
            Cause::HistoryEdited => {
                "Let the client append to a chat and never change what was sent (reminders and state go into the newest message)."
            }
            Cause::HistoryDropped => {
                "Let the client drop or summarise history rarely and much at a time, not a message each turn."
            }
            Cause::ContextMoved => {
                "The gateway can keep documents where they were first sent when the chat goes on."
            }
            Cause::HoistedSystem => {
                "Let the client send what it says inside a chat as a user's message, or the engine's template leave system messages in their places."
            }
            Cause::DocumentSet | Cause::DocumentOrder => {
                "The gateway puts documents into the order that earlier prompts begin with."
            }
            Cause::DocumentText => {
                "Leave scores, ranks and positional ids out of documents' blocks; the gateway can say them behind the documents."
            }
            Cause::QuestionFirst => {
                "Put the question behind the documents in the client's template."
            }
            Cause::TenantSalt => {
                "Caches are kept apart by salt on purpose; give one salt to those who may share."
            }
            Cause::OtherEngine => "Let the gateway choose the engine: name them in `engines`.",
            Cause::ModelChanged => "Models share no cache: keep a chat on one.",
            Cause::Parameters => {
                "Keep the field the same for requests that are to share a prefix; a template renders it, or the engine keeps caches apart by it."
            }
            Cause::Evicted => {
                "The engine's cache was too small, or it was restarted: give it more KV memory or a second tier, and tell the gateway its size in `ordering.tree.max_tokens`."
            }
            Cause::BelowPage => {
                "The common prefix is shorter than a page of the engine's cache: lengthen what all requests share, or choose smaller blocks; tell the gateway their size in `engines[].block_tokens`."
            }
            Cause::Unread => {
                "The prompt has too many tools, messages or documents for the gateway to compare it with earlier ones."
            }
        };
        let part = match cause {
            Cause::ToolOrder | Cause::KeyOrder | Cause::ToolSet => Some(Part::Tools),
            Cause::VolatileValue if matches!(volatile, Some(Volatile::DateTime | Volatile::Id)) => {
                Some(Part::Patterns)
            }
            Cause::VolatileValue => Some(Part::Learned),
            Cause::ContextMoved => Some(Part::Pin),
            Cause::DocumentSet | Cause::DocumentOrder => Some(Part::Policy),
            Cause::DocumentText => Some(Part::Documents),
            _ => None,
        };
        Self { words, part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_words_of_its_own_length_and_lines_are_json() {
        for cause in Cause::ALL {
            let remedy = Remedy::of(cause, None);
            assert!(remedy.words.ends_with('.'), "{}", cause.name());
            if let Some(part) = remedy.part {
                let line = format!("{{{}}}", part.configuration());
                let value: Value = serde_json::from_str(&line).unwrap();
                assert!(value["ordering"].is_object(), "{line}");
            }
        }
    }
    #[test]
    fn the_line_beside_a_gain_is_the_measured_configuration() {
        let off = r#""volatile": {"patterns": false, "learn": false}, "documents": {"numbers": false, "scores": false}"#;
        let tools =
            r#""ordering": {"head": {"mode": "apply", "tools": {"order": true, "schemas": true}, "#;
        assert_eq!(Part::Tools.configuration(), format!("{tools}{off}}}}}"));
        let pin = r#""ordering": {"conversation": {"pin": true}, "head": {"mode": "apply", "tools": {"order": false, "schemas": false}, "#;
        assert_eq!(Part::Pin.configuration(), format!("{pin}{off}}}}}"));
        let policy = r#""ordering": {"policy": "foresight"}"#;
        assert_eq!(Part::Policy.configuration(), policy);
    }
}
