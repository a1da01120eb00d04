//! Chats of several turns, through the public API: earlier messages stay, repeated documents are referred to,
//! documents of an array stay pinned.

use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Report, Skip, Tenant};
use serde_json::{Value, json};

/// With pinning on, unless `config` says what is done with conversations.
fn orderer(mut config: Value) -> Orderer {
    if config.get("conversation").is_none() {
        config["conversation"] = json!({"pin": true});
    }
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

fn text(id: &str) -> String {
    format!("What there is to know about {id}, at a length that is worth a hint in its place.")
}

/// A question with tagged documents.
fn tagged(ids: &[&str], question: &str) -> Value {
    let documents: String = ids
        .iter()
        .map(|id| format!("<doc id=\"{id}\">{}</doc>\n", text(id)))
        .collect();
    json!({"role": "user", "content": documents + question})
}

fn question(words: &str) -> Value {
    json!({"role": "user", "content": words})
}

fn answer(words: &str) -> Value {
    json!({"role": "assistant", "content": words})
}

fn array(ids: &[&str]) -> Value {
    ids.iter()
        .map(|id| json!({"id": id, "text": text(id)}))
        .collect()
}

fn block(id: &str) -> String {
    format!("<document id=\"{id}\">\n{}\n</document>\n", text(id))
}

fn location(id: &str) -> String {
    format!("Please refer to [{id}] in the previous conversation.")
}

/// Contents of the messages as sent, and the report.
fn send_as(orderer: &mut Orderer, tenant: &str, body: &Value) -> (Vec<String>, Report) {
    let rewrite = orderer
        .rewrite(Tenant::named(tenant), body.to_string().as_bytes())
        .unwrap();
    let sent: Value = rewrite.body.map_or_else(
        || body.clone(),
        |body| serde_json::from_slice(&body).unwrap(),
    );
    let contents = sent["messages"].as_array().unwrap().iter();
    let contents = contents.map(|message| message["content"].as_str().unwrap().to_owned());
    (contents.collect(), rewrite.report)
}

fn send(orderer: &mut Orderer, body: &Value) -> (Vec<String>, Report) {
    send_as(orderer, "", body)
}

#[test]
fn nothing_refers_to_what_the_server_may_remove() {
    let chat = |more: &Value| {
        let first = tagged(&["a", "b"], "Why?");
        let again = tagged(&["b", "c"], "And?");
        let mut body = json!({"messages": [first, answer("So."), again]});
        let fields = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        body
    };
    let refers = |more: Value| {
        let mut orderer = orderer(json!({}));
        // A chat that had references before the client asked for cuts.
        send(&mut orderer, &chat(&json!({})));
        let (sent, report) = send(&mut orderer, &chat(&more));
        assert_eq!(sent[2].contains(&location("b")), report.deduplicated == 1);
        report.deduplicated == 1
    };
    for more in [
        json!({}),
        json!({"context_management": null, "truncate_prompt_tokens": null}),
        json!({"truncation": "disabled"}),
    ] {
        assert!(refers(more));
    }
    let edits = json!([{"type": "clear_tool_uses_20250919"}]);
    for more in [
        json!({"context_management": {"edits": edits}}),
        json!({"truncation": "auto"}),
        json!({"truncate_prompt_tokens": 4096}),
        json!({"prompt_truncation": "AUTO"}),
    ] {
        assert!(!refers(more));
    }
}

#[test]
fn an_earlier_turn_stays_as_it_was_sent_whatever_the_tree_has_learnt_since() {
    let mut orderer = orderer(json!({}));
    let first = tagged(&["a", "b", "c"], "Why?");
    let (sent, _) = send(&mut orderer, &json!({"messages": [first]}));
    // Another chat makes c, b the heavier path by far.
    for _ in 0..3 {
        let other = tagged(&["c", "b", "d", "e", "f"], "How?");
        send(&mut orderer, &json!({"messages": [other]}));
    }
    // A chat not known yet would follow it.
    let (unknown, _) = send(
        &mut orderer,
        &json!({"messages": [tagged(&["d", "f", "e", "b", "c"], "Why?")]}),
    );
    assert!(unknown[0].starts_with("<doc id=\"c\">"), "{}", unknown[0]);

    let (next, report) = send(
        &mut orderer,
        &json!({"messages": [first, answer("So."), tagged(&["g"], "And?")]}),
    );
    assert_eq!(next[0], sent[0]);
    assert_eq!((report.replayed, report.matched), (1, 3));
}

#[test]
fn the_order_hint_of_an_earlier_turn_stays_too() {
    let mut orderer = orderer(json!({}));
    send(
        &mut orderer,
        &json!({"messages": [tagged(&["b", "a"], "How?")]}),
    );
    let first = tagged(&["a", "b"], "Why?");
    let (sent, report) = send(&mut orderer, &json!({"messages": [first]}));
    assert!(
        report.hinted && sent[0].contains("first: a>b."),
        "{}",
        sent[0]
    );
    let (next, report) = send(
        &mut orderer,
        &json!({"messages": [first, answer("So."), question("And?")]}),
    );
    assert_eq!(next[0], sent[0]);
    assert!(report.hinted && report.replayed == 1);
}

#[test]
fn a_document_of_an_earlier_turn_is_referred_to() {
    let mut orderer = orderer(json!({}));
    let first = tagged(&["a", "b", "d"], "Why?");
    send(&mut orderer, &json!({"messages": [first]}));
    let second = tagged(&["a", "e", "b"], "And?");
    let (sent, report) = send(
        &mut orderer,
        &json!({"messages": [first, answer("So."), second]}),
    );
    // The paper's own example (section 6): {1, 2, 4}, then {1, 5, 2}.
    assert_eq!(
        sent[2],
        format!(
            "{}\n<doc id=\"e\">{}</doc>\n{}\nAnd?",
            location("a"),
            text("e"),
            location("b")
        )
    );
    assert_eq!(
        (report.documents, report.deduplicated, report.hinted),
        (6, 2, false)
    );
    // And once more: what was a hint then is one now; the first turn still holds the text.
    let third = tagged(&["e", "b"], "Sure?");
    let (sent2, report) = send(
        &mut orderer,
        &json!({"messages": [first, answer("So."), second, answer("Yes."), third]}),
    );
    assert_eq!(sent2[..3], sent[..3]);
    assert_eq!(
        sent2[4],
        format!("{}\n{}\nSure?", location("e"), location("b"))
    );
    assert_eq!((report.deduplicated, report.replayed), (4, 2));
}

#[test]
fn a_favoured_document_is_sent_again_where_that_is_configured() {
    let first = tagged(&["a", "b", "d"], "Why?");
    let body = json!({"messages": [first, answer("So."), tagged(&["a", "e", "b"], "And?")]});
    let replaced = |repeats: bool, rank: Value| {
        let config = json!({"conversation": {"repeat_favoured": repeats}, "rank": rank});
        let config = Config::from_json(config.to_string().as_bytes()).unwrap();
        let (sent, report) = send(&mut Orderer::new(config), &body);
        let replaced = ["a", "b"].map(|id| sent[2].contains(&location(id)));
        assert_eq!(replaced, ["a", "b"].map(|id| !sent[2].contains(&text(id))));
        assert_eq!(
            report.deduplicated,
            replaced.map(u32::from).iter().sum::<u32>()
        );
        replaced
    };
    assert_eq!(replaced(false, json!({})), [true, true]);
    assert_eq!(replaced(true, json!({})), [false, true]);
    assert_eq!(
        replaced(true, json!({"place": "ends", "documents": 3})),
        [false, false]
    );
    for nothing_is_favoured in [json!({"place": "free"}), json!({"unranked": ["tags"]})] {
        assert_eq!(replaced(true, nothing_is_favoured), [true, true]);
    }
}

#[test]
fn an_order_hint_names_the_documents_that_are_referred_to_as_well() {
    let mut orderer = orderer(json!({"hint": {"short": ""}}));
    let first = tagged(&["a"], "Why?");
    let turn = |ids: &[&str]| json!({"messages": [first, answer("So."), tagged(ids, "And?")]});
    send(&mut orderer, &turn(&["b", "a", "c"]));
    // A fork with the same documents in another order follows the path of the first one.
    let (sent, report) = send(&mut orderer, &turn(&["c", "a", "b"]));
    assert_eq!(
        sent[2],
        format!(
            "<doc id=\"b\">{}</doc>\n{}\n<doc id=\"c\">{}</doc>\nPlease read the context in the following priority \
             order: [c] > [a] > [b] and answer the question.\nAnd?",
            text("b"),
            location("a"),
            text("c")
        )
    );
    assert_eq!(
        (report.deduplicated, report.moved, report.hinted),
        (1, 2, true)
    );
}

#[test]
fn only_what_can_be_named_and_is_there_is_referred_to() {
    let refers = |first: Value, second: Value| {
        let body = json!({"messages": [first, answer("So."), second]});
        send(&mut orderer(json!({})), &body).1.deduplicated
    };
    let user = |content: String| question(&content);
    let long = text("x");
    let doc = |id: &str, text: &str| format!("<doc id=\"{id}\">{text}</doc>");
    let seen = user(doc("a", &long));
    assert_eq!(refers(seen.clone(), seen.clone()), 1);
    // Another text, another label, no label, the hint is longer.
    assert_eq!(refers(seen.clone(), user(doc("a", &format!("{long}!")))), 0);
    assert_eq!(refers(seen.clone(), user(doc("b", &long))), 0);
    let bare = user(format!("<doc>{long}</doc>"));
    assert_eq!(refers(bare.clone(), bare), 0);
    let short = user(doc("a", "x"));
    assert_eq!(refers(short.clone(), short), 0);
    // The label names two documents: both in the first turn, or one in the second.
    let other = text("y");
    let twice = user(doc("a", &long) + &doc("a", &other));
    assert_eq!(refers(twice.clone(), seen.clone()), 0);
    assert_eq!(refers(seen.clone(), twice), 0);
    // Messages of one turn are no conversation.
    let body = json!({"messages": [seen, seen]});
    assert_eq!(send(&mut orderer(json!({})), &body).1.deduplicated, 0);
}

#[test]
fn a_reference_goes_when_another_document_of_its_name_is_written_before_it() {
    let mut orderer = orderer(json!({"conversation": {"pin": false}}));
    let result = json!({"role": "tool", "content": tagged(&["d"], "Found.")["content"]});
    let messages = json!([tagged(&["d"], "Why?"), answer("So."), result]);
    let (sent, _) = send(&mut orderer, &json!({"messages": messages}));
    assert!(sent[2].contains(&location("d")), "{}", sent[2]);
    // The last user message stands before the tool's result.
    let other = json!([{"id": "d", "text": text("another d")}]);
    let (sent, report) = send(
        &mut orderer,
        &json!({"messages": messages, "documents": other}),
    );
    assert!(sent[0].contains(&text("another d")), "{}", sent[0]);
    assert!(sent[2].contains(&text("d")), "{}", sent[2]);
    assert_eq!(report.deduplicated, 0);
}

#[test]
fn tool_results_are_turns() {
    let mut orderer = orderer(json!({}));
    let tool = |id: &str, words: Value| json!({"role": "tool", "tool_call_id": id, "content": words["content"]});
    let call = answer("Searching.");
    let body = json!({"messages": [
        question("Why?"), call, tool("1", tagged(&["a", "b"], "")), call, tool("2", tagged(&["b", "c"], "")),
    ]});
    let (sent, report) = send(&mut orderer, &body);
    assert_eq!(report.deduplicated, 1);
    assert!(sent[4].starts_with(&location("b")), "{}", sent[4]);
}

/// A file of some length with lines of its own.
fn file(name: &str) -> String {
    let lines = (0..20).map(|line| format!("let {name}_name_{line:02} = \"a value\";\n"));
    let lines: String = lines.collect();
    format!("// The module about {name}.\n{lines}")
}

/// A call of a tool and its result.
fn step(id: usize, result: &str) -> [Value; 2] {
    [
        answer("Reading."),
        json!({"role": "tool", "tool_call_id": id.to_string(), "content": result}),
    ]
}

fn agents(results: &[&str]) -> Value {
    let steps = results
        .iter()
        .enumerate()
        .flat_map(|(id, result)| step(id, result));
    let messages: Vec<Value> = std::iter::once(question("Why?")).chain(steps).collect();
    json!({"messages": messages})
}

/// The contents of the tool's messages as sent, and the number of those that were replaced.
fn outputs(orderer: &mut Orderer, results: &[&str]) -> (Vec<String>, u32) {
    let (sent, report) = send(orderer, &agents(results));
    (
        sent.into_iter().skip(2).step_by(2).collect(),
        report.deduplicated,
    )
}

/// What is sent for a file that stands before.
fn refers_to(name: &str) -> String {
    format!(
        "Please refer to the lines from [The module about {name}] to [let {name}_name_19] of a tool result in the previous \
         conversation.\n"
    )
}

#[test]
fn a_tools_result_that_stands_again_is_referred_to_from_then_on() {
    let mut orderer = orderer(json!({"documents": {"outputs": true}}));
    let (a, b) = (file("a"), file("b"));
    let (sent, replaced) = outputs(&mut orderer, &[&a, &b, &a]);
    assert_eq!(
        (&*sent, replaced),
        (&[a.clone(), b.clone(), refers_to("a")][..], 1)
    );
    // Each step finds those before it as they were sent.
    let (longer, replaced) = outputs(&mut orderer, &[&a, &b, &a, "short", "short", &b, &a]);
    assert_eq!((&longer[..3], replaced), (&sent[..], 3));
    assert_eq!(
        longer[3..],
        [
            "short".into(),
            "short".into(),
            refers_to("b"),
            refers_to("a")
        ]
    );
}

#[test]
fn a_client_that_clears_an_old_result_gets_the_next_one_whole() {
    let mut orderer = orderer(json!({"documents": {"outputs": true}}));
    let a = file("a");
    let (sent, _) = outputs(&mut orderer, &[&a, &a]);
    assert_eq!(sent[1], refers_to("a"));
    let (sent, replaced) = outputs(&mut orderer, &["[cleared]", &a, &a]);
    assert_eq!(
        (&*sent, replaced),
        (&["[cleared]".into(), a.clone(), refers_to("a")][..], 1)
    );
}

#[test]
fn a_changed_file_is_sent_where_it_changed() {
    let mut orderer = orderer(json!({"documents": {"outputs": true}}));
    let (a, nameless) = (file("a"), "{}\n".repeat(400));
    let changed = format!("{a}// The end.\n").replace("The module", "A module");
    let (sent, replaced) = outputs(
        &mut orderer,
        &[&a, &changed, &nameless, &nameless, &changed],
    );
    let lines = refers_to("a").replace("The module about a", "let a_name_00");
    assert_eq!(
        sent[1],
        format!("// A module about a.\n{lines}// The end.\n")
    );
    assert_eq!(
        (&sent[2..4], replaced),
        (&[nameless.clone(), nameless][..], 2)
    );
    assert_eq!(sent[4], sent[1]);
}

#[test]
fn results_of_one_turn_and_those_of_users_stay() {
    let mut orderer = orderer(json!({"documents": {"outputs": true}}));
    let a = file("a");
    let [call, result] = step(0, &a);
    let body = json!({"messages": [question(&a), call, result, result, question(&a)]});
    let (sent, report) = send(&mut orderer, &body);
    assert_eq!(report.deduplicated, 0);
    assert_eq!(sent, [&a, "Reading.", &a, &a, &a]);
}

#[test]
fn a_tools_result_is_sent_whole_unless_asked_for() {
    for config in [
        json!({}),
        json!({"documents": {"outputs": true}, "conversation": {"deduplicate": false}}),
    ] {
        let a = file("a");
        let body = agents(&[&a, &a]);
        let sent = orderer(config).rewrite(Tenant::default(), body.to_string().as_bytes());
        assert!(!sent.is_ok_and(|rewrite| rewrite.body.is_some()));
    }
}

#[test]
fn every_apis_results_are_referred_to() {
    let a = file("a");
    let anthropic = |id: &str| {
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": a},
        ]})
    };
    let parts = |id: &str| {
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": a}]},
        ]})
    };
    let called = |id: &str| {
        json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": "read", "input": {}},
        ]})
    };
    let item = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": a});
    let calling = |id: &str| json!({"type": "function_call", "call_id": id, "name": "read", "arguments": "{}"});
    let gemini = |role: &str, part: Value| json!({"role": role, "parts": [part]});
    let response = || {
        gemini(
            "user",
            json!({"functionResponse": {"name": "read", "response": {"output": a}}}),
        )
    };
    let function = || {
        gemini(
            "model",
            json!({"functionCall": {"name": "read", "args": {}}}),
        )
    };
    for body in [
        json!({"messages": [question("Why?"), called("1"), anthropic("1"), called("2"), anthropic("2")]}),
        json!({"messages": [question("Why?"), called("1"), parts("1"), called("2"), parts("2")]}),
        json!({"input": [question("Why?"), calling("1"), item("1"), calling("2"), item("2")]}),
        json!({"contents": [gemini("user", json!({"text": "Why?"})), function(), response(), function(), response()]}),
    ] {
        let mut orderer = orderer(json!({"documents": {"outputs": true}}));
        let text = body.to_string();
        let rewrite = orderer.rewrite(Tenant::default(), text.as_bytes()).unwrap();
        let sent = String::from_utf8(rewrite.body.unwrap()).unwrap();
        let whole = serde_json::to_string(&a).unwrap();
        let whole = whole.trim_matches('"');
        let (before, behind) = text.rsplit_once(whole).unwrap();
        let words = refers_to("a").replace('\n', r"\n");
        assert_eq!(sent, [before, &words, behind].concat());
    }
}

