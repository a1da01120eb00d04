//! Two workers of one client: each body goes to one of them, and what that one tells comes damaged to the other.
//!
//! ```text
//!   setup, 12 steps of 6 bytes │ damages of 4 bytes: which entry, where (2), what is put there
//! ```

use crate::chats;
use foreword_ordering::{Config, Orderer, PeerUpdate, Skip, Tenant};
use serde_json::{Value, json};

const STEPS: usize = 12;

pub(crate) fn run(input: &[u8]) {
    let Some((setup, input)) = input.split_first() else {
        return;
    };
    let (bodies, damages) = chats::bodies(input, STEPS);
    let (damages, _) = damages.as_chunks::<4>();
    let mut workers = [0; 2].map(|_| Orderer::new(config(*setup)));
    for (step, body) in bodies.iter().enumerate() {
        let at = usize::from(setup >> (step % 8) & 1);
        let rewrite = match workers[at].rewrite(Tenant::default(), body.as_bytes()) {
            Ok(rewrite) => rewrite,
            Err(Skip::NoDocuments) => continue,
            Err(skip) => panic!("{skip}"),
        };
        if let Some(sent) = &rewrite.body {
            is_the_chat(sent, body);
        }
        let mut entry = rewrite.record.encode();
        for [which, low, high, value] in damages {
            let place = usize::from(u16::from_le_bytes([*low, *high])) % entry.len();
            if usize::from(*which) % STEPS == step {
                entry[place] = *value;
            }
        }
        if let Ok(told) = PeerUpdate::decode(&entry) {
            workers[1 - at].learn(&told);
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0..8)
        .map(|seed| chats::random(seed, 1 + 6 * STEPS + 4 * 4))
        .collect()
}

fn config(setup: u8) -> Config {
    let config = json!({
        "policy": if setup & 1 == 0 { "longest" } else { "foresight" },
        "conversation": {"pin": true, "deduplicate": setup & 2 == 0, "max_pinned_tokens": 100_000},
    });
    Config::from_json(config.to_string().as_bytes()).expect("a valid configuration")
}

/// What is sent is JSON, as many messages as came, by the same authors, and every document stands in them.
fn is_the_chat(sent: &[u8], body: &str) {
    let sent: Value = serde_json::from_slice(sent).expect("what is sent is JSON");
    let body: Value = serde_json::from_str(body).expect("what came is JSON");
    let messages = |chat: &Value| chat["messages"].as_array().cloned().unwrap_or_default();
    let roles = |chat| -> Vec<Value> {
        let messages = messages(chat).into_iter();
        messages.map(|message| message["role"].clone()).collect()
    };
    assert_eq!(roles(&sent), roles(&body));
    let text = |chat| -> String {
        let messages = messages(chat).into_iter();
        messages
            .map(|message| text_of(&message["content"]))
            .collect()
    };
    let (sent, came) = (text(&sent), text(&body));
    for piece in came.split_inclusive("</doc>") {
        if let Some(start) = piece.find("<doc id=") {
            assert!(sent.contains(&piece[start..]), "a document is lost");
        }
    }
    for document in body["documents"].as_array().into_iter().flatten() {
        let text = document["text"].as_str().unwrap_or_default();
        assert!(sent.contains(text), "an array's document is lost");
    }
}

/// A content's text, or that of its parts.
fn text_of(content: &Value) -> String {
    match content.as_array() {
        Some(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        None => content.as_str().unwrap_or_default().to_owned(),
    }
}
