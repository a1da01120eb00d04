//! System texts of one tenant, a 0 byte between two requests; the first byte says how tools are shuffled.

use foreword_ordering::{Config, Orderer, Skip, Tenant};
use serde_json::{Value, json};

const ASKED: &str = "Why?";

pub(crate) fn run(input: &[u8]) {
    let Some((&turn, texts)) = input.split_first() else {
        return;
    };
    let orderer = |head: &str| {
        let config = format!(r#"{{"head": {head}}}"#);
        Orderer::new(Config::from_json(config.as_bytes()).expect("it is one"))
    };
    let mut off = orderer(r#"{"mode": "off"}"#);
    let mut reporting = orderer("{}");
    let mut learning = orderer(r#"{"mode": "apply", "volatile": {"patterns": false}}"#);
    let mut applying = orderer(r#"{"mode": "apply", "max_moved_bytes": 300}"#);
    for (nth, text) in texts.split(|byte| *byte == 0).take(8).enumerate() {
        let text = String::from_utf8_lossy(text);
        let mut tools = [
            json!({"name": "a", "input_schema": {"required": ["x", "y"], "z": text}}),
            json!({"name": "b", "k": [1, text.len()]}),
            json!({"type": "c"}),
        ];
        tools.rotate_left((usize::from(turn) + nth) % 3);
        let system = match turn & 4 {
            0 => json!(text),
            _ => json!([{"type": "text", "text": "First."}, {"type": "text", "text": text}]),
        };
        let messages = [json!({"role": "user", "content": ASKED})];
        let body = json!({"system": system, "messages": messages, "tools": tools}).to_string();
        let as_off = sent(&mut off, &body);
        assert_eq!(
            as_off,
            sent(&mut reporting, &body),
            "a report changes no byte"
        );
        for orderer in [&mut learning, &mut applying] {
            let sent = sent(orderer, &body);
            let sent: Value = serde_json::from_str(&sent).expect("what is sent is JSON");
            let names = |body: &Value| {
                let tools = body["tools"].as_array().into_iter().flatten();
                let mut tools: Vec<String> = tools.map(Value::to_string).collect();
                tools.sort();
                tools
            };
            let came: Value = serde_json::from_str(&body).expect("it is JSON");
            assert_eq!(names(&came), names(&sent), "tools are lost");
            let asked = sent["messages"][0]["content"].as_str().expect("a text");
            let moved = asked.strip_suffix(ASKED).expect("a message keeps its text");
            let config = orderer.config();
            let parsed = foreword_ordering::parse(body.as_bytes(), config);
            if parsed.is_ok_and(|parsed| parsed.has_documents()) {
                // They change places, and hints are added.
                continue;
            }
            let (came, left) = (words(&came["system"]), words(&sent["system"]));
            let report = orderer.last_head();
            if report.frozen == 0 {
                assert!(is_in(&left, &came), "the system text says something else");
                if report.dropped == 0 {
                    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
                    let all = letters(&left) + letters(moved);
                    assert_eq!(all, letters(&came), "words are lost or repeated");
                }
            }
        }
    }
}

fn sent(orderer: &mut Orderer, body: &str) -> String {
    match orderer.rewrite(Tenant::default(), body.as_bytes()) {
        Ok(rewrite) => {
            let sent = rewrite.body.unwrap_or_else(|| body.as_bytes().to_vec());
            String::from_utf8(sent).expect("what is sent is text")
        }
        Err(Skip::NoDocuments) => body.to_owned(),
        // Tags in a system text may be documents, too many of them.
        Err(Skip::TooManyDocuments { .. }) => body.to_owned(),
        Err(skip) => panic!("{skip}: {body}"),
    }
}

/// The text of a `system` field.
fn words(system: &Value) -> String {
    match system {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

/// Returns whether `left` is `all` with some characters taken out.
fn is_in(left: &str, all: &str) -> bool {
    let mut all = all.chars();
    left.chars().all(|c| all.any(|other| other == c))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = |user: &str, clock: &str| {
        format!("You are Ada.\nCurrent time: {clock}\nBe brief. Cite.\nThe user is {user}.\n")
    };
    let texts = [
        [text("Ann, desk 4", "1:00"), text("Bob, desk 9", "2:00"), text("Eve, desk 1", "3:00")].join("\0"),
        "<env>\nDate: 1/2/2026\n</env>\nBe brief.\0<env>\nDate: 1/3/2026\n</env>\nBe brief.".to_owned(),
        "x-anthropic-billing-header: cch=1;You are\0x-anthropic-billing-header: cch=2; \nYou are".to_owned(),
        "One is here. Two, 2, is there. Three\0One is here. Two, 3, is there. Three\0Two, 4, is there.".to_owned(),
        "Session ID: 1\r\n\u{e9} \"q\" \\\0Session ID: 2\r\n\u{e9} \"q\" \\".to_owned(),
    ];
    let texts = texts
        .iter()
        .flat_map(|text| [0_u8, 5].map(|first| (first, text)));
    texts
        .map(|(first, text)| [&[first], text.as_bytes()].concat())
        .collect()
}