#[test]
fn de_duplication_can_be_switched_off() {
    let mut orderer = orderer(json!({"conversation": {"deduplicate": false}}));
    let first = tagged(&["a"], "Why?");
    let body = json!({"messages": [first, answer("So."), first]});
    let (sent, report) = send(&mut orderer, &body);
    assert_eq!((sent[2] == sent[0], report.deduplicated), (true, 0));
}

#[test]
fn documents_of_an_array_stay_where_they_were_first_written() {
    let mut orderer = orderer(json!({}));
    let first = json!({"documents": array(&["a", "b", "d"]), "messages": [question("Why?")]});
    let (one, report) = send(&mut orderer, &first);
    assert_eq!(
        one[0],
        [block("a"), block("b"), block("d"), "\nWhy?".into()].concat()
    );
    assert_eq!(report.pinned, 0);

    let history = [question("Why?"), answer("So."), question("And?")];
    let second = json!({"documents": array(&["a", "e", "b"]), "messages": history});
    let (two, report) = send(&mut orderer, &second);
    assert_eq!(two[0], one[0]);
    assert_eq!(
        two[2],
        [
            location("a"),
            "\n".into(),
            block("e"),
            location("b"),
            "\n\nAnd?".into()
        ]
        .concat()
    );
    assert_eq!(
        (
            report.documents,
            report.pinned,
            report.deduplicated,
            report.replayed,
            report.matched
        ),
        (3, 3, 2, 1, 3)
    );

    // A turn that retrieves nothing still has its history.
    let history = [&history[..], &[answer("Yes."), question("Thanks.")]].concat();
    let (three, report) = send(&mut orderer, &json!({"messages": history}));
    assert_eq!(three[..3], two[..3]);
    assert_eq!(three[4], "Thanks.");
    assert_eq!((report.documents, report.pinned, report.matched), (0, 4, 4));
}

