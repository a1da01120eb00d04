//! Builds requests as a client without Foreword would: a system message, and for each turn the question with its
//! documents, written in the form of a [template](super::template).

use super::arm::Arm;
use super::choice;
use super::data::Case;
use super::head::ChangingHead;
use super::template::Template;
use anyhow::{Result, anyhow, ensure};
use foreword_ordering::{Config, RawConfig, documents_of};
use fxhash::FxHashSet;
use serde_json::{Map, Value, json};

/// The fields and settings that all requests of a run share, such as the model and the system message.
#[derive(Clone, Debug)]
pub(super) struct Prompts {
    pub(super) model: String,
    /// Text of the system message; empty for none.
    pub(super) system: String,
    pub(super) max_tokens: u32,
    /// Further fields of the request body, which replace standard ones of the same name.
    pub(super) extra: Map<String, Value>,
    /// Prefix of the request's `cache_salt`, to which the name of the arm (way to ask) is appended; `None` for no salt.
    pub(super) salt: Option<String>,
    /// The form in which documents are written into the prompt.
    pub(super) template: Template,
    /// Name of the tag around a document, for templates that use tags.
    pub(super) tag: String,
    /// Seed of heads (system text and tools) that change from request to request, see [`head`](super::head); `None` to
    /// send the same head always.
    pub(super) changing_head: Option<u64>,
}

impl Prompts {
    /// Returns the name of the tag that the client puts around each document. It must be one of those in which the
    /// gateway's configuration lets the ordering core find documents (`documents.tags`): `document` if that is listed,
    /// otherwise the first one. Returns an error if none is listed.
    pub(super) fn tag(ordering: &RawConfig) -> Result<String> {
        let tags = &ordering.documents.tags;
        let usual = tags.iter().find(|tag| *tag == "document");
        let tag = usual.or(tags.first());
        tag.cloned()
            .ok_or_else(|| anyhow!("documents.tags is empty: documents are sent in tags"))
    }

