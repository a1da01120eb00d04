//! Stabilised heads against a slow, obvious model of clients: whatever they send, `report` changes no byte, `apply` loses,
//! repeats and alters none beyond what its report lists, and a chat's earlier messages stay as they were sent, whichever
//! worker it comes to.

use foreword_ordering::head::ChangeKind;
use foreword_ordering::{Config, Orderer, PeerUpdate, Rewrite, Skip, Tenant};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// One request: the chat, its head, the question, the worker that receives it, and the form of its system text.
type Step = [u8; 6];

/// A chat as its client keeps it.
struct Chat {
    session: usize,
    /// Role and content.
    messages: Vec<(&'static str, String)>,
    /// As sent, at its last request.
    sent: Vec<Value>,
}

const TOOLS: [&str; 4] = ["search", "weather", "add", "mail"];

/// A tool whose keys stand in an order of their own.
fn tool(name: &str, order: u8) -> String {
    let mut members = [
        r#""type":"object""#.to_owned(),
        r#""properties":{"a":{"type":"string","enum":["y","x"]},"b":{"anyOf":[{"type":"null"},{"k":1,"j":2}]}}"#
            .to_owned(),
        match order & 8 {
            0 => r#""required":["a","b"]"#.to_owned(),
            _ => r#""required":["b","a"]"#.to_owned(),
        },
    ];
    members.rotate_left(usize::from(order) % 3);
    let parameters = format!(r#""parameters":{{{}}}"#, members.join(","));
    let name = format!(r#""name":"{name}""#);
    let function = match order & 4 {
        0 => [name, parameters],
        _ => [parameters, name],
    };
    format!(
        r#"{{"type":"function","function":{{{}}}}}"#,
        function.join(",")
    )
}

/// The body of a chat's next request.
fn body(chat: &Chat, clock: usize, [look, form]: [u8; 2], tools: u8) -> String {
    let fixed = [
        "You are Ada, who answers from documents.",
        "Be brief and kind.",
    ];
    let mut lines = fixed.map(str::to_owned).to_vec();
    let changing = [
        (1, format!("Current time: 12:{clock:02}")),
        (2, format!("Today's date is 2026-11-{:02}.", 1 + clock % 28)),
        (
            4,
            format!("The current date and time is Nov {clock}, 2026."),
        ),
    ];
    for (_, line) in changing.into_iter().filter(|(bit, _)| look & bit != 0) {
        lines.insert(usize::from(look / 32) % 3, line);
    }
    // Two chats that open with the same words are told apart by what is theirs.
    lines.push(format!("Session ID: s{:04}", chat.session));
    if look & 8 != 0 {
        lines.push("Quote \"this\" \\ and é.".to_owned());
    }
    let line_break = if look & 16 == 0 { "\n" } else { "\r\n" };
    let is_changing = |line: &String| !fixed.contains(&&**line) && !line.starts_with("Quote");
    // If every block could move, the last one stays. It holds the session alone: with a clock, each turn would be a new chat.
    let mut size = 1 + usize::from(form / 4 % 2);
    match form % 4 {
        2 => lines.sort_by_key(is_changing),
        3 => {
            lines.retain(is_changing);
            size = 1;
        }
        _ => {}
    }
    let blocks = lines.chunks(size);
    let blocks = blocks.map(|lines| json!({"type": "text", "text": lines.join(line_break)}));
    let system = match form % 4 {
        0 => Value::from(lines.join(line_break)),
        _ => blocks.collect(),
    };
    let mut messages = vec![json!({"role": "system", "content": system})];
    let others = chat
        .messages
        .iter()
        .map(|(role, content)| json!({"role": role, "content": content}));
    messages.extend(others);
    let mut names: Vec<&str> = TOOLS[..usize::from(tools % 5)].to_vec();
    let count = names.len().max(1);
    names.rotate_left(usize::from(tools / 8) % count);
    let tools: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(at, name)| tool(name, tools.wrapping_mul(7).wrapping_add(at as u8)))
        .collect();
    format!(
        r#"{{"model":"m","tools":[{}],"messages":{}}}"#,
        tools.join(","),
        Value::from(messages)
    )
}

/// A value without the order of its keys and of its sets.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut sorted: Vec<(&String, &Value)> = object.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            let members = sorted.into_iter().map(|(key, value)| {
                let mut value = canonical(value);
                if key == "required"
                    && let Some(names) = value.as_array_mut()
                {
                    names.sort_by_key(Value::to_string);
                }
                (key.clone(), value)
            });
            Value::Object(members.collect::<Map<_, _>>())
        }
        Value::Array(elements) => elements.iter().map(canonical).collect(),
        other => other.clone(),
    }
}