#[test]
fn documents_are_pinned_in_content_parts_too() {
    let mut orderer = orderer(json!({}));
    let first = json!({"role": "user", "content": [{"type": "text", "text": "Why?"}]});
    let body = json!({"documents": array(&["a"]), "messages": [first]});
    let sent = orderer
        .rewrite(Tenant::default(), body.to_string().as_bytes())
        .unwrap()
        .body
        .unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    let body = json!({"messages": [first, answer("So."), question("And?")]});
    let next = orderer
        .rewrite(Tenant::default(), body.to_string().as_bytes())
        .unwrap()
        .body
        .unwrap();
    let next: Value = serde_json::from_slice(&next).unwrap();
    assert_eq!(next["messages"][0], sent["messages"][0]);
}

#[test]
fn without_pinning_documents_leave_with_their_turn() {
    let mut orderer = orderer(json!({"conversation": {"pin": false}}));
    send(
        &mut orderer,
        &json!({"documents": array(&["a"]), "messages": [question("Why?")]}),
    );
    let history = [question("Why?"), answer("So."), question("And?")];
    let (sent, report) = send(
        &mut orderer,
        &json!({"documents": array(&["a"]), "messages": history}),
    );
    assert_eq!(sent[0], "Why?");
    assert_eq!(sent[2], block("a") + "\nAnd?");
    assert_eq!((report.pinned, report.deduplicated), (0, 0));
}

