//! What gateways of other proxies send changes no byte of a request, whatever they send: only the order of its documents, and
//! the choice of an engine.
//!
//! The hostile gateway knows every word of the chats. It sends the records of its own requests as they are for workers of one
//! proxy, with texts; the same with letters changed; with bytes changed; what gateways may send; and that of hundreds of
//! models, which fill the tenants' states.

use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::policy::Placement;
use foreword_ordering::tree::Scope;
use foreword_ordering::{Config, EngineId, Orderer, PeerUpdate, Residency, Tenant, Usage};
use proptest::prelude::*;
use serde_json::json;
use std::path::Path;

/// Chats of the golden files, in their order: documents of every format, contexts that wander, lists of tools.
fn chats() -> Vec<Vec<String>> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut cases = Vec::new();
    for folder in ["golden", "wandering", "tool-lists"] {
        let folder = std::fs::read_dir(tests.join(folder)).unwrap();
        cases.extend(folder.map(|case| case.unwrap().path()));
    }
    cases.sort();
    let body = |case: &Path, number: u32| {
        std::fs::read_to_string(case.join(format!("{number}.in.json"))).ok()
    };
    let chats = cases
        .iter()
        .map(|case| (1..).map_while(|number| body(case, number)));
    chats.map(Iterator::collect).collect()
}

/// The chats whose documents are all in tags, where [`apart`] finds them.
fn tagged_chats() -> Vec<Vec<String>> {
    let has_others =
        |body: &str| ["\"documents\"", "results"].map(|mark| body.contains(mark)) != [false; 2];
    let is_tagged = |body: &String| !apart(body).1.is_empty() && !has_others(body);
    let chats = chats().into_iter();
    chats.filter(|chat| chat.iter().all(is_tagged)).collect()
}

fn orderer(policy: &str) -> Orderer {
    let config = json!({
        "policy": policy,
        "hint": {"enabled": policy == "retrieval"},
        "conversation": {"pin": true},
        "head": {"mode": "apply"},
        "tree": {"max_trees": 4},
    });
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

/// What is sent for a body.
fn sent(orderer: &mut Orderer, body: &str) -> String {
    let rewrite = orderer.rewrite(Tenant::named("t"), body.as_bytes());
    let sent = rewrite.ok().and_then(|rewrite| rewrite.body);
    sent.map_or_else(|| body.to_owned(), |sent| String::from_utf8(sent).unwrap())
}

/// What a hostile gateway sends that has seen the chat.
fn hostile(chat: &[String]) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    let mut attacker = orderer("sorted");
    for body in chat {
        let Ok(rewrite) = attacker.rewrite(Tenant::named("t"), body.as_bytes()) else {
            continue;
        };
        let record = rewrite.record;
        let told = record.encode();
        entries.extend([b'e', b'a', b'n'].map(|letter| {
            let other = |byte: &u8| if *byte == letter { b'x' } else { *byte };
            told.iter().map(other).collect()
        }));
        entries.push(told);
        entries.push(record.encode_remote());
        entries.push(PeerUpdate::Residency(record.undone()).encode());
        let usage = Usage {
            prompt_tokens: 1_000,
            cached_tokens: 0,
        };
        let correction = record.judged(usage).map(PeerUpdate::Correction);
        entries.extend(correction.map(|correction| correction.encode()));
        let stored = Event::Stored {
            tenant: TenantKey::default(),
            scope: Scope(7),
            path: vec![(Fingerprint(1), 300)],
        };
        for event in [Event::Cleared, stored] {
            entries.push(
                PeerUpdate::Residency(Residency {
                    engine: EngineId(0),
                    model: "m".into(),
                    events: vec![event],
                })
                .encode(),
            );
        }
    }
    let body = |model| {
        json!({"model": format!("other-{model}"), "documents": [{"id": "a", "text": "b"}, {"id": "c", "text": "d"}],
        "messages": [{"role": "user", "content": "?"}]})
    };
    for model in 0..9 {
        let rewrite = attacker.rewrite(Tenant::named("t"), body(model).to_string().as_bytes());
        entries.push(rewrite.unwrap().record.encode_remote());
    }
    entries
}

