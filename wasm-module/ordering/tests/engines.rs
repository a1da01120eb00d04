//! Several engines behind one orderer, and what engines say of themselves.

use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::policy::Placement;
use foreword_ordering::{
    Config, EngineCandidate, EngineId, Orderer, OrderingRecord, PeerUpdate, Residency, Rewrite,
    RewriteOptions, Tenant, Usage,
};
use serde_json::{Value, json};

/// A chat request with documents of some 100 tokens each.
fn body(ids: &[&str]) -> Value {
    json!({"model": "m", "messages": [question(ids)]})
}

fn question(ids: &[&str]) -> Value {
    let documents = ids.iter().map(|id| {
        let words = format!("What {id} says of it. ").repeat(20);
        format!("<document id=\"{id}\">{words}</document>")
    });
    let documents: Vec<_> = documents.collect();
    json!({"role": "user", "content": format!("{}\nWhy?", documents.join("\n"))})
}

fn orderer() -> Orderer {
    Orderer::new(Config::default().with_placement(Placement::FREE))
}

fn choices(outstanding: &[u64]) -> Vec<EngineCandidate> {
    (0..)
        .map(EngineId)
        .zip(outstanding)
        .map(|(engine, &outstanding)| EngineCandidate {
            engine,
            outstanding,
        })
        .collect()
}

fn rewrite_among(orderer: &mut Orderer, choices: &[EngineCandidate], body: &str) -> Rewrite {
    let options = RewriteOptions {
        choices,
        ..RewriteOptions::default()
    };
    let sent = orderer.rewrite_on(&options, Tenant::default(), body.as_bytes());
    sent.unwrap()
}

fn send(orderer: &mut Orderer, outstanding: &[u64], body: &Value) -> Rewrite {
    let body = body.to_string();
    rewrite_among(orderer, &choices(outstanding), &body)
}

/// The engine that the request goes to, and what that engine is believed to hold of it.
fn sent(orderer: &mut Orderer, outstanding: &[u64], body: &Value) -> (u16, u32) {
    let sent = send(orderer, outstanding, body);
    (sent.record.engine().0, sent.report.matched)
}

#[test]
fn a_request_goes_where_least_is_to_be_computed() {
    let mut orderer = orderer();
    // Nobody holds anything: the least loaded one, and the first of equals.
    assert_eq!(
        sent(&mut orderer, &[5, 3, 3], &body(&["a", "b", "c"])),
        (1, 0)
    );
    assert_eq!(
        sent(&mut orderer, &[0, 9, 9], &body(&["d", "e", "f"])),
        (0, 0)
    );
    // What is held outweighs a load that is smaller than it.
    assert_eq!(
        sent(&mut orderer, &[0, 200, 0], &body(&["c", "b", "a"])),
        (1, 3)
    );
    assert_eq!(
        sent(&mut orderer, &[200, 0, 0], &body(&["f", "e", "d"])),
        (0, 3)
    );
    // And not one that is larger: then another engine learns the documents.
    assert_eq!(
        sent(&mut orderer, &[9_000, 9_000, 0], &body(&["a", "b", "c"])),
        (2, 0)
    );
    assert_eq!(
        sent(&mut orderer, &[9_000, 9_000, 0], &body(&["b", "c", "a"])),
        (2, 3)
    );
}