fn rewrite(orderer: &mut Orderer, body: &str) -> (String, Option<Rewrite>) {
    match orderer.rewrite(Tenant::default(), body.as_bytes()) {
        Ok(mut rewrite) => {
            let sent = rewrite.body.take();
            let sent = sent.map_or(body.to_owned(), |sent| String::from_utf8(sent).unwrap());
            (sent, Some(rewrite))
        }
        Err(Skip::NoDocuments) => (body.to_owned(), None),
        Err(skip) => panic!("{skip}"),
    }
}

fn orderer(mode: &str, learn: bool) -> Orderer {
    let config = json!({"head": {"mode": mode, "volatile": {"learn": learn}}}).to_string();
    Orderer::new(Config::from_json(config.as_bytes()).unwrap())
}

/// What is sent is what came, but for what the report lists.
fn check(came: &str, sent: &str, orderer: &Orderer, known: &[Value]) {
    let report = orderer.last_head();
    let (before, after): (Value, Value) = (
        serde_json::from_str(came).unwrap(),
        serde_json::from_str(sent).unwrap(),
    );
    let tools = |body: &Value| {
        let tools = body["tools"].as_array().unwrap().iter();
        let mut tools: Vec<String> = tools.map(|tool| canonical(tool).to_string()).collect();
        tools.sort();
        tools
    };
    assert_eq!(tools(&before), tools(&after), "no tool is lost or another");
    assert_eq!(
        came.len(),
        came.replace(char::REPLACEMENT_CHARACTER, "").len()
    );
    // The system text: what moved or was dropped is gone, what is frozen may say something else, all else is there.
    let mut expected = came.to_owned();
    let mut words: Vec<&str> = Vec::new();
    let mut changes = report.changes.clone();
    changes.sort_by_key(|change| change.range.start);
    for change in changes.iter().rev() {
        match change.kind {
            ChangeKind::Tool
            | ChangeKind::Context
            | ChangeKind::Restored
            | ChangeKind::Number
            | ChangeKind::Score => {}
            ChangeKind::Moved => {
                words.insert(0, &came[change.range.clone()]);
                expected.replace_range(change.range.clone(), "");
            }
            ChangeKind::Dropped | ChangeKind::Frozen => {
                expected.replace_range(change.range.clone(), "");
            }
        }
    }
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let blocks = after["messages"][0]["content"].as_array();
    let is_blank = |block: &Value| block["text"].as_str().unwrap().trim().is_empty();
    assert!(
        blocks.is_none_or(|blocks| !blocks.is_empty() && !blocks.iter().any(is_blank)),
        "a provider refuses {sent}"
    );
    let squeezed = |content: &Value| -> String {
        let texts = match content {
            Value::Array(blocks) => blocks.iter().map(|block| &block["text"]).collect(),
            text => vec![text],
        };
        let words = |text: &&Value| text.as_str().unwrap().to_owned() + "\n";
        let texts: String = texts.iter().map(words).collect();
        texts.split_whitespace().collect()
    };
    let mut system = squeezed(&after["messages"][0]["content"]);
    let frozen = system.find("Today'sdateis");
    if let Some(at) = frozen.filter(|_| report.frozen > 0) {
        system.replace_range(at..at + "Today'sdateis2026-11-01.".len(), "");
    }
    assert_eq!(system, squeezed(&expected["messages"][0]["content"]));
    // Messages: those that were sent before stay; the newest holds what moved, once.
    let (before, after) = (
        before["messages"].as_array().unwrap(),
        after["messages"].as_array().unwrap(),
    );
    assert_eq!(before.len(), after.len());
    for (at, message) in known.iter().enumerate().skip(1) {
        assert_eq!(&after[at], message, "an earlier message stays");
    }
    let newest = (1..before.len())
        .rfind(|at| before[*at]["role"] == "user")
        .unwrap();
    for at in known.len().max(1)..before.len() {
        let text = after[at]["content"].as_str().unwrap();
        let own = before[at]["content"].as_str().unwrap();
        if at != newest {
            assert_eq!(text, own);
        } else if !own.contains("<doc") {
            let inserted = text.strip_suffix(own).expect("a message's own words stay");
            let moved: Value = serde_json::from_str(&format!("\"{}\"", words.join(r"\n"))).unwrap();
            let expected = moved.as_str().unwrap();
            assert_eq!(inserted.trim_end_matches('\n'), expected);
        } else {
            for word in &words {
                let word: Value = serde_json::from_str(&format!("\"{word}\"")).unwrap();
                assert_eq!(text.matches(word.as_str().unwrap()).count(), 1, "{text}");
            }
            assert_eq!(text.matches("<doc").count(), own.matches("<doc").count());
        }
    }
}