/// The chat's bodies as they are sent: by a gateway alone, and by one that reads hostile entries before each, chosen by
/// `choices`, of which the second and third say which byte is changed.
fn both(
    policy: &str,
    chat: &[String],
    choices: &[(u8, u16, u8)],
    read: impl Fn(&[u8]) -> Option<PeerUpdate>,
) -> [Vec<String>; 2] {
    let entries = hostile(chat);
    let mut alone = orderer(policy);
    let mut beside = orderer(policy);
    let mut choices = choices.iter().cycle();
    let alone = chat.iter().map(|body| sent(&mut alone, body)).collect();
    let beside = chat.iter().map(|body| {
        for (which, at, value) in choices.by_ref().take(12) {
            let mut entry = entries[usize::from(*which) % entries.len()].clone();
            if which % 4 == 3 {
                let at = usize::from(*at) % entry.len();
                entry[at] = *value;
            }
            if let Some(update) = read(&entry) {
                beside.learn(&update);
            }
        }
        sent(&mut beside, body)
    });
    let beside = beside.collect();
    [alone, beside]
}

fn remote(entry: &[u8]) -> Option<PeerUpdate> {
    PeerUpdate::decode_remote(entry).ok()
}

/// The bytes of a text outside its documents, and the documents, sorted.
fn apart(text: &str) -> (String, Vec<&str>) {
    let (mut rest, mut outside, mut documents) = (text, String::new(), Vec::new());
    let starts = |text: &str| {
        let marks = ["<doc ", "<doc>", "<document "].iter();
        marks.filter_map(|mark| text.find(mark)).min()
    };
    while let Some(start) = starts(rest) {
        let close = rest[start..].find("</doc").map(|at| start + at);
        let end = close.and_then(|at| Some(at + rest[at..].find('>')? + 1));
        let Some(end) = end else { break };
        outside.push_str(&rest[..start]);
        documents.push(&rest[start..end]);
        rest = &rest[end..];
    }
    outside.push_str(rest);
    documents.sort_unstable();
    (outside, documents)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Where documents keep their order, every byte is the same.
    #[test]
    fn hostile_records_change_no_byte(
        chat in prop::sample::select(chats()),
        choices in prop::collection::vec(any::<(u8, u16, u8)>(), 1..40),
    ) {
        let [alone, beside] = both("retrieval", &chat, &choices, remote);
        prop_assert_eq!(beside, alone);
    }

    /// Where they are ordered for reuse, all bytes outside documents are the same, and so are the documents.
    #[test]
    fn hostile_records_change_at_most_the_order_of_documents(
        chat in prop::sample::select(tagged_chats()),
        choices in prop::collection::vec(any::<(u8, u16, u8)>(), 1..40),
        policy in prop::sample::select(&["longest", "foresight", "recency", "context-index"][..]),
    ) {
        let [alone, beside] = both(policy, &chat, &choices, remote);
        for (alone, beside) in alone.iter().zip(&beside) {
            prop_assert_eq!(apart(beside), apart(alone));
        }
    }
}

/// The test above would find it: workers of one proxy take these entries at their word, and send what stands in them.
#[test]
fn the_same_entries_from_a_worker_of_the_proxy_would_change_what_is_sent() {
    let choices: Vec<_> = (0..60).map(|which| (which * 4, 0, 0)).collect();
    let changed = |chat: &Vec<String>| {
        let read = |entry: &[u8]| PeerUpdate::decode(entry).ok();
        let [alone, beside] = both("retrieval", chat, &choices, read);
        alone != beside
    };
    assert!(chats().iter().filter(|chat| changed(chat)).count() >= 3);
}
