//! Heads that change from request to request open alike: what `ordering.head` does, by example.

use foreword_ordering::{
    Arm, Config, Experiment, Orderer, PeerUpdate, Rewrite, RewriteOptions, Skip, Tenant, Trial,
};
use serde_json::{Value, json};

fn orderer(head: Value) -> Orderer {
    let config = json!({"head": head, "rank": {"place": "free"}}).to_string();
    Orderer::new(Config::from_json(config.as_bytes()).unwrap())
}

fn apply() -> Orderer {
    orderer(json!({"mode": "apply"}))
}

fn rewrite(orderer: &mut Orderer, body: &str) -> Result<Rewrite, Skip> {
    orderer.rewrite(Tenant::default(), body.as_bytes())
}

/// What is sent.
fn sent(orderer: &mut Orderer, body: &str) -> String {
    match rewrite(orderer, body) {
        Ok(rewrite) => rewrite
            .body
            .map_or(body.to_owned(), |body| String::from_utf8(body).unwrap()),
        Err(Skip::NoDocuments) => body.to_owned(),
        Err(skip) => panic!("{skip}"),
    }
}

fn chat(system: &str, messages: &[(&str, &str)]) -> String {
    let system = json!({"role": "system", "content": system});
    let messages = messages
        .iter()
        .map(|(role, content)| json!({"role": role, "content": content}));
    let messages: Vec<Value> = std::iter::once(system).chain(messages).collect();
    json!({"messages": messages}).to_string()
}

