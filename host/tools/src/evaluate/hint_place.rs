//! The place of the order hint (a sentence with the retriever's ranking) in the user message, for arms (ways to ask)
//! that measure another place than the gateway's.
//!
//! RAGBoost writes the hint between documents and question (section 5.3), and reports that places before and after the
//! question differ by less than half a point of accuracy (section 7, *Hint robustness*). The gateway does the same. The
//! effect of the other places depends on the model and is measured here:
//!
//! | arms | the user message | what the cache holds of it |
//! | --- | --- | --- |
//! | `ordered+hint`, `dedup+hint` | documents, **hint**, question | the documents |
//! | the same with `:end` | documents, question, **hint** | the documents |
//! | the same with `:top` | **hint**, documents, question | nothing after a hint that differs |
//!
//! Only lines that the ordering core moves there from the head (system text and tools) may be between documents and
//! question, so *before the question* is not a separate place.
//!
//! Only the ordering core knows the hint's words, and it writes them after the documents. For these arms it is
//! configured to write them between two marks; the hint is then moved, and the marks are removed, before the request is
//! sent.

use super::data::Case;
use anyhow::{Context, Result, ensure};
use foreword_ordering::RawConfig;
use serde_json::Value;

/// A place in the user message for the order hint (a sentence with the retriever's ranking) for which the gateway has
/// no setting: the gateway writes the hint between documents and question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HintPlace {
    /// Before the documents, at the beginning of the user message.
    Top,
    /// After the question, at the end of the user message.
    End,
}

/// Changes the configuration so that the ordering core writes each order hint (a sentence with the retriever's ranking)
/// between two marks, by which the hint can be found and moved.
///
/// # Errors
/// Returns an error if the configuration never writes an order hint.
pub(super) fn mark(config: &mut RawConfig) -> Result<()> {
    ensure!(
        config.hint.enabled,
        "hint.enabled is false: there is no order hint that could stand elsewhere"
    );
    ensure!(
        config.policy != "retrieval",
        "policy is \"retrieval\": no document is moved, so there is no order hint that could stand elsewhere"
    );
    for words in [&mut config.hint.template, &mut config.hint.short] {
        // Without words for short names, the template is used for all.
        if !words.is_empty() {
            *words = format!("{OPEN}{words}{CLOSE}");
        }
    }
    Ok(())
}

/// Checks that a case's texts do not contain the marks that are put around order hints.
///
/// # Errors
/// Returns an error that names the case if they do.
pub(super) fn check(case: &Case) -> Result<()> {
    for turn in &case.turns {
        let documents = turn.documents.iter();
        let texts = documents.flat_map(|document| [&document.id, &document.title, &document.text]);
        let mut texts = texts.chain([&turn.question]).chain(&turn.choices);
        ensure!(
            !texts.any(|text| text.contains([OPEN, CLOSE])),
            "{:?} contains U+FDD0 or U+FDD1, which mark the order hint in the arms that put it elsewhere",
            case.id
        );
    }
    Ok(())
}

impl HintPlace {
    /// Returns the request body with the order hint of every user message moved to this place. The hint is found by the
    /// marks around it, which are removed.
    ///
    /// # Errors
    /// Returns an error if the body is not JSON. The ordering core writes no such body.
    pub(super) fn moved(self, body: &[u8]) -> Result<Vec<u8>> {
        let mut body: Value = serde_json::from_slice(body).context("a body that the core wrote")?;
        let messages = body.get_mut("messages").and_then(Value::as_array_mut);
        for message in messages.into_iter().flatten() {
            let is_users = message.get("role").is_some_and(|role| role == "user");
            if let Some(Value::String(text)) = message.get_mut("content").filter(|_| is_users)
                && let Some(moved) = self.moved_text(text)
            {
                *text = moved;
            }
        }
        Ok(body.to_string().into_bytes())
    }

    /// Returns a message's text with its order hint moved to this place and without the marks around it; `None` if the
    /// text has no marked hint.
    fn moved_text(self, text: &str) -> Option<String> {
        let (before, rest) = text.split_once(OPEN)?;
        let (hint, behind) = rest.split_once(CLOSE)?;
        // The core ends the documents' last line before the hint.
        let before = before.strip_suffix('\n').unwrap_or(before);
        Some(match self {
            Self::Top => format!("{hint}\n{before}{behind}"),
            Self::End => format!("{before}{behind}\n\n{hint}"),
        })
    }
}