fn run(steps: &[Step], workers: usize) {
    let mut orderers: Vec<Orderer> = (0..workers).map(|_| orderer("apply", false)).collect();
    let (mut reporting, mut off) = (orderer("report", true), orderer("off", false));
    let mut chats: Vec<Chat> = Vec::new();
    let mut last: HashMap<usize, [u8; 2]> = HashMap::new();
    for (clock, [which, look, tools, ask, worker, form]) in steps.iter().copied().enumerate() {
        let at = match which % 4 {
            0 => chats.len(),
            _ => usize::from(which / 4) % (chats.len() + 1),
        };
        if at == chats.len() {
            chats.push(Chat {
                session: chats.len(),
                messages: Vec::new(),
                sent: Vec::new(),
            });
        }
        let chat = &mut chats[at];
        let words = [
            "hi",
            "Why?",
            "<doc id=\"a\">x</doc>\n<doc id=\"b\">y</doc>\nWhy?",
            "Read <doc>z</doc> now",
        ];
        let words = words[usize::from(ask) % 4].to_owned();
        let in_loop = ask & 16 != 0 && !chat.messages.is_empty();
        if !chat.messages.is_empty() {
            chat.messages.push(("assistant", format!("answer {clock}")));
        }
        let role = if in_loop { "tool" } else { "user" };
        chat.messages
            .push((role, if in_loop { "result".to_owned() } else { words }));
        // A chat's head keeps its shape; its values change.
        let shape = last.entry(at).or_insert([look, form]);
        let body = body(chat, clock, *shape, tools);
        let (as_off, _) = rewrite(&mut off, &body);
        let (as_reported, _) = rewrite(&mut reporting, &body);
        assert_eq!(as_off, as_reported, "a report changes no byte");
        let worker = usize::from(worker) % workers;
        let (sent, rewrite) = rewrite(&mut orderers[worker], &body);
        check(&body, &sent, &orderers[worker], &chat.sent);
        let sent: Value = serde_json::from_str(&sent).unwrap();
        let messages = sent["messages"].as_array().unwrap();
        if let Some(first) = chat.sent.first() {
            assert_eq!(&messages[0], first, "a chat's system text stays");
        }
        chat.sent = messages.clone();
        if let Some(rewrite) = rewrite {
            let told = PeerUpdate::decode(&rewrite.record.encode()).unwrap();
            for (other, orderer) in orderers.iter_mut().enumerate() {
                if other != worker {
                    orderer.learn(&told);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn one_worker_keeps_what_it_promises(steps in prop::collection::vec(any::<Step>(), 1..24)) {
        run(&steps, 1);
    }

    #[test]
    fn three_workers_keep_it_together(steps in prop::collection::vec(any::<Step>(), 1..24)) {
        run(&steps, 3);
    }
}