#[test]
fn pinned_documents_are_bounded_and_those_that_stand_stay() {
    // About 35 tokens a document.
    let mut orderer = orderer(json!({"conversation": {"pin": true, "max_pinned_tokens": 80}}));
    let mut messages = Vec::new();
    let mut pinned = Vec::new();
    for (turn, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        messages.push(question(&format!("Question {turn}?")));
        let (sent, report) = send(
            &mut orderer,
            &json!({"documents": array(&[id]), "messages": messages}),
        );
        assert_eq!(report.pinned, turn.min(2) as u32);
        assert!(sent[turn * 2].starts_with(&block(id)));
        pinned.push(sent[0].clone());
        messages.push(answer("So."));
    }
    pinned.dedup();
    assert_eq!(pinned.len(), 1, "the first turn never changes");
}

#[test]
fn an_agent_that_sends_its_documents_with_every_step_keeps_its_prompt() {
    let mut orderer = orderer(json!({}));
    let step = |messages: Value| json!({"documents": array(&["a", "b"]), "messages": messages});
    let (one, _) = send(&mut orderer, &step(json!([question("Why?")])));
    send(
        &mut orderer,
        &json!({"documents": array(&["b", "a", "c"]), "messages": [question("How?")]}),
    );
    let tool = json!({"role": "tool", "tool_call_id": "1", "content": "4"});
    let (two, report) = send(
        &mut orderer,
        &step(json!([question("Why?"), answer("2+2"), tool])),
    );
    assert_eq!(two[0], one[0]);
    assert_eq!(
        (report.documents, report.pinned, report.replayed),
        (2, 0, 1)
    );
    // Other documents for the same question are another chat.
    let other =
        json!({"documents": array(&["c"]), "messages": [question("Why?"), answer("2+2"), tool]});
    let (three, report) = send(&mut orderer, &other);
    assert_eq!(three[0], block("c") + "\nWhy?");
    assert_eq!((report.pinned, report.replayed), (0, 0));
}