#[test]
fn a_request_is_ordered_for_the_engine_that_it_goes_to() {
    let mut orderer = orderer();
    send(&mut orderer, &[0, 9_000], &body(&["a", "b"]));
    send(&mut orderer, &[9_000, 0], &body(&["b", "a"]));
    let mut order = |outstanding: &[u64], question: &str| {
        let body = body(&["a", "b"]).to_string().replace("Why?", question);
        let body = serde_json::from_str(&body).unwrap();
        send(&mut orderer, outstanding, &body).path.runs[0]
            .documents
            .clone()
    };
    let first = order(&[0, 9_000], "How?");
    let second = order(&[9_000, 0], "When?");
    assert_eq!(first, second.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn a_chat_stays_with_its_engine_while_that_is_among_the_choices() {
    let mut orderer = orderer();
    let mut records = Vec::new();
    let mut send = |outstanding: &[u64], chat: &Value| {
        let sent = send(&mut orderer, outstanding, chat);
        records.push(sent.record.clone());
        (sent.record.engine().0, sent.report)
    };
    let mut chat = body(&["a"]);
    assert_eq!(send(&[9, 0], &chat).0, 1);
    let grow = |chat: &mut Value, ids: &[&str]| {
        let messages = chat["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": "So."}));
        messages.push(question(ids));
    };
    grow(&mut chat, &["b"]);
    assert_eq!(send(&[0, 100_000], &chat).0, 1);
    // Its engine is down: it goes on elsewhere, with the same words, and stays there.
    grow(&mut chat, &["c"]);
    let (engine, report) = send(&[0], &chat);
    assert_eq!((engine, report.matched, report.replayed), (0, 0, 2));
    grow(&mut chat, &["d"]);
    let (engine, report) = send(&[100_000, 0], &chat);
    assert_eq!((engine, report.matched), (0, 3));
    // Another orderer learns where the chat is at home.
    let mut other = self::orderer();
    for record in records {
        other.learn(&PeerUpdate::OrderingRecord(record));
    }
    grow(&mut chat, &["e"]);
    assert_eq!(sent(&mut other, &[100_000, 0], &chat), (0, 4));
}

#[test]
fn what_was_weighed_for_other_engines_leaves_nothing_behind() {
    let mut orderer = orderer();
    for number in 0..50 {
        let ids = [0, 1, 2].map(|document| format!("{number}-{document}"));
        let ids = ids.each_ref().map(String::as_str);
        send(&mut orderer, &[0, 9_000, 9_000], &body(&ids));
    }
    // One scope with 150 documents at the first engine.
    assert_eq!(orderer.nodes(), 151);
    let choice = [EngineCandidate {
        engine: EngineId(u16::MAX),
        outstanding: 0,
    }];
    for choices in [&choice[..], &[]] {
        let text = body(&["0-0", "0-1", "0-2"]).to_string();
        let rewrite = rewrite_among(&mut orderer, choices, &text);
        assert_eq!(
            (rewrite.record.engine(), rewrite.report.matched),
            (EngineId(0), 3)
        );
    }
}

fn residency(engine: u16, events: Vec<Event>) -> PeerUpdate {
    PeerUpdate::Residency(Residency {
        engine: EngineId(engine),
        model: "m".into(),
        events,
    })
}

/// What the feed of an engine would say after it got that request.
fn stored(record: &Rewrite, tenant: TenantKey) -> Event {
    let run = &record.path.runs[0];
    Event::Stored {
        tenant,
        scope: run.scope,
        path: run
            .documents
            .iter()
            .map(|document| (*document, 100))
            .collect(),
    }
}

#[test]
fn the_feed_of_an_engine_changes_what_that_engine_is_believed_to_hold() {
    let mut orderer = orderer();
    let first = send(&mut orderer, &[0, 9_000], &body(&["a", "b", "c"]));
    let run = &first.path.runs[0];
    let key = TenantKey::default();
    orderer.learn(&residency(
        0,
        vec![Event::Removed {
            tenant: key,
            scope: run.scope,
            path: run.documents[..2].to_vec(),
        }],
    ));
    let ask = |orderer: &mut Orderer, ids: &[&str]| sent(orderer, &[0, 9_000], &body(ids)).1;
    assert_eq!(ask(&mut orderer, &["a", "b", "c"]), 1);
    // Another engine's, another model's and another tenant's news are others'.
    let mut other_model = residency(0, vec![Event::Cleared]);
    if let PeerUpdate::Residency(residency) = &mut other_model {
        residency.model = "n".into();
    }
    orderer.learn(&other_model);
    orderer.learn(&residency(1, vec![Event::Cleared]));
    orderer.learn(&residency(
        0,
        vec![Event::Removed {
            tenant: TenantKey::of("salt"),
            scope: run.scope,
            path: Vec::new(),
        }],
    ));
    assert_eq!(ask(&mut orderer, &["c", "b", "a"]), 3);
    // A new life: what is held is said anew.
    orderer.learn(&residency(0, vec![Event::Cleared]));
    assert_eq!(orderer.nodes(), 0);
    orderer.learn(&residency(0, vec![stored(&first, key)]));
    assert_eq!(ask(&mut orderer, &["c", "b", "a"]), 3);
    // Another engine in its place: whatever the model.
    let mut of_all = residency(0, vec![Event::Cleared]);
    if let PeerUpdate::Residency(residency) = &mut of_all {
        residency.model = "".into();
    }
    orderer.learn(&of_all);
    assert_eq!(orderer.nodes(), 0);
}

