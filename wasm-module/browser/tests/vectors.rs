//! Checks that decisions are the same everywhere: 1,000 random requests with the native core's results. `tests/browser`
//! compares the built package with the same file, in Node and in Chromium.
//!
//! The first line of `vectors.jsonl` has the configurations and some texts' embeddings; each further line has a request
//! in short form (see [`Request::body`]) and its outcome. `UPDATE_GOLDEN=1 cargo test -p foreword-browser --test
//! vectors` rewrites it.

use foreword_ordering::policy::{Place, PolicyKind};
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, StandaloneDocument, Tenant};
use foreword_similarity::embedding::HashingEmbedder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[test]
fn a_thousand_requests_are_decided_as_the_vectors_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.jsonl");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(path, generated()).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap();
    let mut lines = file.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap()).unwrap();
    for (text, digest) in &head.embeddings {
        assert_eq!(embedding_digest(text), *digest, "{text}");
    }
    let mut orderers = orderers(&head.configs);
    let mut count = 0;
    for line in lines {
        let vector: Vector = serde_json::from_str(line).unwrap();
        let orderer = &mut orderers[vector.request.config];
        assert_eq!(vector.request.outcome(orderer), vector.outcome, "{line}");
        count += 1;
    }
    assert_eq!(count, 1_000);
}

#[derive(Serialize, Deserialize)]
struct Head {
    configs: Vec<Value>,
    /// Texts, and the digests of their vectors of 64 components.
    embeddings: Vec<(String, u32)>,
}

#[derive(Serialize, Deserialize)]
struct Vector {
    request: Request,
    outcome: Value,
}

/// A request in short form.
#[derive(Clone, Serialize, Deserialize)]
struct Request {
    /// Index of the configuration; each has its own orderer.
    config: usize,
    tenant: String,
    form: Form,
    /// Numbers of the documents that each question of the chat brings; the last question is this request's.
    turns: Vec<Vec<u64>>,
}

/// How documents are sent.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// As tagged documents in every user message.
    Tags,
    /// As a `documents` array with the last turn's documents only.
    Array,
    /// In a request without a body.
    Plain,
}

impl Request {
    /// Returns the chat body. Keys are in alphabetical order, so that every JSON printer produces the same bytes.
    fn body(&self) -> String {
        let mut messages = vec![json!({"content": "Be brief.", "role": "system"})];
        for (at, documents) in self.turns.iter().enumerate() {
            if at > 0 {
                messages.push(json!({"content": "So it is.", "role": "assistant"}));
            }
            let spans = documents.iter().filter(|_| self.form == Form::Tags);
            let spans = spans.map(|number| {
                let (id, text) = (id(*number), text(*number));
                format!("<document id=\"{id}\">{text}</document>\n")
            });
            let spans: String = spans.collect();
            messages.push(json!({"content": format!("{spans}And {at}?"), "role": "user"}));
        }
        if self.form == Form::Tags {
            return json!({"messages": messages, "model": "m"}).to_string();
        }
        let documents = self.documents();
        let documents = documents.map(|number| json!({"id": id(number), "text": text(number)}));
        let documents: Vec<Value> = documents.collect();
        json!({"documents": documents, "messages": messages, "model": "m"}).to_string()
    }

    /// The documents of the last turn.
    fn documents(&self) -> impl Iterator<Item = u64> {
        self.turns.last().into_iter().flatten().copied()
    }

    fn outcome(&self, orderer: &mut Orderer) -> Value {
        if self.form == Form::Plain {
            let documents = self.documents();
            let texts: Vec<_> = documents.map(|number| (id(number), text(number))).collect();
            let list = texts.iter().map(|(id, text)| StandaloneDocument {
                id,
                title: "",
                text,
            });
            let list: Vec<_> = list.collect();
            let ordered = orderer
                .order(Tenant::named(&self.tenant), "m", "Be brief.", &list)
                .unwrap();
            let hint = ordered.hint.map(|hint| digest(hint.as_bytes()));
            return json!([ordered.order, ordered.matched, ordered.dropped, hint]);
        }
        let body = self.body();
        let rewrite = orderer
            .rewrite(Tenant::named(&self.tenant), body.as_bytes())
            .unwrap();
        let report = rewrite.report;
        let sent = rewrite.body.unwrap_or(body.into());
        json!([
            [
                report.documents,
                report.matched,
                report.moved,
                report.dropped,
                report.deduplicated
            ],
            [report.pinned, report.replayed, u32::from(report.hinted)],
            [report.document_tokens, report.matched_tokens],
            digest(&sent),
        ])
    }
}