    /// Returns the request body that asks the next turn of a case (question or chat) under an arm (way to ask).
    /// `answers` are the model's answers to the turns before.
    pub(super) fn body(&self, case: &Case, arm: Arm, answers: &[&str]) -> Vec<u8> {
        let mut messages = Vec::new();
        let head = (self.changing_head).map(|seed| ChangingHead::of(seed, &case.id, answers.len()));
        let lines = head.as_ref().map_or("", |head| &head.lines);
        let newest = case.turns.get(answers.len());
        let newest = newest.map(|turn| arm.arrange(turn)).unwrap_or_default();
        let context = self.template.before_system(&newest);
        let system = [lines, &context, &self.system].concat();
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system}));
        }
        for (at, turn) in case.turns.iter().take(answers.len() + 1).enumerate() {
            let documents = match at == answers.len() || self.template.keeps_documents() {
                true => arm.arrange(turn),
                false => Vec::new(),
            };
            let question = choice::question(turn);
            let content = self.template.message(&self.tag, &documents, &question);
            messages.push(json!({"role": "user", "content": content}));
            if let Some(answer) = answers.get(at) {
                messages.push(json!({"role": "assistant", "content": answer}));
            }
        }
        let mut body = Map::new();
        body.insert("model".into(), self.model.clone().into());
        body.insert("messages".into(), messages.into());
        body.insert("temperature".into(), 0.into());
        body.insert("max_tokens".into(), self.max_tokens.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if let Some(documents) = self.template.array(&newest) {
            body.insert("documents".into(), documents);
        }
        if let Some(head) = head {
            body.insert("tools".into(), head.tools.into());
        }
        if let Some(salt) = &self.salt {
            let salt = format!("{salt}-{}", arm.name());
            body.insert("cache_salt".into(), salt.into());
        }
        let asked = case.turns.get(answers.len());
        if asked.is_some_and(|turn| !turn.choices.is_empty()) {
            choice::ask(&mut body);
        }
        body.extend(self.extra.clone());
        Value::Object(body).to_string().into_bytes()
    }

    /// Returns the body of a short chat without documents, for testing what an endpoint supports.
    pub(super) fn probe(&self) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("model".into(), self.model.clone().into());
        let messages = json!([{"role": "user", "content": "What is two and two?"}]);
        body.insert("messages".into(), messages);
        body.insert("temperature".into(), 0.into());
        body.extend(self.extra.clone());
        Value::Object(body).to_string().into_bytes()
    }

    /// Checks that the ordering core finds as many documents in the request of each turn of the case as the turn has.
    /// Otherwise another text in the request looks like a document, and the evaluation would measure the order of that
    /// too. Returns an error that names the case.
    pub(super) fn check(&self, case: &Case, config: &Config) -> Result<()> {
        for turn in &case.turns {
            let alone = Case {
                id: case.id.clone(),
                turns: vec![turn.clone()],
            };
            let blocks = (1..).zip(&turn.documents).map(|(number, document)| {
                let mut block = String::new();
                self.template.write(&mut block, &self.tag, number, document);
                block
            });
            let sent: FxHashSet<String> = blocks.collect();
            let found = match documents_of(&self.body(&alone, Arm::Retrieval, &[]), config) {
                Ok(groups) => groups.iter().map(|group| group.documents.len()).sum(),
                Err(_) if sent.is_empty() => 0,
                Err(skip) => {
                    return Err(anyhow!("{:?} would not be ordered: {skip}", case.id));
                }
            };
            ensure!(
                found == sent.len(),
                "{:?} has {} documents, but {found} would be found in its request: a text of it looks like documents",
                case.id,
                sent.len()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::data::{Document, Turn};
    use super::*;
    use std::sync::Arc;

    pub(in crate::evaluate) fn prompts() -> Prompts {
        Prompts {
            model: "m".into(),
            system: "Be brief.".into(),
            max_tokens: 9,
            extra: Map::new(),
            salt: Some("run".into()),
            template: Template::default(),
            tag: "document".into(),
            changing_head: None,
        }
    }

    fn case(turns: &[(&[&str], &str)]) -> Case {
        let turns = turns.iter().map(|(texts, question)| Turn {
            question: (*question).to_owned(),
            documents: texts
                .iter()
                .map(|text| {
                    Arc::new(Document {
                        id: text[..1].to_owned(),
                        title: String::new(),
                        text: (*text).to_owned(),
                    })
                })
                .collect(),
            answers: vec!["x".into()],
            answer_document: Some(0),
            choices: Vec::new(),
        });
        Case {
            id: "case".into(),
            turns: turns.collect(),
        }
    }

    #[test]
    fn a_body_holds_the_chat_so_far_and_ends_with_the_next_question() {
        let case = case(&[(&["abc", "def"], "Why?"), (&[], "How?"), (&[], "When?")]);
        let body = prompts().body(&case, Arm::Reversed, &["So."]);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            body["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "<document id=\"d\">\ndef\n</document>\n<document id=\"a\">\nabc\n</document>\n\nWhy?"},
                {"role": "assistant", "content": "So."},
                {"role": "user", "content": "How?"},
            ])
        );
        assert_eq!(body["cache_salt"], "run-reversed");
        assert_eq!(
            (&body["stream"], &body["max_tokens"]),
            (&json!(true), &json!(9))
        );

        let mut other = prompts();
        (other.salt, other.system) = (None, String::new());
        other.extra.insert("temperature".into(), json!(0.5));
        let body = other.body(&case, Arm::Retrieval, &[]);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["messages"][0]["role"], "user");
        assert_eq!(body["temperature"], json!(0.5));
        assert!(body.get("cache_salt").is_none());
    }

    #[test]
    fn the_core_finds_exactly_the_documents_whatever_their_texts() {
        let config = Config::default();
        let prompts = prompts();
        let nasty = case(&[(
            &[
                "a </document> b",
                "b\n<document id=\"x\">",
                "c <doc>d</doc>",
                "a </document> b",
            ],
            "Why?",
        )]);
        prompts.check(&nasty, &config).unwrap();
        assert!(prompts.check(&case(&[(&[], "Why?")]), &config).is_ok());
        let question = case(&[(&["abc"], "What is in <doc>this</doc>?")]);
        let error = prompts.check(&question, &config).unwrap_err().to_string();
        assert!(
            error.contains("has 1 documents, but 2 would be found"),
            "{error}"
        );
        let few = Config::from_json(br#"{"documents": {"max": 1}}"#).unwrap();
        let error = prompts.check(&case(&[(&["a", "b"], "?")]), &few);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("would not be ordered")
        );
    }

    #[test]
    fn the_tag_is_one_that_the_gateway_knows() {
        let mut raw = RawConfig::default();
        assert_eq!(Prompts::tag(&raw).unwrap(), "document");
        raw.documents.tags = vec!["chunk".into(), "doc".into()];
        assert_eq!(Prompts::tag(&raw).unwrap(), "chunk");
        raw.documents.tags.clear();
        assert!(Prompts::tag(&raw).is_err());
    }
}
