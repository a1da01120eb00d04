//! What users write, a 0 byte between two turns, in one chat that goes on; the first two bytes choose the configuration.
//! A turn that begins with `!` is a tool's result.

use crate::hostile;
use crate::settings::Settings;
use foreword_ordering::{Orderer, Skip, Tenant};
use serde_json::Value;

/// A message as its role and its content's text.
type Message = (&'static str, String);

pub(crate) fn run(input: &[u8]) {
    let Some((settings, turns)) = Settings::read(input) else {
        return;
    };
    let mut orderer = Orderer::new(settings.config());
    let mut messages: Vec<Message> = Vec::new();
    let mut sent_before: Vec<String> = Vec::new();
    for turn in turns.split(|byte| *byte == 0).take(6) {
        if !messages.is_empty() {
            messages.push(("assistant", "Yes.".to_owned()));
        }
        let text = String::from_utf8_lossy(turn);
        messages.push(match text.strip_prefix('!') {
            Some(result) => ("tool", result.to_owned()),
            None => ("user", text.into_owned()),
        });
        let body = body_of(&messages, settings.escapes());
        hostile::is_linear(orderer.config(), body.as_bytes());
        let (sent, dropped) = match orderer.rewrite(Tenant::default(), body.as_bytes()) {
            Ok(rewrite) => (rewrite.body, rewrite.report.dropped),
            Err(Skip::NoDocuments) => (None, 0),
            // It goes on as it came, and so do its earlier messages.
            Err(Skip::TooManyDocuments { .. }) => return,
            Err(skip) => panic!("{skip}: {body}"),
        };
        let sent = contents(sent.as_deref().unwrap_or(body.as_bytes()), &messages);
        if !settings.is_bounded() {
            for (before, now) in sent_before.iter().zip(&sent) {
                assert_eq!(before, now, "an earlier message has changed");
            }
        }
        if settings.only_moves() && dropped == 0 {
            for ((_, came), went) in messages.iter().zip(&sent) {
                assert_eq!(sorted(came), sorted(went), "a message loses or gains text");
            }
        }
        sent_before = sent;
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let a = "<doc id=\"a\">The lamp is lit at dusk.</doc>";
    let b = "<doc id=\"b\">Coal comes by boat in good weather, and é.</doc>";
    let c = "<document id='c'>\nThe \"fog\" signal sounds twice a minute.\n</document>";
    let texts = [
        format!("Context: {a} {b} {c}\n\nWhy?\0{c} and {a}\0<docs>{b}{b}{c}</docs> When?"),
        "[1] one is here\n[2] two is there\n[3] three\n\nWhich?\0[1] three\n[2] two is there\n\n?".to_owned(),
        "one\n---\ntwo\n---\nthree\n---\n\nWhich?\0two\n---\none\n---\n?".to_owned(),
        "Find.\0!# One\ntext\n# Two\nmore text\n# Three\nlast\0!# Two\nmore text\n# Four\nx\n".to_owned(),
        r#"Find.\0!{"results": [{"url": "u1", "text": "x"}, {"url": "u2", "text": "y"}]}"#.replace("\\0", "\0"),
        "<context>a b</context> <file name=\"f\">x</file>\0<file name=\"f\">x</file><context>a b</context>".to_owned(),
    ];
    let settings = [0x0107, 0x0302, 0x2281, 0x0238, 0x0706].map(Settings::new);
    let inputs = texts
        .iter()
        .flat_map(|text| settings.map(|settings| settings.before(text.as_bytes())));
    let hostile = hostile::TEXTS.iter().flat_map(|(_, text)| {
        let text = hostile::body(*text, 300);
        let text = serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap_or(text);
        ["", "!"].map(|author| Settings::new(0x021f).before(format!("{author}{text}").as_bytes()))
    });
    inputs.chain(hostile).collect()
}

fn body_of(messages: &[Message], escapes: bool) -> String {
    let message = |(role, text): &Message| {
        let content = if escapes {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            format!("\"{}\"", units.collect::<String>())
        } else {
            Value::from(text.as_str()).to_string()
        };
        format!(r#"{{"role":"{role}","content":{content}}}"#)
    };
    let messages: Vec<String> = messages.iter().map(message).collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
}

/// The contents of the messages that are sent, as text; they must be those of `messages` by number and role.
fn contents(body: &[u8], messages: &[Message]) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).expect("what is sent is JSON");
    let sent = body["messages"].as_array().expect("with messages");
    assert_eq!(sent.len(), messages.len());
    let text = |(sent, (role, _)): (&Value, &Message)| {
        assert_eq!(sent["role"], *role);
        sent["content"]
            .as_str()
            .expect("a text stays one")
            .to_owned()
    };
    sent.iter().zip(messages).map(text).collect()
}

fn sorted(text: &str) -> Vec<char> {
    let mut characters: Vec<char> = text.chars().collect();
    characters.sort_unstable();
    characters
}