fn id(number: u64) -> String {
    format!("d{number}")
}

/// A text with characters that JSON escapes and others that it does not.
fn text(number: u64) -> String {
    format!("\"Où\" {number}? ").repeat(1 + number as usize % 7)
}

/// FNV-1a, 32 bits, which is short in any language.
fn digest(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn embedding_digest(text: &str) -> u32 {
    let vector = HashingEmbedder::new(64).unwrap().embed(text);
    let components = vector.unwrap_or_else(|| vec![0.0; 64]).into_iter();
    digest(&components.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
}

fn orderers(configs: &[Value]) -> Vec<Orderer> {
    let configs = configs.iter().map(|config| {
        let config = Config::from_json(config.to_string().as_bytes()).unwrap();
        Orderer::new(config)
    });
    configs.collect()
}

/// A configuration for each policy, with the best documents in every place, trees small enough to evict, and pinned
/// chats in every other one.
fn configs() -> Vec<Value> {
    let kinds = PolicyKind::ALL.iter().enumerate();
    let configs = kinds.map(|(at, kind)| {
        json!({
            "conversation": {"max_entries": 40, "pin": at % 2 == 1},
            "policy": kind.name(),
            "policy_options": {"seed": 7},
            "rank": {"place": Place::ALL[at % Place::ALL.len()].name(), "documents": 1 + at % 2},
            "tree": {"max_nodes": 90},
        })
    });
    configs.collect()
}

/// Words in several scripts, including special cases of lower case.
const TEXTS: [&str; 10] = [
    "",
    "?!",
    "How long is sick pay paid?",
    "Straße, ÉTÉ, ŒUVRE and naïve: don't",
    "İstanbul ISPARTA ılık",
    "ΣΊΣΥΦΟΣ και Οδυσσεύς",
    "½ ² ⅷ ٣ ① 12.5",
    "東京で何が起きたか",
    "हिन्दी में प्रश्न",
    "a_b-c\u{301} \u{1F600} \u{10400}\u{1E900}",
];

fn generated() -> String {
    let configs = configs();
    let mut orderers = orderers(&configs);
    let mut random = Random::new(8);
    let mut chats: Vec<Request> = Vec::new();
    let texts = TEXTS
        .iter()
        .map(|text| (text.to_string(), embedding_digest(text)));
    let head = Head {
        embeddings: texts.collect(),
        configs: configs.clone(),
    };
    let mut file = serde_json::to_string(&head).unwrap() + "\n";
    for at in 0..1_000 {
        let config = at % configs.len();
        let known = chats.iter().filter(|chat| {
            chat.config == config && chat.form != Form::Plain && chat.turns.len() < 4
        });
        let known: Vec<&Request> = known.collect();
        let chosen = random.below(known.len().max(1) as u64) as usize;
        let mut request = match known.get(chosen) {
            Some(chat) if random.below(10) < 4 => (*chat).clone(),
            _ => Request {
                config,
                tenant: ["a", "b"][random.below(2) as usize].to_owned(),
                form: [Form::Tags, Form::Array, Form::Plain][random.below(3) as usize],
                turns: Vec::new(),
            },
        };
        // Few topics, so that requests overlap; sometimes a document is repeated.
        let topic = 6 * random.below(4);
        let mut documents: Vec<u64> = (topic..topic + 9).collect();
        random.shuffle(&mut documents);
        documents.truncate(2 + random.below(6) as usize);
        if random.below(8) == 0 {
            documents.push(documents[0]);
        }
        request.turns.push(documents);
        let vector = Vector {
            outcome: request.outcome(&mut orderers[config]),
            request,
        };
        file += &(serde_json::to_string(&vector).unwrap() + "\n");
        chats.push(vector.request);
        if chats.len() > 64 {
            chats.remove(0);
        }
    }
    file
}
