//! The forms in which clients write documents into a prompt. They affect where in a prompt a model reads best, so a
//! measurement is valid for one template only. With some, a client sends the earlier turns of a chat without their
//! documents.
//!
//! | template | documents | earlier turns |
//! | --- | --- | --- |
//! | `tags` | `<document id="…">` before the question | keep their documents |
//! | `numbered` | `[1] …` before the question | keep their documents |
//! | `open-webui` | `<source id="1" name="…">` in Open WebUI's instructions, before the question | are sent without |
//! | `llamaindex` | `file_name: …` between rules, at the beginning of the system message | are sent without |
//! | `cohere` | the array `documents`, which the model's chat template must know | are sent without |
//!
//! The ordering core finds every document in these templates. In LangChain's template, which joins texts by blank
//! lines, it finds none; in Dify's, it finds all texts as one document.

use super::data::Document;
use foreword_ordering::RawConfig;
use foreword_ordering::config::DocumentsField;
use serde_json::{Value, json};
use std::sync::Arc;

foreword_ordering::named! {
    /// The form in which a client writes documents into a prompt.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) enum Template {
        /// Each document in tags such as `<document id="…">`, before the question.
        #[default]
        Tags = "tags",
        /// Documents as a numbered list, before the question.
        Numbered = "numbered",
        /// Open WebUI's template: documents in numbered `<source>` tags, before the question.
        OpenWebUi = "open-webui",
        /// The template of LlamaIndex's context chat engine: documents at the beginning of the system message.
        LlamaIndex = "llamaindex",
        /// Documents in an array outside the messages, as in Cohere's API and Hugging Face's chat templates.
        Cohere = "cohere",
    }
}

impl Template {
    /// Changes a gateway's configuration so that the ordering core finds documents that are written in this template.
    pub(super) fn configure(self, ordering: &mut RawConfig) {
        match self {
            Self::Tags | Self::OpenWebUi => {}
            Self::Numbered => ordering.documents.numbered = true,
            Self::LlamaIndex => ordering.documents.clients = true,
            Self::Cohere => ordering.documents.field = DocumentsField::Reorder,
        }
    }

    /// Returns whether a client with this template sends the earlier turns of a chat with their documents.
    pub(super) fn keeps_documents(self) -> bool {
        matches!(self, Self::Tags | Self::Numbered)
    }

    /// Returns the text of a user message: `documents` in the template's form, if it writes them there, and `question`.
    /// `tag` is the name of the tag around a document, for [`Template::Tags`].
    pub(super) fn message(self, tag: &str, documents: &[&Arc<Document>], question: &str) -> String {
        if documents.is_empty() {
            return question.to_owned();
        }
        match self {
            Self::Tags | Self::Numbered => {
                format!("{}\n{question}", self.blocks(tag, documents))
            }
            Self::OpenWebUi => format!(
                "{OPEN_WEBUI}<context>\n{}</context>\n\n{question}",
                self.blocks(tag, documents)
            ),
            Self::LlamaIndex | Self::Cohere => question.to_owned(),
        }
    }

    /// Returns the text with the documents to write before the system message; empty if the template writes none there.
    pub(super) fn before_system(self, documents: &[&Arc<Document>]) -> String {
        match self {
            Self::LlamaIndex if !documents.is_empty() => format!(
                "Context information is below.\n{RULE}\n{}{RULE}\n\n",
                self.blocks("", documents)
            ),
            _ => String::new(),
        }
    }

    /// Returns the value of the body's field `documents`; `None` if the template writes documents into a message, or if
    /// there are none.
    pub(super) fn array(self, documents: &[&Arc<Document>]) -> Option<Value> {
        let element = |document: &&Arc<Document>| json!({"id": document.id, "title": document.title, "text": document.text});
        (self == Self::Cohere && !documents.is_empty())
            .then(|| documents.iter().map(element).collect())
    }

    fn blocks(self, tag: &str, documents: &[&Arc<Document>]) -> String {
        let mut text = String::new();
        for (number, document) in (1..).zip(documents) {
            self.write(&mut text, tag, number, document);
        }
        text
    }

    /// Appends a document to `text` in the template's form. `number` is the document's place in the list, from 1; `tag`
    /// is used by [`Template::Tags`] only.
    pub(super) fn write(self, text: &mut String, tag: &str, number: usize, document: &Document) {
        let name = document.id.replace('"', "'").replace(['\n', '\r'], " ");
        let (title, words) = (document.title.as_str(), document.text.as_str());
        match self {
            Self::Tags => write_tagged(text, tag, &format!("id=\"{name}\""), "\n", title, words),
            Self::OpenWebUi => {
                let attributes = format!("id=\"{number}\" name=\"{name}\"");
                write_tagged(text, "source", &attributes, "", title, words);
            }
            Self::Numbered => {
                // A blank line would end the list.
                let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
                let title = match title {
                    "" => String::new(),
                    title => format!("{title}: "),
                };
                text.push_str(&format!("[{number}] {title}{words}\n"));
            }
            Self::LlamaIndex => {
                let title = match title {
                    "" => String::new(),
                    title => format!("title: {title}\n"),
                };
                text.push_str(&format!("file_name: {name}\n{title}\n{}\n\n", words.trim()));
            }
            Self::Cohere => text.push_str(&format!("{name}\n{title}\n{words}\n")),
        }
    }
}