#[test]
fn chats_that_open_alike_with_other_documents_get_none_of_each_other() {
    let open = |ids: &[&str]| json!({"documents": array(ids), "messages": [question("Hi")]});
    let next = json!({"messages": [question("Hi"), answer("Hello."), question("And?")]});
    let sees = |openings: &[Value]| {
        let mut orderer = orderer(json!({}));
        send(
            &mut orderer,
            &json!({"documents": array(&["z"]), "messages": [question("?")]}),
        );
        for opening in openings {
            let _ = orderer.rewrite(Tenant::default(), opening.to_string().as_bytes());
        }
        orderer
            .rewrite(Tenant::default(), next.to_string().as_bytes())
            .map(|sent| sent.report.pinned)
    };
    assert_eq!(sees(&[open(&["a"])]), Ok(1));
    assert_eq!(sees(&[open(&["a"]), open(&["b"])]), Err(Skip::NoDocuments));
    // Whichever began first, the one without documents gets none.
    let bare = json!({"messages": [question("Hi")]});
    assert_eq!(sees(&[open(&["a"]), bare.clone()]), Err(Skip::NoDocuments));
    assert_eq!(sees(&[bare, open(&["a"])]), Err(Skip::NoDocuments));
    // Even if it was first seen when it had gone on already.
    let later = json!({"messages": [question("Hi"), answer("Hey."), question("So?")]});
    assert_eq!(sees(&[later, open(&["a"])]), Err(Skip::NoDocuments));
}

