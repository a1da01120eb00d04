//! A slow model of chats whose clients take contexts out of their history: it keeps all that was ever sent.

use super::clients::{Client, Context, Turn};
use foreword_ordering::head::ChangeKind;
use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Skip, Tenant};
use serde_json::{Value, json};
use std::collections::HashMap;

/// What a client does: which chat, which question, how many contexts or which, whether it begins anew.
pub(crate) type Step = [u8; 4];

pub(crate) fn orderer(config: Value) -> Orderer {
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

/// Nothing but what is tested here.
fn plain(mode: &str) -> Value {
    json!({
        "policy": "retrieval",
        "conversation": {"pin": true, "deduplicate": false, "max_pinned_tokens": 100_000},
        "head": {
            "mode": mode, "volatile": {"patterns": false, "learn": false},
            "documents": {"numbers": false, "scores": false}
        }
    })
}

pub(crate) fn send(orderer: &mut Orderer, tenant: &str, body: &str) -> String {
    match orderer.rewrite(Tenant::named(tenant), body.as_bytes()) {
        Ok(rewrite) => rewrite
            .body
            .map_or(body.to_owned(), |sent| String::from_utf8(sent).unwrap()),
        Err(Skip::NoDocuments) => body.to_owned(),
        Err(skip) => panic!("{skip}"),
    }
}

pub(crate) fn contents(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    let messages = body["messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

/// Chats of two tenants that ask few questions, so that they open alike, end and begin anew, with contexts of their own.
/// Whatever comes, an earlier message goes as it came, or with the contexts that a chat of the tenant sent it with which
/// went on with the very same answer; what came is there, and nothing else; and `report` changes no byte.
///
/// # Panics
/// Panics where this does not hold.
pub(crate) fn run(client: Client, max_bytes: u64, steps: &[Step]) {
    let mut config = plain("apply");
    config["conversation"]["max_bytes"] = max_bytes.into();
    let mut applying = orderer(config);
    let mut reporting = orderer(plain("report"));
    for tenant in ["a", "b"] {
        send(&mut applying, tenant, &first(client));
    }
    let mut chats: HashMap<u8, Vec<Turn>> = HashMap::new();
    // By chat and message: as sent at first.
    let mut sent_first: HashMap<(u8, usize), String> = HashMap::new();
    // By tenant and all words up to the answer: as sent in a chat that went on like that.
    let mut continued: HashMap<(&str, Vec<String>), Vec<String>> = HashMap::new();
    for (number, [which, question, count, anew]) in steps.iter().copied().enumerate() {
        let which = which % 4;
        let tenant = ["a", "b"][usize::from(which % 2)];
        let chat = chats.entry(which).or_default();
        if anew % 5 == 0 {
            chat.clear();
            sent_first.retain(|(of, _), _| *of != which);
        }
        let contexts = (0..count % 3).map(|at| Context {
            title: format!("t{at}"),
            text: format!("mark-{number}-{at}-{which}."),
        });
        go_on(chat, question, contexts.collect());
        let body = client.body(chat);
        assert_eq!(send(&mut reporting, tenant, &body), body);
        let sent = send(&mut applying, tenant, &body);
        let (came, went) = (contents(&body), contents(&sent));
        assert_eq!(came.len(), went.len());
        let report = applying.last_head();
        let restored = (report.changes.iter()).filter(|change| change.kind == ChangeKind::Restored);
        assert_eq!(restored.count(), report.restored as usize);
        for (at, (message, went)) in came.iter().zip(&went).enumerate().skip(1) {
            let is_last = at + 1 == 2 * chat.len();
            if at % 2 == 0 {
                assert_eq!(message, went);
            } else if is_last {
                // What came is there: the question, and each context once.
                assert!(went.ends_with(message.as_str()), "{went}");
                for context in &chat[at / 2].contexts {
                    let system = contents(&sent).swap_remove(0);
                    let places =
                        went.matches(&context.text).count() + system.matches(&context.text).count();
                    assert_eq!(places, 1);
                }
                sent_first.insert((which, at), went.clone());
            } else {
                let words = came[1..at + 2].to_vec();
                let known = continued.entry((tenant, words)).or_default();
                known.extend(sent_first.get(&(which, at)).cloned());
                assert!(went == message || known.contains(went), "{went}");
            }
        }
        let remembered = applying.remembered();
        // Two tenants.
        assert!(remembered.bytes.max(remembered.context_bytes) <= 2 * max_bytes);
    }
}

/// Chats that are found the same contexts again and again, with everything switched on that a gateway may do: an earlier
/// message goes as it came, or as a chat sent it that went on with the same answer; each line that was found for the newest
/// question stands in the chat; and `report` changes no byte.
///
/// # Panics
/// Panics where this does not hold.
pub(crate) fn run_whole(client: Client, steps: &[Step]) {
    let config = |mode: &str| json!({"conversation": {"pin": true, "max_pinned_tokens": 1_000_000}, "head": {"mode": mode}, "policy": "retrieval"});
    let (mut applying, mut reporting) = (orderer(config("apply")), orderer(config("report")));
    let off = json!({"conversation": {"pin": true, "max_pinned_tokens": 1_000_000}, "head": {"mode": "off"}, "policy": "retrieval"});
    let mut off = orderer(off);
    for orderer in [&mut applying, &mut reporting, &mut off] {
        send(orderer, "", &first(client));
    }
    let mut chats: HashMap<u8, Vec<Turn>> = HashMap::new();
    let mut sent_first: HashMap<(u8, usize), String> = HashMap::new();
    let mut continued: HashMap<Vec<String>, Vec<String>> = HashMap::new();
    for [which, question, found, anew] in steps.iter().copied() {
        let which = which % 3;
        let chat = chats.entry(which).or_default();
        if anew % 9 == 0 || chat.len() > 6 {
            chat.clear();
            sent_first.retain(|(of, _), _| *of != which);
        }
        let contexts = (0..5).filter(|bit| found >> bit & 1 == 1);
        let mut contexts: Vec<Context> = contexts.map(passage).collect();
        let count = contexts.len().max(1);
        contexts.rotate_left(usize::from(found / 32) % count);
        go_on(chat, question, contexts);
        let body = client.body(chat);
        assert_eq!(send(&mut reporting, "", &body), send(&mut off, "", &body));
        let sent = send(&mut applying, "", &body);
        let (came, went) = (contents(&body), contents(&sent));
        assert_eq!(came.len(), went.len());
        for (at, (message, went)) in came.iter().zip(&went).enumerate().skip(1) {
            let is_last = at + 1 == 2 * chat.len();
            if at % 2 == 0 {
                assert_eq!(message, went);
            } else if is_last {
                let newest = &chat[at / 2];
                assert!(went.ends_with(&newest.question), "{went}");
                for line in newest
                    .contexts
                    .iter()
                    .flat_map(|context| context.text.lines())
                {
                    assert!(sent.contains(line), "{line} of {sent}");
                }
                sent_first.insert((which, at), went.clone());
            } else {
                let known = continued.entry(came[1..at + 2].to_vec()).or_default();
                known.extend(sent_first.get(&(which, at)).cloned());
                let is_bare = went.ends_with(message.as_str()) && went.len() == message.len();
                assert!(is_bare || known.contains(went), "{went}");
            }
        }
    }
}

/// A request with contexts: what a tenant sent before its first one is known to nobody.
fn first(client: Client) -> String {
    let contexts = ["kettle", "cup"].map(|name| Context {
        title: format!("{name}.md"),
        text: format!("The {name} is there."),
    });
    client.body(&[Turn {
        question: "First?".into(),
        contexts: contexts.into(),
        answer: String::new(),
    }])
}

/// The chat's last question is answered, and another one asked.
fn go_on(chat: &mut Vec<Turn>, question: u8, contexts: Vec<Context>) {
    if let Some(last) = chat.last_mut() {
        last.answer = format!("Answer {}.", question % 2);
    }
    chat.push(Turn {
        question: format!("Question {}?", question % 3),
        contexts,
        answer: String::new(),
    });
}

/// A passage of several lines, some of which others have too.
fn passage(number: u8) -> Context {
    let line = |nth: usize| {
        format!(
            "Line {nth} of passage {number} tells at some length what there is to be told of it. "
        )
        .repeat(2)
    };
    let shared = "Note.\n\nAll prices are in crowns, and hold until they are changed.";
    Context {
        title: format!("passage-{number}.md"),
        text: [line(1).trim(), shared, line(2).trim()].join("\n"),
    }
}
