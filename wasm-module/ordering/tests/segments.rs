//! A request as segments, in every dialect; and that the segments of a message tile it, whatever it holds.

use foreword_ordering::head::{Segment, SegmentKind, Segments};
use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Retrieved, Role, Tenant, parse, parse_with};
use proptest::prelude::*;
use serde_json::{Value, json};

fn segments(body: &str) -> Segments {
    let config = Config::default().with_placement(Placement::FREE);
    parse(body.as_bytes(), &config).unwrap().segments(&config)
}

/// The kind of each segment and what stands there.
fn told(body: &str) -> Vec<(&'static str, &str)> {
    let list = segments(body).list.into_iter();
    list.map(|segment| (segment.kind.name(), &body[segment.range]))
        .collect()
}

fn kinds(body: &str) -> Vec<SegmentKind> {
    segments(body)
        .list
        .iter()
        .map(|segment| segment.kind)
        .collect()
}

#[test]
fn openais_tools_come_first_then_messages_and_what_is_asked_comes_last() {
    let body = r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user","content":"Read <doc id=\"a\">x</doc>\n<doc id=\"b\">y</doc> Why?"}],"tools":[{"type":"function"},{"b":2}]}"#;
    assert_eq!(
        told(body),
        [
            ("tools", r#"{"type":"function"}"#),
            ("tools", r#"{"b":2}"#),
            ("system", r#"{"role":"system","content":"s"}"#),
            ("history", r#"{"role":"user","content":"u"}"#),
            ("history", r#"{"role":"assistant","content":"a"}"#),
            ("history", r#"{"role":"user","content":"Read "#),
            ("documents", r#"<doc id=\"a\">x</doc>"#),
            ("history", r"\n"),
            ("documents", r#"<doc id=\"b\">y</doc>"#),
            ("question", r#" Why?"}"#),
        ]
    );
    let list = segments(body).list;
    let roles: Vec<Role> = list
        .iter()
        .skip(2)
        .step_by(2)
        .map(|segment| segment.role)
        .collect();
    assert_eq!(
        roles,
        [Role::System, Role::Assistant, Role::User, Role::User]
    );
    assert_eq!(list[8].index, 1);
}

#[test]
fn anthropics_system_is_a_message_and_its_blocks_are_documents() {
    let body = r#"{"system":[{"type":"text","text":"s"}],"tools":[{"name":"t"}],"messages":[{"role":"user","content":[{"type":"document","title":"A","source":{}},{"type":"document","title":"B","source":{}},{"type":"text","text":"Why?"}]}]}"#;
    assert_eq!(
        told(body),
        [
            ("tools", r#"{"name":"t"}"#),
            ("system", r#"[{"type":"text","text":"s"}]"#),
            ("history", r#"{"role":"user","content":["#),
            (
                "documents",
                r#"{"type":"document","title":"A","source":{}}"#
            ),
            ("history", ","),
            (
                "documents",
                r#"{"type":"document","title":"B","source":{}}"#
            ),
            ("question", r#",{"type":"text","text":"Why?"}]}"#),
        ]
    );
    let plain = r#"{"system":"s","messages":[{"role":"user","content":"u"}]}"#;
    assert_eq!(
        told(plain),
        [
            ("system", r#""s""#),
            ("question", r#"{"role":"user","content":"u"}"#)
        ]
    );
}

#[test]
fn coheres_first_api_has_a_preamble_a_history_and_documents_in_their_array() {
    let body = r#"{"message":"Why?","preamble":"p","chat_history":[{"role":"CHATBOT","message":"hi"}],"documents":[{"id":"a","text":"x"},{"id":"b","text":"y"}],"tools":[{"name":"t","parameter_definitions":{}}]}"#;
    assert_eq!(
        told(body),
        [
            ("tools", r#"{"name":"t","parameter_definitions":{}}"#),
            ("documents", r#"{"id":"a","text":"x"}"#),
            ("documents", r#"{"id":"b","text":"y"}"#),
            ("system", r#""p""#),
            ("history", r#"{"role":"CHATBOT","message":"hi"}"#),
            ("question", r#""Why?""#),
        ]
    );
}

#[test]
fn responses_instructions_come_first_and_its_items_are_messages() {
    let body = r#"{"input":[{"role":"user","content":"u"},{"type":"reasoning","id":"r"},{"type":"function_call_output","call_id":"c","output":"<doc id=a>x</doc>"},{"role":"user","content":"Why?"}],"tools":[{"type":"function","name":"f"}],"instructions":"s"}"#;
    assert_eq!(
        told(body),
        [
            ("tools", r#"{"type":"function","name":"f"}"#),
            ("system", r#""s""#),
            ("history", r#"{"role":"user","content":"u"}"#),
            ("history", r#"{"type":"reasoning","id":"r"}"#),
            (
                "history",
                r#"{"type":"function_call_output","call_id":"c","output":""#
            ),
            ("documents", "<doc id=a>x</doc>"),
            ("history", r#""}"#),
            ("question", r#"{"role":"user","content":"Why?"}"#),
        ]
    );
    let list = segments(body).list;
    let roles: Vec<Role> = list.iter().skip(1).map(|segment| segment.role).collect();
    assert_eq!(
        roles,
        [
            Role::System,
            Role::User,
            Role::Assistant,
            Role::Tool,
            Role::Tool,
            Role::Tool,
            Role::User
        ]
    );
    let plain = r#"{"input":"Read <doc>x</doc> Why?","instructions":null}"#;
    assert_eq!(
        told(plain),
        [
            ("history", r#""Read "#),
            ("documents", "<doc>x</doc>"),
            ("question", r#" Why?""#)
        ]
    );
}

#[test]
fn tools_are_found_wherever_a_format_keeps_them() {
    let gemini = r#"{"contents":[{"parts":[{"text":"Why?"}]}],"tools":[{"functionDeclarations":[{"name":"b"},{"name":"a"}]}],"systemInstruction":{"parts":[{"text":"s"}]}}"#;
    assert_eq!(
        told(gemini),
        [
            ("tools", r#"{"name":"b"}"#),
            ("tools", r#"{"name":"a"}"#),
            ("system", r#"{"parts":[{"text":"s"}]}"#),
            ("question", r#"{"parts":[{"text":"Why?"}]}"#),
        ]
    );
    // Beside another tool they move together.
    let both = r#"{"contents":[{"parts":[]}],"tools":[{"functionDeclarations":[{"name":"b"}]},{"googleSearch":{}}]}"#;
    assert_eq!(
        told(both)[..2],
        [
            ("tools", r#"{"functionDeclarations":[{"name":"b"}]}"#),
            ("tools", r#"{"googleSearch":{}}"#),
        ]
    );
    let converse = r#"{"toolConfig":{"toolChoice":{"auto":{}},"tools":[{"toolSpec":{"name":"b"}}]},"messages":[{"role":"user","content":[{"text":"Why?"}]}],"system":[{"text":"s"}]}"#;
    assert_eq!(
        told(converse),
        [
            ("tools", r#"{"toolSpec":{"name":"b"}}"#),
            ("system", r#"[{"text":"s"}]"#),
            ("question", r#"{"role":"user","content":[{"text":"Why?"}]}"#),
        ]
    );
}

#[test]
fn an_arrays_documents_stand_where_they_will_be_written() {
    let body = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"Why?"}],"documents":["one",{"text":"two"}]}"#;
    assert_eq!(
        told(body),
        [
            ("system", r#"{"role":"system","content":"s"}"#),
            ("history", r#"{"role":"user","content":""#),
            ("documents", "one"),
            ("documents", "two"),
            ("question", r#"Why?"}"#),
        ]
    );
    let config = Config::default().with_placement(Placement::FREE);
    let chat = r#"{"messages":[{"role":"user","content":"Why?"}]}"#;
    let found = Retrieved {
        documents: r#"["one","two"]"#,
        around: [""; 2],
    };
    let parsed = parse_with(chat.as_bytes(), &found, &config).unwrap();
    let list = parsed.segments(&config).list;
    let at = chat.find("Why").unwrap();
    let ranges: Vec<_> = list.iter().map(|segment| segment.range.clone()).collect();
    assert_eq!(
        ranges,
        [
            chat.find('{').unwrap() + 13..at,
            at..at,
            at..at,
            at..chat.len() - 2
        ]
    );
}

#[test]
fn functions_are_tools_where_there_are_none() {
    let with = |field: &str| format!(r#"{{"messages":[],{field}}}"#);
    assert_eq!(
        told(&with(r#""functions":[{"name":"f"}]"#)),
        [("tools", r#"{"name":"f"}"#)]
    );
    assert_eq!(
        told(&with(
            r#""functions":[{"name":"f"}],"tools":[{"name":"t"}]"#
        )),
        [("tools", r#"{"name":"t"}"#)]
    );
    for none in [r#""tools":null"#, r#""tools":{}"#, r#""tools":[]"#] {
        assert_eq!(told(&with(none)), [], "{none}");
    }
}

#[test]
fn a_hint_that_the_body_holds_is_a_segment_of_its_own() {
    use SegmentKind::{Document, Hint, Message, Question};
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    let chat = |documents: &str| {
        format!(r#"{{"messages":[{{"role":"user","content":"{documents}\nWhy?"}}]}}"#)
    };
    let [a, b] = ["a", "b"].map(|id| format!(r#"<doc id=\"{id}\">…</doc>"#));
    orderer
        .rewrite(Tenant::default(), chat(&(a.clone() + &b)).as_bytes())
        .unwrap();
    let sent = orderer
        .rewrite(Tenant::default(), chat(&(b + &a)).as_bytes())
        .unwrap();
    let sent = String::from_utf8(sent.body.unwrap()).unwrap();
    assert_eq!(
        kinds(&sent),
        [Message, Document, Document, Message, Hint, Question]
    );
    let hint = told(&sent)[4].1;
    assert!(
        hint.starts_with("Best documents") && hint.ends_with("b>a."),
        "{hint}"
    );
}

#[test]
fn a_message_is_known_by_its_bytes_and_its_role_wherever_it_stands() {
    let hash = |messages: &str, at: usize| {
        segments(&format!(r#"{{"messages":[{messages}]}}"#)).list[at].hash
    };
    let one = r#"{"role":"user","content":"one"}"#;
    let two = r#"{"role":"user","content":"two"}"#;
    assert_eq!(hash(one, 0), hash(&[two, one].join(","), 1));
    assert_ne!(hash(one, 0), hash(two, 0));
    let calls = r#"{"role":"assistant","content":null,"tool_calls":[1]}"#;
    assert_ne!(hash(calls, 0), hash(&calls.replace('1', "2"), 0));
}

#[test]
fn a_history_that_ends_with_a_result_asks_nothing() {
    let body = r#"{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","content":"r"}]}"#;
    assert_eq!(kinds(body), [SegmentKind::Message; 3]);
    let inline = r#"{"messages":[{"role":"user","content":"u"},{"role":"system","content":"late"},{"role":"user","content":"v"}]}"#;
    let late = &segments(inline).list[1];
    assert_eq!((late.kind, late.role), (SegmentKind::Message, Role::System));
}

fn content() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        Just("plain".to_owned()),
        Just("line\nline \"quoted\" \\ é\n".to_owned()),
        Just("<doc id=\"a\">x</doc> <doc>y\n</doc>".to_owned()),
        Just("Read\n<passage id=1>x</passage> behind".to_owned()),
        Just(String::new()),
    ];
    let part = prop_oneof![
        words
            .clone()
            .prop_map(|text| json!({"type": "text", "text": text})),
        Just(json!({"type": "document", "title": "T", "source": {"data": "x"}})),
        Just(json!({"type": "tool_result", "content": "<doc>1</doc><doc>2</doc>"})),
        Just(json!({"type": "image"})),
    ];
    prop_oneof![
        words.prop_map(Value::from),
        prop::collection::vec(part, 0..4).prop_map(Value::from),
        Just(Value::Null),
    ]
}

fn body() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec![
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "x",
    ]);
    let messages = prop::collection::vec((role, content()), 0..6);
    let documents = prop::collection::vec(any::<bool>(), 0..3);
    let tools = prop::collection::vec(0_u8..9, 0..4);
    (messages, documents, tools, 0_u8..4, content()).prop_map(
        |(messages, documents, tools, dialect, system)| {
            // Cohere's answers count documents without an id, which then are left alone.
            let documents =
                documents
                    .into_iter()
                    .map(|is_object| match is_object || dialect == 3 {
                        true => json!({"id": "i", "title": "t", "text": "words \"\n"}),
                        false => json!("words"),
                    });
            let documents: Vec<Value> = documents.collect();
            let tools: Vec<Value> = (tools.into_iter())
                .map(|tool| json!({"type": "function", "function": {"name": format!("t{tool}")}}))
                .collect();
            let key = if dialect == 3 { "message" } else { "content" };
            let messages: Vec<Value> = (messages.into_iter())
                .map(|(role, content)| json!({"role": role, key: content}))
                .collect();
            match dialect {
                0 => json!({"messages": messages, "documents": documents, "tools": tools}),
                1 => json!({"messages": messages, "system": system, "tools": tools}),
                2 => json!({"messages": messages, "documents": null, "functions": tools}),
                _ => json!({"chat_history": messages, "message": "Why?", "preamble": "p",
                    "documents": documents, "tools": tools}),
            }
        },
    )
}

proptest! {
    #[test]
    fn segments_tile_what_is_rendered(value in body(), pretty in any::<bool>()) {
        let body = match pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        let config = Config::default().with_placement(Placement::FREE);
        let Ok(parsed) = parse(body.as_bytes(), &config) else {
            // Documents without a message to write them into.
            return Ok(());
        };
        let list = parsed.segments(&config).list;
        let is_of = |at: usize| move |segment: &&Segment| segment.message == Some(at as u32);
        // Tools: each of them, in their order, before all else.
        let tools = value.get("tools").or(value.get("functions")).unwrap();
        let tools = tools.as_array().unwrap();
        for (segment, tool) in list.iter().zip(tools) {
            prop_assert_eq!(segment.kind, SegmentKind::Tool);
            prop_assert_eq!(&serde_json::from_str::<Value>(&body[segment.range.clone()]).unwrap(), tool);
        }
        prop_assert_eq!(list.iter().filter(|s| s.kind == SegmentKind::Tool).count(), tools.len());
        // Messages: every byte of each, side by side, in their order.
        let field = |name: &str| value.get(name).filter(|value| !value.is_null()).cloned();
        let messages: Vec<Value> = if value.get("message").is_some() {
            let history = field("chat_history").unwrap().as_array().unwrap().clone();
            field("preamble").into_iter().chain(history).chain(field("message")).collect()
        } else {
            let messages = field("messages").unwrap().as_array().unwrap().clone();
            field("system").into_iter().chain(messages).collect()
        };
        let array = value.get("documents").and_then(Value::as_array).map_or(0, Vec::len);
        let mut in_array = 0;
        for (at, message) in messages.iter().enumerate() {
            let mut end = None;
            let mut raw = String::new();
            for segment in list.iter().filter(is_of(at)) {
                let written = segment.kind == SegmentKind::Document
                    && ["words \\\"\\n", "words"].contains(&&body[segment.range.clone()]);
                if written {
                    in_array += 1;
                    continue;
                }
                prop_assert!(end.is_none_or(|end| end == segment.range.start));
                prop_assert!(!segment.range.is_empty());
                end = Some(segment.range.end);
                raw += &body[segment.range.clone()];
            }
            prop_assert_eq!(&serde_json::from_str::<Value>(&raw).unwrap(), message);
        }
        let before = list.iter().filter(|s| s.kind == SegmentKind::Document && s.message.is_none());
        prop_assert_eq!(before.count() + in_array, array);
        let places: Vec<_> = list.iter().map(|segment| segment.message).collect();
        prop_assert!(places.is_sorted());
        // What opens the prompt is system text, and only the last message asks.
        let mut kinds = list.iter().map(|segment| segment.kind);
        prop_assert!(kinds.all(|kind| SegmentKind::ALL.contains(&kind)));
        for segment in &list {
            if segment.kind == SegmentKind::Question {
                prop_assert_eq!(segment.message, Some(messages.len() as u32 - 1));
            }
        }
    }
}