#[test]
fn a_chat_seen_late_with_other_documents_is_no_less_a_chat() {
    let mut orderer = orderer(json!({}));
    let tool = |words: &str| json!({"role": "tool", "tool_call_id": "1", "content": words});
    let step = |rest: &[Value]| [&[question("Why?"), answer("2+2"), tool("4")], rest].concat();
    send(
        &mut orderer,
        &json!({"documents": array(&["a"]), "messages": [question("Why?")]}),
    );
    assert_eq!(
        send(&mut orderer, &json!({"messages": step(&[])})).1.pinned,
        1
    );
    let other = step(&[answer("3+3"), tool("6")]);
    send(
        &mut orderer,
        &json!({"documents": array(&["b"]), "messages": other}),
    );
    // Either of the two may have come to this.
    let next = json!({"messages": step(&[answer("5+5"), tool("10")])}).to_string();
    assert_eq!(
        orderer.rewrite(Tenant::default(), next.as_bytes()).err(),
        Some(Skip::NoDocuments)
    );
}

#[test]
fn who_is_asking_tells_chats_apart() {
    for field in ["user", "safety_identifier", "prompt_cache_key"] {
        let mut orderer = orderer(json!({}));
        let mut ask = |who: &str, body: Value| {
            let mut body = body;
            body[field] = who.into();
            send(&mut orderer, &body).0
        };
        for (who, id) in [("u1", "a"), ("u2", "b")] {
            ask(
                who,
                json!({"documents": array(&[id]), "messages": [question("Hi")]}),
            );
        }
        let next = json!({"messages": [question("Hi"), answer("Hello."), question("And?")]});
        assert_eq!(ask("u1", next.clone())[0], block("a") + "\nHi", "{field}");
        assert_eq!(ask("u2", next)[0], block("b") + "\nHi", "{field}");
    }
}