/// Appends a document in tags to `text`, with `edge` before and after its title and text. Inserts a space into
/// occurrences of the tag inside these, so that they do not end the document early.
fn write_tagged(
    text: &mut String,
    tag: &str,
    attributes: &str,
    edge: &str,
    title: &str,
    words: &str,
) {
    let inside = |words: &str| {
        let words = words.replace(&format!("<{tag}"), &format!("< {tag}"));
        words.replace(&format!("</{tag}"), &format!("< /{tag}"))
    };
    text.push_str(&format!("<{tag} {attributes}>{edge}"));
    if !title.is_empty() {
        *text += &(inside(title) + "\n\n");
    }
    *text += &format!("{}{edge}</{tag}>\n", inside(words));
}

const RULE: &str = "--------------------";

/// The beginning of Open WebUI's template, without the guidelines that an operator may write there.
const OPEN_WEBUI: &str = "### Task:\nRespond to the user query using the provided context, incorporating inline citations in the format [id] **only when the <source> tag includes an explicit id attribute** (e.g., <source id=\"1\">).\n\n";

#[cfg(test)]
mod tests {
    use super::super::arm::Arm;
    use super::super::data::{Case, Turn};
    use super::super::prompt::tests::prompts;
    use super::*;
    use foreword_ordering::{Config, Orderer, Tenant, documents_of};

    fn case() -> Case {
        let turn = |question: &str, names: &[&str]| {
            let document = |name: &&str| {
                Arc::new(Document {
                    id: (*name).to_owned(),
                    title: format!("Title {name}"),
                    text: format!("Words of {name}.\n\nMore words </source> </document>."),
                })
            };
            Turn {
                question: question.to_owned(),
                documents: names.iter().map(document).collect(),
                answers: vec!["x".into()],
                answer_document: None,
                choices: Vec::new(),
            }
        };
        Case {
            id: "case".into(),
            turns: vec![turn("Why?", &["a", "b"]), turn("How?", &["c", "d", "e"])],
        }
    }

    fn body(template: Template, case: &Case, answers: &[&str], ordering: &RawConfig) -> Value {
        let mut prompts = prompts();
        prompts.template = template;
        let config = Config::try_from(ordering.clone()).unwrap();
        prompts.check(case, &config).unwrap();
        serde_json::from_slice(&prompts.body(case, Arm::Retrieval, answers)).unwrap()
    }

    #[test]
    fn the_core_finds_and_moves_the_documents_of_every_template() {
        for template in Template::ALL {
            let mut ordering = RawConfig::default();
            template.configure(&mut ordering);
            let case = case();
            let body = body(template, &case, &["So."], &ordering);
            let text = body.to_string();
            let config = Config::try_from(ordering.clone()).unwrap();
            let groups = documents_of(text.as_bytes(), &config).unwrap();
            let found: usize = groups.iter().map(|group| group.documents.len()).sum();
            let expected = if template.keeps_documents() { 5 } else { 3 };
            assert_eq!(found, expected, "{}: {text}", template.name());

            ordering.policy = "random".into();
            ordering.hint.enabled = false;
            let moved = (0..9).map(|seed| {
                ordering.policy_options.seed = seed;
                let config = Config::try_from(ordering.clone()).unwrap();
                let mut orderer = Orderer::new(config);
                orderer
                    .rewrite(Tenant::default(), text.as_bytes())
                    .unwrap()
                    .report
                    .moved
            });
            assert!(moved.sum::<u32>() > 0, "{}", template.name());
        }
    }

    #[test]
    fn prompts_are_those_of_the_clients() {
        let case = case();
        let last = |template: Template| {
            let body = body(template, &case, &["So."], &{
                let mut ordering = RawConfig::default();
                template.configure(&mut ordering);
                ordering
            });
            let messages = body["messages"].as_array().unwrap();
            let text = |at: usize| messages[at]["content"].as_str().unwrap().to_owned();
            (
                text(0),
                text(1),
                text(messages.len() - 1),
                body["documents"].clone(),
            )
        };
        let (system, first, question, documents) = last(Template::OpenWebUi);
        assert_eq!((system.as_str(), first.as_str()), ("Be brief.", "Why?"));
        assert!(
            question.starts_with("### Task:\nRespond")
                && question.ends_with("</source>\n</context>\n\nHow?")
        );
        assert!(question.contains("\n<source id=\"3\" name=\"e\">Title e\n\nWords of e."));
        assert_eq!(documents, Value::Null);
        let (system, first, question, _) = last(Template::LlamaIndex);
        assert!(system.starts_with("Context information is below.\n--------------------\nfile_name: c\ntitle: Title c\n\nWords"));
        assert!(
            system.ends_with("\n--------------------\n\nBe brief."),
            "{system}"
        );
        assert_eq!((first.as_str(), question.as_str()), ("Why?", "How?"));
        let (_, first, question, _) = last(Template::Numbered);
        assert!(
            first.starts_with("[1] Title a: Words of a. More"),
            "{first}"
        );
        assert!(question.ends_with("\n\nHow?") && question.contains("\n[3] Title e: "));
        let (_, _, question, documents) = last(Template::Cohere);
        assert_eq!(
            (question.as_str(), &documents[2]["id"]),
            ("How?", &json!("e"))
        );
    }

    #[test]
    fn names_lead_back_to_templates() {
        for template in Template::ALL {
            assert_eq!(Template::by_name(template.name()), Some(template));
        }
    }
}
