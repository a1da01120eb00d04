//! Chats as well-known clients send them: what each writes around its contexts, and where these stand.
//!
//! The forms are those of the clients' own sources. A chat's history comes back as its client keeps it, without contexts.

#![allow(dead_code, reason = "each user takes a part")]

use serde_json::Value;

/// What was found for a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) title: String,
    pub(crate) text: String,
}

/// A question, what was found for it, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) question: String,
    pub(crate) contexts: Vec<Context>,
    pub(crate) answer: String,
}

/// A client, and where it puts contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    OpenWebUi,
    OpenWebUiSystem,
    AnythingLlm,
    Dify,
    RagFlow,
    LlamaIndex,
    LibreChat,
}

impl Client {
    pub(crate) const ALL: [Self; 7] = [
        Self::OpenWebUi,
        Self::OpenWebUiSystem,
        Self::AnythingLlm,
        Self::Dify,
        Self::RagFlow,
        Self::LlamaIndex,
        Self::LibreChat,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenWebUi => "open-webui",
            Self::OpenWebUiSystem => "open-webui-system",
            Self::AnythingLlm => "anything-llm",
            Self::Dify => "dify",
            Self::RagFlow => "ragflow",
            Self::LlamaIndex => "llama-index",
            Self::LibreChat => "librechat",
        }
    }

    /// The request with which a chat asks its last turn's question.
    pub(crate) fn body(self, chat: &[Turn]) -> String {
        let Some((last, earlier)) = chat.split_last() else {
            return body_of(&[]);
        };
        let contexts = &last.contexts;
        let mut question = last.question.clone();
        let system = match self {
            Self::OpenWebUi => {
                if !contexts.is_empty() {
                    question = format!("{}\n{question}", open_webui(contexts));
                }
                PROMPT.to_owned()
            }
            Self::OpenWebUiSystem if contexts.is_empty() => PROMPT.to_owned(),
            Self::OpenWebUiSystem => format!("{PROMPT}\n{}", open_webui(contexts)),
            Self::AnythingLlm => {
                let mut text = PROMPT.to_owned();
                if !contexts.is_empty() {
                    text.push_str("\nContext:\n");
                }
                for (at, context) in contexts.iter().enumerate() {
                    text.push_str(&format!(
                        "[CONTEXT {at}]:\n<document_metadata>\nsourceDocument: {}\n</document_metadata>\n\n{}\n[END CONTEXT {at}]\n\n",
                        context.title, context.text
                    ));
                }
                text
            }
            Self::Dify => {
                let texts: Vec<&str> = contexts.iter().map(|context| &*context.text).collect();
                format!(
                    "Use the following context as your learned knowledge, inside <context></context> XML tags.\n\n<context>\n{}\n</context>\n\nWhen answer to user:\n- If you don't know, just say that you don't know.\n- If you don't know when you are not sure, ask for clarification.\nAvoid mentioning that you obtained the information from the context.\nAnd answer according to the language of the user's question.\n\n{PROMPT}",
                    texts.join("\n")
                )
            }
            Self::RagFlow => {
                let chunks = contexts.iter().enumerate().map(|(at, context)| {
                    format!(
                        "\nID: {at}\n├── Title: {}\n└── Content:\n{}",
                        context.title, context.text
                    )
                });
                let chunks: Vec<String> = chunks.collect();
                format!(
                    "{PROMPT} Here is the knowledge base:\n\n------\n{}\nThe above is the knowledge base.",
                    chunks.join("\n\n------\n\n")
                )
            }
            Self::LlamaIndex => {
                let nodes = contexts
                    .iter()
                    .map(|context| format!("file_name: {}\n\n{}", context.title, context.text));
                let nodes: Vec<String> = nodes.collect();
                let rule = "-".repeat(20);
                format!(
                    "Context information is below.\n{rule}\n{}\n{rule}\n\n{PROMPT}",
                    nodes.join("\n\n")
                )
            }
            Self::LibreChat => {
                let items = contexts.iter().map(|context| {
                    format!(
                        "\n            <contextItem>\n              <![CDATA[{}]]>\n            </contextItem>",
                        context.text
                    )
                });
                format!(
                    "{PROMPT}\nThe user has uploaded a file to the conversation:\n<file>\n<filename>handbook.pdf</filename>\n<context>{}\n</context>\n</file>\nUse the context as your learned knowledge to better answer the user.",
                    items.collect::<String>()
                )
            }
        };
        let mut messages = vec![message("system", &system)];
        for turn in earlier {
            messages.push(message("user", &turn.question));
            messages.push(message("assistant", &turn.answer));
        }
        messages.push(message("user", &question));
        body_of(&messages)
    }
}

/// Open WebUI's template, with its sources numbered from 1.
fn open_webui(contexts: &[Context]) -> String {
    let sources = contexts.iter().enumerate().map(|(at, context)| {
        format!(
            "<source id=\"{}\" name=\"{}\">{}</source>\n",
            at + 1,
            context.title,
            context.text
        )
    });
    format!(
        "### Task:\nRespond to the user query using the provided context, incorporating inline citations in the format [id] **only when the <source> tag includes an explicit id attribute** (e.g., <source id=\"1\">).\n\n### Guidelines:\n- If you don't know the answer, clearly state that.\n- Do not use XML tags in your response.\n\n<context>\n{}</context>\n",
        sources.collect::<String>()
    )
}

/// What every client's operator wrote.
const PROMPT: &str = "You are Ada, who answers from documents. Be brief and kind.";

/// Returns a message, its fields in the order in which clients write them.
fn message(role: &str, content: &str) -> String {
    let [role, content] = [role, content].map(|text| Value::from(text).to_string());
    format!(r#"{{"role":{role},"content":{content}}}"#)
}

/// Returns a body of these messages.
fn body_of(messages: &[String]) -> String {
    let messages = messages.join(",");
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}