/// The mark before an order hint (the sentence with the retriever's ranking): a code point that Unicode reserves as a
/// noncharacter. [`check`] refuses cases whose texts contain it.
const OPEN: char = '\u{fdd0}';
/// The mark after an order hint (the sentence with the retriever's ranking); like [`OPEN`], a noncharacter.
const CLOSE: char = '\u{fdd1}';

#[cfg(test)]
mod tests {
    use super::super::compare::tests::cases;
    use super::super::data::Document;
    use super::*;
    use foreword_ordering::{Config, Orderer, Tenant};
    use serde_json::json;
    use std::sync::Arc;

    /// Returns the user messages of the second request, whose documents the core moves, with the hint in this place.
    fn second(place: Option<HintPlace>, raw: &mut RawConfig) -> Vec<String> {
        if place.is_some() {
            mark(raw).unwrap();
        }
        let mut orderer = Orderer::new(Config::try_from(raw.clone()).unwrap());
        let document = |id: &str| format!("<document id=\"{id}\">\nText of {id}.\n</document>\n");
        let body = |ids: [&str; 3], question: &str| {
            let content = ids.map(document).concat() + "\n" + question;
            let messages = json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": content},
                {"role": "assistant", "content": "So."},
                {"role": "user", "content": "And?"},
            ]);
            json!({"model": "m", "messages": messages}).to_string()
        };
        orderer
            .rewrite(Tenant::default(), body(["a", "b", "c"], "Why?").as_bytes())
            .unwrap();
        let body = body(["c", "d", "a"], "How?");
        let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
        assert!(rewrite.report.hinted);
        let body = rewrite.body.unwrap();
        let body = place.map_or(body.clone(), |place| place.moved(&body).unwrap());
        let body: Value = serde_json::from_slice(&body).unwrap();
        let messages = body["messages"].as_array().unwrap().iter();
        messages
            .filter(|message| message["role"] == "user")
            .map(|message| message["content"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_moved_hint_leaves_every_other_byte_where_it_was() {
        let usual = second(None, &mut RawConfig::default());
        let hint = "Best documents first: c>d>a.";
        let documents = usual[0]
            .strip_suffix(&format!("\n{hint}\n\nHow?"))
            .unwrap_or_else(|| panic!("{usual:?}"));
        assert!(documents.starts_with("<document id=\"a\">"), "{documents}");
        let top = second(Some(HintPlace::Top), &mut RawConfig::default());
        assert_eq!(top[0], format!("{hint}\n{documents}\n\nHow?"));
        let end = second(Some(HintPlace::End), &mut RawConfig::default());
        assert_eq!(end[0], format!("{documents}\n\nHow?\n\n{hint}"));
        for messages in [usual, top, end] {
            assert_eq!(messages[1], "And?");
        }
    }

    #[test]
    fn a_template_of_the_users_own_is_moved_too() {
        let mut raw = RawConfig::default();
        raw.hint.short.clear();
        raw.hint.template = "Rank: {order}!".into();
        let end = second(Some(HintPlace::End), &mut raw);
        assert!(
            end[0].ends_with("How?\n\nRank: [c] > [d] > [a]!"),
            "{end:?}"
        );
    }

    #[test]
    fn what_has_no_hint_is_refused_and_so_is_a_text_with_a_mark() {
        let mut raw = RawConfig::default();
        raw.hint.enabled = false;
        let error = mark(&mut raw).unwrap_err().to_string();
        assert!(error.starts_with("hint.enabled is false"), "{error}");
        let mut raw = RawConfig {
            policy: "retrieval".into(),
            ..RawConfig::default()
        };
        let error = mark(&mut raw).unwrap_err().to_string();
        assert!(error.starts_with("policy is \"retrieval\""), "{error}");

        let mut cases = cases(1);
        assert!(check(&cases[0]).is_ok());
        let turn = &mut cases[0].turns[0];
        turn.documents[2] = Arc::new(Document {
            id: "1".into(),
            title: CLOSE.into(),
            text: "yes".into(),
        });
        let error = check(&cases[0]).unwrap_err().to_string();
        assert!(error.starts_with("\"0\" contains U+FDD0"), "{error}");
    }
}