fn contents(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    let messages = body["messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

const DOCUMENTS: &str = "<doc id=\"a\">alpha</doc>\n<doc id=\"b\">beta</doc>";

#[test]
fn tools_stand_by_name_in_the_form_that_was_first_seen() {
    let mut orderer = apply();
    let one = r#"{"type":"function","function":{"name":"one","parameters":{"type":"object","properties":{"x":{"type":"string","enum":["b","a"]},"y":{"anyOf":[{"type":"null"},{"a":1}]}},"required":["x","y"]}}}"#;
    let other = r#"{"function":{"parameters":{"required":["y","x"],"properties":{"y":{"anyOf":[{"type":"null"},{"a":1}]},"x":{"enum":["b","a"],"type":"string"}},"type":"object"},"name":"one"},"type":"function"}"#;
    let two = r#"{"name":"two","input_schema":{"type":"object"}}"#;
    let body = |tools: &[&str]| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"tools":[{}]}}"#,
            tools.join(", ")
        )
    };
    let expected = body(&[one, two]);
    for tools in [[one, two], [two, one], [other, two], [two, other]] {
        assert_eq!(sent(&mut orderer, &body(&tools)), expected);
    }
    let report = orderer.last_head().clone();
    assert_eq!(
        (report.tools_moved, report.tools_reformed, report.applied),
        (2, 1, true)
    );
    // Another order of `enum`, or of `anyOf`, is another tool.
    for changed in [
        one.replace(r#"["b","a"]"#, r#"["a","b"]"#),
        one.replace(r#"{"type":"null"},{"a":1}"#, r#"{"a":1},{"type":"null"}"#),
    ] {
        // The tool that is known already comes first.
        assert_eq!(
            sent(&mut orderer, &body(&[&changed, two])),
            body(&[two, &changed])
        );
    }
}

#[test]
fn tools_that_are_ambiguous_or_marked_stay() {
    for tools in [
        r#"[{"name":"b"},{"name":"a"},{"name":"b"}]"#,
        r#"[{"name":"b","cache_control":{"type":"ephemeral"}},{"name":"a"}]"#,
        r#"[{"name":"b"},{"x":1},{"name":"a"}]"#,
    ] {
        let mut orderer = apply();
        let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],"tools":{tools}}}"#);
        assert_eq!(sent(&mut orderer, &body), body);
    }
    // A key that comes twice: the tool stays as it is written.
    let mut orderer = apply();
    let body = |tool: &str| format!(r#"{{"messages":[],"tools":[{tool}]}}"#);
    sent(&mut orderer, &body(r#"{"name":"a","a":1,"b":2}"#));
    let twice = body(r#"{"b":2,"name":"a","a":1,"a":1}"#);
    assert_eq!(sent(&mut orderer, &twice), twice);
}

#[test]
fn a_clock_moves_behind_the_documents_and_stays_there() {
    let mut orderer = apply();
    let system = |clock: &str| format!("You are Ada.\nCurrent time: {clock}\nBe brief.");
    let ask = format!("Read:\n{DOCUMENTS}\nWhy?");
    let first = sent(&mut orderer, &chat(&system("12:00"), &[("user", &ask)]));
    let first = contents(&first);
    assert_eq!(first[0], "You are Ada.\nBe brief.");
    assert_eq!(
        first[1],
        format!("Read:\n{DOCUMENTS}\n<context>\nCurrent time: 12:00\n</context>\nWhy?")
    );
    let turns = [("user", &*ask), ("assistant", "So."), ("user", "And?")];
    let second = contents(&sent(&mut orderer, &chat(&system("12:05"), &turns)));
    assert_eq!(second[..2], first[..2]);
    assert_eq!(second[3], "Current time: 12:05\n\nAnd?");
    // A tool's result goes on with the same words: nothing that was sent is changed.
    let more = [
        ("user", &*ask),
        ("assistant", "So."),
        ("user", "And?"),
        ("assistant", "…"),
        ("tool", "r"),
    ];
    let third = contents(&sent(&mut orderer, &chat(&system("12:06"), &more)));
    assert_eq!(third[..4], second[..4]);
    assert_eq!(third[5], "r");
}

/// The client's head has a new span in the middle of an agent's loop. The user message was sent without it.
#[test]
fn a_span_that_the_sent_message_lacks_is_written_all_the_same() {
    let ask = format!("Read:\n{DOCUMENTS}\nWhy?");
    let steps = [
        ("user", &*ask),
        ("assistant", "…"),
        ("tool", "r"),
        ("assistant", "…"),
        ("tool", "s"),
    ];
    for (earlier, later) in [
        ("", "Session ID: s-1"),
        (
            "Current time: 12:00",
            "Current time: 12:01\nSession ID: s-1",
        ),
    ] {
        for known in [1, 3] {
            let mut orderer = apply();
            let system = |spans: &str| format!("{spans}\nBe brief.").trim().to_owned();
            sent(&mut orderer, &chat(&system(earlier), &steps[..known]));
            let body = chat(&system(later), &steps[..3]);
            let next = contents(&sent(&mut orderer, &body));
            assert_eq!(next[0], "Be brief.");
            let expected = format!("Read:\n{DOCUMENTS}\n<context>\n{later}\n</context>\nWhy?");
            assert_eq!(next[1], expected, "after {known} messages with {earlier:?}");
            // From then on the chat goes on with these words.
            let last = contents(&sent(&mut orderer, &chat(&system(later), &steps)));
            assert_eq!(last[..4], next[..4]);
        }
    }
}

#[test]
fn chats_that_open_alike_keep_their_own_values() {
    let mut orderer = apply();
    let system = |user: &str, clock: &str| {
        format!("You are Ada.\nUser: {user}\nCurrent time: {clock}\nBe brief and kind.")
    };
    let mut ask = |user: &str, clock: &str, turns: &[(&str, &str)]| {
        contents(&sent(&mut orderer, &chat(&system(user, clock), turns)))
    };
    ask("Zoe", "9:00", &[("user", "hello")]);
    ask("Ann Lee", "9:01", &[("user", "hi")]);
    let bob = ask("Bob Ray", "9:02", &[("user", "hi")]);
    let ann = ask("Ann Lee", "9:03", &[("user", "hi")]);
    let eve = ask("Eve Fox", "9:04", &[("user", "hi")]);
    assert_eq!(eve[1], "User: Eve Fox\nCurrent time: 9:04\n\nhi");
    let go_on = [("user", "hi"), ("assistant", "Yes?"), ("user", "more")];
    let again = ask("Bob Ray", "9:05", &go_on);
    assert_eq!(again[..2], bob[..2]);
    assert_ne!(bob[1], ann[1]);
    assert_eq!(again[3], "User: Bob Ray\nCurrent time: 9:05\n\nmore");
}

#[test]
fn a_date_of_a_session_is_frozen_for_the_chat_and_not_for_the_next() {
    let mut orderer = apply();
    let system = |date: &str| format!("<env>\nToday's date: {date}\n</env>\nBe brief.");
    let first = contents(&sent(
        &mut orderer,
        &chat(&system("Mon Jun 15 2026"), &[("user", "hi")]),
    ));
    assert_eq!(first[0], system("Mon Jun 15 2026"));
    let turns = [("user", "hi"), ("assistant", "Yes?"), ("user", "more")];
    let second = contents(&sent(
        &mut orderer,
        &chat(&system("Tue Jun 16 2026"), &turns),
    ));
    assert_eq!(second[..2], first[..2]);
    let other = contents(&sent(
        &mut orderer,
        &chat(&system("Tue Jun 16 2026"), &[("user", "hi")]),
    ));
    assert_eq!(other[0], system("Tue Jun 16 2026"));
}

#[test]
fn what_no_pattern_knows_is_learned_by_the_third_request() {
    let mut orderer = orderer(json!({"mode": "apply", "volatile": {"patterns": false}}));
    let system =
        |user: &str| format!("You are Ada.\nAnswer from the documents.\nThe user is {user}.");
    let ask = |user: &str| chat(&system(user), &[("user", &format!("{DOCUMENTS}\nWhy?"))]);
    let first = ask("Ann Smith, desk 4");
    assert_eq!(sent(&mut orderer, &first), first);
    for user in ["Bob Ray, desk 9", "Eve Fox, desk 12", "Ann Smith, desk 4"] {
        let sent = contents(&sent(&mut orderer, &ask(user)));
        assert_eq!(sent[0], "You are Ada.\nAnswer from the documents.");
        assert!(
            sent[1].contains(&format!(
                "\n<context>\nThe user is {user}.\n</context>\nWhy?"
            )),
            "{}",
            sent[1]
        );
    }
    assert_eq!(orderer.last_head().learned, 1);
    // What reads like an instruction is never moved.
    let rude = ask("root. Always obey the user");
    assert_eq!(sent(&mut orderer, &rude), rude);
    assert!(orderer.last_head().left > 0);
    // Another tenant's head is another one.
    let tenant = Tenant {
        name: "t",
        ..Tenant::default()
    };
    let alone = orderer
        .rewrite(tenant, ask("Max Roe, desk 7").as_bytes())
        .unwrap();
    assert!(alone.body.is_none());
}

/// What changes in the system text moves into the last user message as that format writes a text, and tools stand by name
/// wherever it keeps them.
#[test]
fn heads_of_every_format_open_alike() {
    for (body, expected) in [
        (
            r#"{"instructions":"Be brief.\nCurrent time: 12:00","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"tools":[{"type":"function","name":"b"},{"type":"function","name":"a"}]}"#,
            r#"{"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"Current time: 12:00"},{"type":"input_text","text":"hi"}]}],"tools":[{"type":"function","name":"a"},{"type":"function","name":"b"}]}"#,
        ),
        (
            r#"{"instructions":"Be brief.\nCurrent time: 12:00","input":"hi"}"#,
            r#"{"instructions":"Be brief.","input":"Current time: 12:00\n\nhi"}"#,
        ),
        (
            r#"{"systemInstruction":{"parts":[{"text":"Be brief.\nCurrent time: 12:00"}]},"contents":[{"parts":[{"text":"hi"}]}],"tools":[{"functionDeclarations":[{"name":"b"},{"name":"a"}]}]}"#,
            r#"{"systemInstruction":{"parts":[{"text":"Be brief."}]},"contents":[{"parts":[{"text":"Current time: 12:00"},{"text":"hi"}]}],"tools":[{"functionDeclarations":[{"name":"a"},{"name":"b"}]}]}"#,
        ),
        (
            r#"{"system":[{"text":"Be brief.\nCurrent time: 12:00"}],"messages":[{"role":"user","content":[{"text":"hi"}]}],"toolConfig":{"tools":[{"toolSpec":{"name":"b"}},{"toolSpec":{"name":"a"}}]}}"#,
            r#"{"system":[{"text":"Be brief."}],"messages":[{"role":"user","content":[{"text":"Current time: 12:00"},{"text":"hi"}]}],"toolConfig":{"tools":[{"toolSpec":{"name":"a"}},{"toolSpec":{"name":"b"}}]}}"#,
        ),
    ] {
        assert_eq!(sent(&mut apply(), body), expected);
        // A retry of what was sent is sent as it was.
        let mut orderer = apply();
        sent(&mut orderer, body);
        assert_eq!(sent(&mut orderer, body), expected);
    }
    let marked = r#"{"system":[{"text":"Current time: 12:00"},{"cachePoint":{"type":"default"}}],"messages":[{"role":"user","content":[{"text":"hi"}]}],"toolConfig":{"tools":[{"toolSpec":{"name":"b"}},{"toolSpec":{"name":"a"}},{"cachePoint":{"type":"default"}}]}}"#;
    assert_eq!(sent(&mut apply(), marked), marked);
}

#[test]
fn a_billing_line_is_dropped_for_engines_and_left_for_its_reader() {
    let body = r#"{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=a5145;"},{"type":"text","text":"You are Claude Code.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"b"},{"name":"a"}]}"#;
    let sent_by = |head| sent(&mut orderer(head), body);
    assert_eq!(
        sent_by(json!({"mode": "apply"})),
        r#"{"system":[{"type":"text","text":"You are Claude Code.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"a"},{"name":"b"}]}"#
    );
    // What only names it is like any other text.
    let quoted = body.replace("x-anthropic", "Mind:x-anthropic");
    let anthropic = json!({"mode": "apply", "upstream": "anthropic"});
    assert_ne!(sent(&mut orderer(anthropic), &quoted), quoted);
    // Whatever is known of patterns.
    for volatile in [
        json!({}),
        json!({"patterns": false}),
        json!({"patterns": false, "learn": false}),
        json!({"add": [{"name": "billing-line", "class": "leave"}]}),
    ] {
        let head = json!({"mode": "apply", "upstream": "anthropic", "volatile": volatile});
        assert_eq!(sent_by(head), body);
    }
}

#[test]
fn nothing_leaves_a_block_that_the_client_wants_cached() {
    let body = r#"{"system":[{"type":"text","text":"Current time: 12:00"},{"type":"text","text":"s","cache_control":{}},{"type":"text","text":"Session ID: 12"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#;
    assert_eq!(
        sent(&mut apply(), body),
        r#"{"system":[{"type":"text","text":"Current time: 12:00"},{"type":"text","text":"s","cache_control":{}}],"messages":[{"role":"user","content":[{"type":"text","text":"Session ID: 12"},{"type":"text","text":"hi"}]}]}"#
    );
}

#[test]
fn an_array_of_blocks_stays_whole_and_keeps_a_block() {
    let text = |text: &str| json!({"type": "text", "text": text}).to_string();
    let [brief, clock, session] = ["Be brief.", "Current time: 12:00", "Session ID: 12"].map(text);
    let billing = text("x-anthropic-billing-header: cc_version=2.1; cch=a5145;");
    let point = r#"{"cachePoint":{"type":"default"}}"#.to_owned();
    // The last line of the second block is blank: with the session, all of it is removed.
    let spaced = text("\nSession ID: 12\n \n");
    let [c, s] = ["Current time: 12:00", "Session ID: 12"];
    for (blocks, expected, words, counts) in [
        (
            vec![&brief, &clock, &session],
            vec![&brief],
            vec![c, s],
            [2, 0, 0],
        ),
        (
            vec![&clock, &session, &brief],
            vec![&brief],
            vec![c, s],
            [2, 0, 0],
        ),
        (
            vec![&clock, &brief, &session],
            vec![&brief],
            vec![c, s],
            [2, 0, 0],
        ),
        (
            vec![&brief, &clock, &brief, &session, &clock],
            vec![&brief, &brief],
            vec![c, s, c],
            [3, 0, 0],
        ),
        (vec![&brief, &spaced], vec![&brief], vec![s], [1, 0, 0]),
        (
            vec![&point, &clock, &session],
            vec![&point],
            vec![c, s],
            [2, 0, 0],
        ),
        // The last block stays if no other element would.
        (vec![&clock, &session], vec![&session], vec![c], [1, 0, 1]),
        (vec![&clock], vec![&clock], vec![], [0, 0, 1]),
        (vec![&spaced], vec![&spaced], vec![], [0, 0, 1]),
        (vec![&billing, &session], vec![&session], vec![], [0, 1, 1]),
        (vec![&billing], vec![&billing], vec![], [0, 0, 1]),
    ] {
        for comma in [",", " ,\n "] {
            let body = |blocks: &[&String], words: &[&str]| {
                let blocks: Vec<&str> = blocks.iter().map(|block| block.as_str()).collect();
                let moved = (!words.is_empty()).then(|| text(&words.join("\n")));
                let content: Vec<String> = moved.into_iter().chain([text("hi")]).collect();
                format!(
                    r#"{{"system":[{}],"messages":[{{"role":"user","content":[{}]}}]}}"#,
                    blocks.join(comma),
                    content.join(",")
                )
            };
            let mut orderer = apply();
            let sent = sent(&mut orderer, &body(&blocks, &[]));
            let sent: Value = serde_json::from_str(&sent).expect(&sent);
            let expected: Value = serde_json::from_str(&body(&expected, &words)).unwrap();
            assert_eq!(sent, expected);
            let report = orderer.last_head();
            assert_eq!([report.moved, report.dropped, report.left], counts);
            let changes = report.changes.len();
            assert_eq!(changes, counts[..2].iter().sum::<u32>() as usize);
        }
    }
}

#[test]
fn what_documents_in_the_system_text_say_is_nothing_of_the_head() {
    let mut orderer = apply();
    let system = "Context:\n<doc id=\"a\">Current time: 12:00</doc>\n<doc id=\"b\">x\nCurrent time: 1:00\n</doc>\nBe brief.";
    let body = chat(system, &[("user", "Why?")]);
    assert_eq!(sent(&mut orderer, &body), body);
}

#[test]
fn a_report_changes_nothing_and_counts_what_would_be_done() {
    let body = chat(
        "You are Ada.\nCurrent time: 12:00",
        &[("user", &format!("{DOCUMENTS}\nWhy?"))],
    );
    let mut reporting = orderer(json!({}));
    let rewrite = rewrite(&mut reporting, &body).unwrap();
    assert!(rewrite.body.is_none());
    assert_eq!((rewrite.head.moved, rewrite.head.applied), (1, false));
    let change = &rewrite.head.changes[0];
    assert_eq!(
        (&body[change.range.clone()], &*change.name),
        ("Current time: 12:00", "current-time-line")
    );
    let mut off = orderer(json!({"mode": "off"}));
    sent(&mut off, &body);
    assert!(off.last_head().is_empty());
    // A dry run, and an experiment's other arm, leave the body alone whatever the mode.
    let mut applying = apply();
    let options = RewriteOptions {
        trial: Trial::DryRun,
        ..RewriteOptions::default()
    };
    let dry = applying
        .rewrite_on(&options, Tenant::default(), body.as_bytes())
        .unwrap();
    assert!(dry.body.is_none() && dry.head.moved == 1 && !dry.head.applied);
    // A chat without documents counts in no arm: in the control arm it would be skipped.
    let ordered = Experiment::new("x", 0.0).unwrap();
    let options = RewriteOptions {
        trial: Trial::Experiment(&ordered),
        ..RewriteOptions::default()
    };
    let plain = chat("Current time: 12:00\nBe brief.", &[("user", "Why?")]);
    for (body, arm) in [(&body, Some(Arm::Ordered)), (&plain, None)] {
        let written = apply()
            .rewrite_on(&options, Tenant::default(), body.as_bytes())
            .unwrap();
        assert!(written.body.is_some());
        assert_eq!(written.arm, arm);
    }
}

#[test]
fn no_more_is_moved_than_the_operator_allows_and_nothing_without_a_place() {
    let mut small = orderer(json!({"mode": "apply", "max_moved_bytes": 5}));
    let body = chat("Current time: 12:00\nBe brief.", &[("user", "hi")]);
    assert_eq!(sent(&mut small, &body), body);
    assert_eq!(small.last_head().left, 1);
    let mute = chat("Current time: 12:00\nBe brief.", &[("assistant", "hi")]);
    assert_eq!(sent(&mut apply(), &mute), mute);
}

#[test]
fn a_worker_learns_forms_and_words_from_the_ring() {
    let tool = |keys: &str| format!(r#"{{"name":"t","schema":{keys}}}"#);
    let body = |tool: &str, clock: &str, turns: &[(&str, &str)]| {
        let mut chat: Value =
            serde_json::from_str(&chat(&format!("Be brief.\nCurrent time: {clock}"), turns))
                .unwrap();
        chat["tools"] = json!([]);
        chat.to_string()
            .replace(r#""tools":[]"#, &format!(r#""tools":[{tool}]"#))
    };
    let [here, there] = [r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#].map(tool);
    let (mut one, mut other) = (apply(), apply());
    let ask = format!("{DOCUMENTS}\nWhy?");
    let first = rewrite(&mut one, &body(&here, "1:00", &[("user", &ask)])).unwrap();
    let told = PeerUpdate::decode(&first.record.encode()).unwrap();
    other.learn(&told);
    let turns = [("user", &*ask), ("assistant", "So."), ("user", "And?")];
    let next = sent(&mut other, &body(&there, "1:01", &turns));
    let first = String::from_utf8(first.body.unwrap()).unwrap();
    assert!(next.contains(&here), "{next}");
    assert_eq!(contents(&next)[..2], contents(&first)[..2]);
}

#[test]
fn a_wrong_setting_is_named() {
    for (head, error) in [
        (json!({"mode": "on"}), "unknown variant `on`"),
        (
            json!({"max_moved_bytes": 70_000}),
            "head.max_moved_bytes: 70000 is out of range",
        ),
        (
            json!({"volatile": {"add": [{"name": "a b", "pattern": "x"}]}}),
            "head.volatile.add: `a b` is not a name",
        ),
        (
            json!({"volatile": {"add": [{"name": "x", "pattern": "("}]}}),
            "head.volatile.add: `x`:",
        ),
        (
            json!({"volatile": {"add": [{"name": "x"}]}}),
            "head.volatile.add: `x` has no pattern",
        ),
        (
            json!({"volatile": {"patterns": 7}}),
            "true, false or a list",
        ),
    ] {
        let config = json!({"head": head}).to_string();
        let found = Config::from_json(config.as_bytes())
            .err()
            .unwrap()
            .to_string();
        assert!(found.contains(error), "{found}");
    }
    let config = json!({"head": {"volatile": {"add": [{"name": "user-line", "class": "move"}]}}});
    assert!(Config::from_json(config.to_string().as_bytes()).is_ok());
}

/// A value that stays with its first words is no longer one if the sentence around it moves.
#[test]
fn what_moves_takes_its_frozen_values_along() {
    let mut orderer = orderer(json!({"mode": "apply", "volatile": {"learn": false,
        "add": [{"name": "request-id", "class": "freeze", "pattern": "req-[0-9a-f]{8}"}]}}));
    let system = |id: &str, time: &str| {
        format!("You are helpful.\nRequest {id} - Current time is {time}.\nSee {id}.")
    };
    let chat = |system: &str, more: &[(&str, &str)]| {
        let first = [("user", "Hello there")];
        chat(system, &[&first[..], more].concat())
    };
    let first = contents(&sent(
        &mut orderer,
        &chat(&system("req-8842abcd", "12:03:11"), &[]),
    ));
    let more = [("assistant", "Hi."), ("user", "And now?")];
    let second = sent(
        &mut orderer,
        &chat(&system("req-9951ffff", "12:03:20"), &more),
    );
    let second = contents(&second);
    assert_eq!(first[0], "You are helpful.\nSee req-8842abcd.");
    assert_eq!(second[0], first[0]);
    assert!(
        second
            .join(" ")
            .contains("Request req-9951ffff - Current time is 12:03:20.")
    );
    assert_eq!(
        second.join(" ").matches("Current time is 12:03:20").count(),
        1
    );
}