#[test]
fn an_orderer_that_saw_no_request_learns_from_a_feed() {
    let mut orderer = orderer();
    let first = send(&mut self::orderer(), &[0], &body(&["a", "b"]));
    orderer.learn(&residency(0, vec![stored(&first, TenantKey::default())]));
    assert_eq!(sent(&mut orderer, &[0], &body(&["b", "a"])).1, 2);
}

#[test]
fn a_feed_without_keys_tells_no_named_tenant_what_another_sent() {
    let mut orderer = orderer();
    let ask = |orderer: &mut Orderer, name, ids: &[&str]| {
        let body = body(ids).to_string();
        let rewrite = orderer.rewrite(Tenant::named(name), body.as_bytes());
        rewrite.unwrap()
    };
    ask(&mut orderer, "two", &["x"]);
    let first = ask(&mut orderer, "one", &["a", "b"]);
    orderer.learn(&residency(0, vec![stored(&first, TenantKey::default())]));
    assert_eq!(ask(&mut orderer, "two", &["b", "a"]).report.matched, 0);
    assert_eq!(ask(&mut orderer, "one", &["b", "a"]).report.matched, 2);
    // What was dropped is news for whoever may have relied on it.
    orderer.learn(&residency(0, vec![Event::Cleared]));
    assert_eq!(ask(&mut orderer, "one", &["b", "a"]).report.matched, 0);
}

#[test]
fn an_answer_that_counts_less_than_was_believed_corrects_every_orderer() {
    let [mut one, mut two] = [orderer(), orderer()];
    let asked =
        |orderer: &mut Orderer, other: &mut Orderer, ids: &[&str]| -> (u32, OrderingRecord) {
            let sent = send(orderer, &[0], &body(ids));
            other.learn(&PeerUpdate::OrderingRecord(sent.record.clone()));
            (sent.report.matched, sent.record)
        };
    let ids = ["a", "b", "c", "d", "e", "f"];
    asked(&mut one, &mut two, &ids);
    asked(&mut one, &mut two, &["a", "b", "c", "x", "y", "z"]);
    let (matched, record) = asked(&mut two, &mut one, &ids);
    assert_eq!(matched, 6);
    assert!(record.uncached() < 100, "{}", record.uncached());
    // It had all of it, but for a page.
    let usage = |cached_tokens| Usage {
        prompt_tokens: 1_400,
        cached_tokens,
    };
    assert_eq!(record.judged(usage(1_280)), None);
    // It had nothing. What was sent now is held, what else hung there is not.
    let correction = PeerUpdate::Correction(record.judged(usage(0)).unwrap());
    let told = PeerUpdate::decode(&correction.encode()).unwrap();
    for orderer in [&mut one, &mut two] {
        orderer.learn(&told);
        assert_eq!(
            sent(orderer, &[0], &body(&["x", "y", "z", "a", "b", "c"])).1,
            3
        );
    }
    // Nobody is kept for what is not known.
    let mut new = orderer();
    new.learn(&told);
    assert_eq!(new.trees(), 0);
}