#[test]
fn an_edited_turn_starts_another_chat_from_there_on() {
    let mut orderer = orderer(json!({}));
    let first = json!({"documents": array(&["a"]), "messages": [question("Why?")]});
    let (one, _) = send(&mut orderer, &first);
    let history = |words: &str| vec![question("Why?"), answer("So."), question(words)];
    let with =
        |ids: &[&str], messages: Vec<Value>| json!({"documents": array(ids), "messages": messages});
    let (two, _) = send(&mut orderer, &with(&["b"], history("And?")));
    let (edited, _) = send(&mut orderer, &with(&["c"], history("But?")));
    assert_eq!(edited[0], one[0]);
    assert_eq!(edited[2], block("c") + "\nBut?");
    // Both go on.
    for (words, sent) in [("And?", &two), ("But?", &edited)] {
        let messages = [history(words), vec![answer("Yes."), question("Sure?")]].concat();
        let (next, _) = send(&mut orderer, &json!({"messages": messages}));
        assert_eq!(next[..3], sent[..3]);
    }
}

#[test]
fn tenants_and_models_remember_for_themselves() {
    let mut orderer = orderer(json!({}));
    let body = |model: &str, documents: Value, messages: Value| json!({"model": model, "documents": documents, "messages": messages});
    send_as(
        &mut orderer,
        "x",
        &body("m", array(&["a"]), json!([question("Why?")])),
    );
    let history = json!([question("Why?"), answer("So."), question("And?")]);
    for (tenant, model, pinned) in [("y", "m", 0), ("x", "n", 0), ("x", "m", 1)] {
        let (_, report) = send_as(
            &mut orderer,
            tenant,
            &body(model, array(&["b"]), history.clone()),
        );
        assert_eq!(report.pinned, pinned, "{tenant} {model}");
    }
}

#[test]
fn a_tenant_without_documents_takes_nobodys_place() {
    let mut orderer = orderer(json!({"tree": {"max_trees": 1}}));
    send_as(
        &mut orderer,
        "x",
        &json!({"messages": [tagged(&["a"], "Why?")]}),
    );
    let bare = json!({"messages": [question("Hi")]}).to_string();
    assert_eq!(
        orderer.rewrite(Tenant::named("y"), bare.as_bytes()).err(),
        Some(Skip::NoDocuments)
    );
    let (_, report) = send_as(
        &mut orderer,
        "x",
        &json!({"messages": [tagged(&["a"], "Why?")]}),
    );
    assert_eq!(report.matched, 1);
}

#[test]
fn without_memory_every_request_is_decided_anew() {
    let mut orderer = orderer(json!({"conversation": {"max_entries": 0}}));
    let first = tagged(&["a", "b"], "Why?");
    let body = json!({"messages": [first, answer("So."), tagged(&["b", "c"], "And?")]});
    for _ in 0..2 {
        let (_, report) = send(&mut orderer, &body);
        assert_eq!((report.replayed, report.deduplicated), (0, 1));
        assert_eq!(orderer.remembered().messages, 0);
    }
}

