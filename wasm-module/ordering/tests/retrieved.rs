//! Documents that a retriever found: written where the engine's cache makes most of them, and kept there.

use foreword_ordering::policy::Placement;
use foreword_ordering::{
    Config, Orderer, PeerUpdate, Retrieved, Rewrite, RewriteOptions, Skip, Tenant, parse_with,
};
use serde_json::{Value, json};

fn send(orderer: &mut Orderer, body: &str, ids: &[&str]) -> Result<Rewrite, Skip> {
    let documents = ids.iter().map(|id| json!({"id": id, "text": long(id)}));
    let documents = Value::Array(documents.collect()).to_string();
    let retrieved = Retrieved {
        documents: &documents,
        around: [r"Sources:\n", r"End.\n"],
    };
    let mut parsed = parse_with(body.as_bytes(), &retrieved, orderer.config())?;
    orderer.rewrite_parsed(&RewriteOptions::default(), Tenant::default(), &mut parsed)
}

/// Longer than a hint that stands for it.
fn long(id: &str) -> String {
    format!("text of \"{id}\" {}", "and so on ".repeat(9))
}

fn orderer(json: &str) -> Orderer {
    Orderer::new(
        Config::from_json(json.as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

fn text(body: &[u8], message: usize) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"][message]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

const CHAT: &str = r#"{"model": "m", "messages": [{"role": "system", "content": "Be \u0062rief."}, {"role": "user", "content": "Wh\u0079?"}], "max_tokens": 1e0}"#;

#[test]
fn they_stand_between_the_system_prompt_and_the_question_and_every_other_byte_stays() {
    let mut orderer = orderer("{}");
    let sent = send(&mut orderer, CHAT, &["a", "b"]).unwrap();
    let body = String::from_utf8(sent.body.unwrap()).unwrap();
    let (before, rest) = body.split_once(r"Sources:\n").unwrap();
    let (_, behind) = rest.split_once(r"End.\n\n").unwrap();
    assert_eq!(format!("{before}{behind}"), CHAT);
    assert_eq!(
        text(body.as_bytes(), 1),
        format!(
            "Sources:\n<document id=\"a\">\n{}\n</document>\n<document id=\"b\">\n{}\n</document>\nEnd.\n\nWhy?",
            long("a"),
            long("b")
        )
    );
    assert_eq!(sent.report.documents, 2);
    assert_eq!(sent.path.runs[0].documents.len(), 2);
    // A client's empty array brings no documents, and becomes `null` as any other that is written into a message.
    let with = |body: &str, array| body.replacen('{', &format!("{{\"documents\": {array}, "), 1);
    let sent = send(&mut orderer, &with(CHAT, "[ ]"), &["a", "b"]).unwrap();
    let sent = String::from_utf8(sent.body.unwrap()).unwrap();
    assert_eq!(sent, with(&body, "null"));
}

#[test]
fn nothing_is_written_into_a_message_with_a_tools_result() {
    let results = [
        json!({"type": "tool_result", "tool_use_id": "t", "content": "4"}),
        json!({"toolResult": {"content": []}}),
    ];
    for result in results {
        for more in [None, Some(json!({"type": "text", "text": "And now?"}))] {
            let content: Vec<Value> = [Some(result.clone()), more].into_iter().flatten().collect();
            let before = json!({"model": "m", "messages": [
                {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."},
                {"role": "user", "content": content}
            ]});
            let sent = send(&mut orderer("{}"), &before.to_string(), &["a", "b"]).unwrap();
            let after: Value = serde_json::from_slice(&sent.body.unwrap()).unwrap();
            assert_eq!(after["messages"][2], before["messages"][2]);
            let question = after["messages"][0]["content"].as_str().unwrap();
            assert!(
                question.starts_with("Sources:") && question.ends_with("Why?"),
                "{question}"
            );
        }
    }
}

#[test]
fn what_the_engine_holds_comes_first_and_the_hint_tells_the_rank() {
    let mut orderer = orderer("{}");
    send(&mut orderer, CHAT, &["a", "b"]).unwrap();
    let sent = send(&mut orderer, &CHAT.replace("Wh", "Wh o"), &["c", "b", "a"]).unwrap();
    assert_eq!(sent.report.matched, 2);
    let text = text(&sent.body.unwrap(), 1);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at("id=\"a\"") < at("id=\"b\"") && at("id=\"b\"") < at("id=\"c\""));
    assert!(at("End.") < at("c>b>a.") && at("a.") < at("Wh oy?"));
}

#[test]
fn a_chat_that_goes_on_keeps_what_it_was_given() {
    let mut orderer = orderer(r#"{"conversation": {"pin": true}}"#);
    let first = send(&mut orderer, CHAT, &["a", "b"]).unwrap().body.unwrap();
    let second = send(&mut orderer, &longer("And?"), &["b", "c"]).unwrap();
    assert_eq!((second.report.pinned, second.report.deduplicated), (2, 1));
    let second = second.body.unwrap();
    assert_eq!(text(&first, 1), text(&second, 1));
    let asked = text(&second, 3);
    assert!(
        asked.contains("id=\"c\"") && !asked.contains("id=\"b\"") && asked.contains("[b]"),
        "{asked}"
    );
    assert!(
        asked.starts_with("Sources:\n") && asked.ends_with("End.\n\nAnd?"),
        "{asked}"
    );
}

/// `CHAT` with one more turn.
fn longer(question: &str) -> String {
    let more = format!(
        r#""Wh\u0079?"}}, {{"role": "assistant", "content": "So."}}, {{"role": "user", "content": "{question}"}}]"#
    );
    CHAT.replace(r#""Wh\u0079?"}]"#, &more)
}

#[test]
fn a_chat_that_goes_on_with_another_worker_keeps_them_as_far_as_they_are_told() {
    let worker = || orderer(r#"{"conversation": {"pin": true}}"#);
    let tell = |other: &mut Orderer, sent: &Rewrite| {
        let bytes = PeerUpdate::OrderingRecord(sent.record.clone()).encode();
        other.learn(&PeerUpdate::decode(&bytes).unwrap());
    };
    let [mut one, mut two] = [worker(), worker()];
    let first = send(&mut one, CHAT, &["b", "a"]).unwrap();
    tell(&mut two, &first);
    let second = send(&mut two, &longer("And?"), &["b", "c"]).unwrap();
    tell(&mut one, &second);
    let alone = send(&mut one, &longer("And?"), &["b", "c"]).unwrap();
    assert_eq!((second.report.pinned, second.report.deduplicated), (2, 1));
    assert_eq!(second.body, alone.body);
    assert_eq!(
        text(&first.body.unwrap(), 1),
        text(&second.body.unwrap(), 1)
    );

    // What there is no room for stays where it was written, and with it what is known of the chat.
    let [mut one, mut two] = [worker(), worker()];
    let many: Vec<String> = (0..90).map(|id| id.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let first = send(&mut one, CHAT, &many).unwrap();
    assert!(
        PeerUpdate::OrderingRecord(first.record.clone())
            .encode()
            .len()
            < 4_096
    );
    tell(&mut two, &first);
    let second = send(&mut two, &longer("And?"), &["b"]).unwrap();
    assert_eq!((second.report.pinned, second.report.replayed), (0, 0));
}

#[test]
fn they_are_written_whatever_is_done_with_a_clients_own() {
    for field in ["reorder", "ignore"] {
        let mut orderer = orderer(&json!({"documents": {"field": field}}).to_string());
        let sent = send(&mut orderer, CHAT, &["a"]).unwrap();
        assert!(
            text(&sent.body.unwrap(), 1).contains("text of \"a\""),
            "{field}"
        );
    }
}

#[test]
fn a_body_that_has_documents_or_no_room_for_them_is_none_for_a_retriever() {
    let mut orderer = orderer("{}");
    let own = CHAT.replacen('{', r#"{"documents": ["mine"], "#, 1);
    let sent = send(&mut orderer, &own, &["a"]).unwrap().body.unwrap();
    assert!(text(&sent, 1).contains("mine") && !text(&sent, 1).contains("text of"));
    let silent = r#"{"messages": [{"role": "system", "content": "s"}]}"#;
    assert_eq!(
        send(&mut orderer, silent, &["a"]).err(),
        Some(Skip::NoUserMessage)
    );
    assert_eq!(send(&mut orderer, CHAT, &[]).err(), Some(Skip::NoDocuments));
    let many: Vec<&str> = vec!["a"; 600];
    let error = send(&mut orderer, CHAT, &many).err();
    assert!(
        matches!(error, Some(Skip::TooManyDocuments { found: 600, .. })),
        "{error:?}"
    );
}