/// A document without an id is named by its place in the prompt, which is not its place in the client's list.
#[test]
fn a_document_is_named_by_the_place_at_which_it_was_sent() {
    let mut orderer = orderer(json!({"head": {"mode": "apply"}, "conversation": {"pin": true}}));
    let item = |name: &str| {
        let words = format!("{name} says many things. ").repeat(12);
        format!(
            "\n            <contextItem>\n              <![CDATA[{words}]]>\n            </contextItem>"
        )
    };
    let asked = |names: &[&str], words: &str| {
        let items: String = names.iter().map(|name| item(name)).collect();
        question(&format!("<context>{items}\n</context>\n\n{words}"))
    };
    let body = |messages: &[Value]| json!({"model": "m", "messages": messages});
    send_as(
        &mut orderer,
        "t",
        &body(&[asked(&["aa", "bb", "cc", "dd"], "First?")]),
    );
    let first = asked(&["dd", "cc", "bb", "aa"], "Second?");
    send_as(&mut orderer, "t", &body(std::slice::from_ref(&first)));
    let (sent, _) = send_as(
        &mut orderer,
        "t",
        &body(&[first, answer("Yes."), asked(&["dd", "ee"], "Third?")]),
    );
    let places: Vec<&str> = sent[0]
        .split("CDATA[")
        .skip(1)
        .map(|item| &item[..2])
        .collect();
    let place = places.iter().position(|name| *name == "dd").unwrap() + 1;
    assert_ne!(place, 1, "{places:?}");
    let named = format!("Please refer to [document {place} of question 1]");
    assert!(sent[2].contains(&named), "{}", sent[2]);
}

/// Anthropic refuses an empty block, and an empty array.
#[test]
fn a_system_block_of_nothing_but_contexts_moves_as_a_whole() {
    let config = json!({"head": {"mode": "apply"}, "conversation": {"pin": true}});
    let documents = "<documents>\n<document id=\"a\">A text.</document>\n<document id=\"b\">B text.</document>\n</documents>";
    let block = |text: &str| json!({"type": "text", "text": text});
    for (system, expected) in [
        (
            json!([block("Be brief."), block(documents)]),
            json!([block("Be brief.")]),
        ),
        (
            json!([block(documents), block("Be brief.")]),
            json!([block("Be brief.")]),
        ),
        (json!([block(documents)]), json!([block(documents)])),
    ] {
        let body = json!({"model": "m", "system": system, "messages": [question("Why?")]});
        let mut orderer = orderer(config.clone());
        let rewrite = orderer
            .rewrite(Tenant::named("t"), body.to_string().as_bytes())
            .unwrap();
        let sent: Value = rewrite
            .body
            .map_or(body, |sent| serde_json::from_slice(&sent).unwrap());
        assert_eq!(sent["system"], expected);
        let asked = sent["messages"][0]["content"].as_str().unwrap();
        assert_eq!(asked.contains("A text."), system != expected, "{asked}");
    }
}

/// Where only location hints were sent, a later hint would point to a hint.
#[test]
fn a_hint_refers_to_words_and_never_to_another_hint() {
    let config = json!({"head": {"mode": "apply"}, "conversation": {"pin": true}});
    let line = |name: &str| format!("{name} {}", "says many things about it, ".repeat(20));
    let dify = |names: &[&str], words: &str| {
        let lines: Vec<String> = names.iter().map(|name| line(name)).collect();
        let passages = lines.join("\n");
        question(&format!(
            "Use it, inside <context></context> XML tags.\n\n<context>\n{passages}\n</context>\n\n{words}"
        ))
    };
    let questions = [
        dify(&["alpha", "beta", "gamma"], "First?"),
        dify(&["beta", "alpha"], "Second?"),
        dify(&["beta", "alpha"], "Third?"),
    ];
    let mut orderer = orderer(config);
    let mut messages: Vec<Value> = Vec::new();
    let mut sent = Vec::new();
    for question in questions {
        messages.push(question);
        let body = json!({"model": "m", "messages": messages});
        (sent, _) = send_as(&mut orderer, "t", &body);
        messages.push(answer("Yes."));
    }
    assert!(sent[2].contains("of question 1]"), "{}", sent[2]);
    assert!(sent[4].contains("of question 1]"), "{}", sent[4]);
    assert!(!sent[4].contains("of question 2]"), "{}", sent[4]);
}
