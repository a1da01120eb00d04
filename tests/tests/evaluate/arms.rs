//! Tests of the requests that are sent under each arm.

use super::{Evaluation, arm, asked, question, reader};
use foreword_tests::Received;
use serde_json::{Value, json};

/// Returns the requests with this arm's salt.
fn of<'r>(received: &'r [Received], name: &str) -> Vec<&'r Received> {
    let salt = |request: &Received| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        body["cache_salt"].as_str().unwrap().to_owned()
    };
    let ending = format!("-{name}");
    received
        .iter()
        .filter(|request| salt(request).ends_with(&ending))
        .collect()
}

/// Returns the ids of the documents in the last message, in its order.
fn ids(request: &Received) -> String {
    let asked = asked(request);
    let ids = asked.split("<document id=\"").skip(1);
    let ids: Vec<_> = ids.map(|rest| rest.split('"').next().unwrap()).collect();
    ids.join(" ")
}

#[test]
fn arms_order_by_themselves_alone_and_have_caches_of_their_own() {
    let upstream = reader();
    // `s0 t` opens the first prompt; the second one has the documents in another order, after its own.
    let lines = [question(0, 2), question(2, 0)];
    let evaluation = Evaluation::of(&lines).placing_freely();
    let arms = "retrieval,ordered,ordered+hint,random,reversed";
    let figures = evaluation.figures(&upstream, &["--arms", arms]);
    let received = upstream.received();
    let second = |name: &str| {
        let requests = of(&received, name);
        assert_eq!(requests.len(), 2, "{name}");
        (
            ids(requests[1]),
            asked(requests[1]).contains("first: d2>s0>t."),
        )
    };
    assert_eq!(second("retrieval"), ("d2 s0 t".into(), false));
    assert_eq!(second("reversed"), ("t s0 d2".into(), false));
    assert_eq!(second("ordered"), ("s0 t d2".into(), false));
    assert_eq!(second("ordered+hint"), ("s0 t d2".into(), true));
    assert_eq!(arm(&figures, "ordered")["moved"], 3);
    assert_eq!(arm(&figures, "retrieval")["moved"], 0);
    let mut random: Vec<_> = second("random").0.split(' ').map(String::from).collect();
    random.sort();
    assert_eq!(random, ["d2", "s0", "t"]);
}

#[test]
fn the_order_hint_stands_where_an_arm_puts_it_and_nothing_else_moves() {
    let upstream = reader();
    let lines = [question(0, 2), question(2, 0)];
    let evaluation = Evaluation::of(&lines).placing_freely();
    let mut arguments = vec!["--arms", "retrieval,ordered+hint", "--hint-positions"];
    arguments.extend(["--baseline", "ordered+hint"]);
    let figures = evaluation.figures(&upstream, &arguments);
    let received = upstream.received();
    let second = |name: &str| {
        let requests = of(&received, name);
        assert_eq!(requests.len(), 2, "{name}");
        // Nothing was moved in the first one, so there is no hint anywhere.
        assert!(!asked(requests[0]).contains("first:"), "{name}");
        asked(requests[1])
    };
    let hint = "Best documents first: d2>s0>t.";
    let usual = second("ordered+hint");
    let (documents, question) = usual.split_once(&format!("\n{hint}")).unwrap();
    assert!(documents.starts_with("<document id=\"s0\">"), "{usual}");
    assert_eq!(question, "\n\nWhat is the code of thing 2?");
    assert_eq!(
        second("ordered+hint:top"),
        format!("{hint}\n{documents}{question}")
    );
    assert_eq!(
        second("ordered+hint:end"),
        format!("{documents}{question}\n\n{hint}")
    );
    for name in ["ordered+hint", "ordered+hint:top", "ordered+hint:end"] {
        assert_eq!(arm(&figures, name)["hinted"], 1, "{name}");
        let compared = arm(&figures, name)["difference_from_baseline"].is_object();
        assert_eq!(compared, name.contains(':'), "{name}");
    }
    let received = upstream.received().len();
    arguments.pop();
    arguments.push("retrieval");
    let figures = evaluation.figures(&upstream, &arguments);
    assert!(arm(&figures, "ordered+hint")["difference_from_baseline"].is_object());
    assert_eq!(upstream.received().len(), received);
    assert_eq!(arm(&figures, "retrieval")["hinted"], 0);
}

#[test]
fn a_hint_that_cannot_stand_elsewhere_is_refused_before_anything_is_asked() {
    let upstream = reader();
    let evaluation = Evaluation::of(&[question(0, 2)]);
    let write = |text: &str| std::fs::write(evaluation.folder.path().join("o.json"), text).unwrap();
    let refused = |arguments: &[&str]| {
        let output = evaluation.run(&upstream, arguments);
        assert!(!output.status.success());
        super::error_of(&output)
    };
    let error = refused(&["--arms", "retrieval,ordered", "--hint-positions"]);
    assert!(
        error.contains("--hint-positions needs the arm ordered+hint or dedup+hint"),
        "{error}"
    );
    let error = refused(&["--arms", "retrieval", "--baseline", "ordered"]);
    assert!(
        error.contains("--baseline: it must be one of the arms retrieval, not"),
        "{error}"
    );
    let error = refused(&["--arms", "ordered+hint:before"]);
    assert!(
        error.contains("ordered+hint:top, ordered+hint:end"),
        "{error}"
    );
    write(r#"{"hint": {"enabled": false}}"#);
    let error = refused(&["--arms", "dedup+hint:end", "--ordering", "o.json"]);
    assert!(error.contains("the arm dedup+hint:end"), "{error}");
    assert!(error.contains("hint.enabled is false"), "{error}");
    write(r#"{"policy": "retrieval"}"#);
    let error = refused(&["--arms", "ordered+hint:top", "--ordering", "o.json"]);
    assert!(error.contains("policy is \"retrieval\""), "{error}");
    assert!(upstream.received().is_empty());
}

#[test]
fn chats_go_on_with_their_own_answers_and_say_documents_once_where_they_are_deduplicated() {
    let upstream = reader();
    let text = "A text that is longer than any hint in its place could ever be. ".repeat(3);
    let shared = json!({"id": "shared", "text": text});
    let turn = |id: &str| {
        json!({
            "question": format!("What of {id}?"),
            "documents": [{"id": id, "text": format!("This is {id}")}, shared],
            "answers": [id],
        })
    };
    let lines = [json!({"id": "chat", "turns": [turn("one"), turn("two")]})];
    let evaluation = Evaluation::of(&lines).placing_freely();
    // By default, all arms that differ for chats.
    let figures = evaluation.figures(&upstream, &[]);
    let names: Vec<_> = figures["arms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arm| arm["name"].clone())
        .collect();
    let default = [
        "retrieval",
        "ordered",
        "ordered+hint",
        "dedup",
        "dedup+hint",
        "random",
        "reversed",
    ];
    assert_eq!(names, default);
    let received = upstream.received();
    let second = |name: &str| {
        let requests = of(&received, name);
        let body: Value = serde_json::from_slice(&requests[1].body).unwrap();
        assert_eq!(
            body["messages"][2],
            json!({"role": "assistant", "content": "one"}),
            "{name}"
        );
        asked(requests[1])
    };
    assert_eq!(second("ordered").matches(&text).count(), 1);
    let bare = second("dedup");
    assert!(
        !bare.contains(&text) && bare.contains("[shared]") && !bare.contains("refer"),
        "{bare}"
    );
    let hinted = second("dedup+hint");
    assert!(!hinted.contains(&text), "{hinted}");
    assert!(
        hinted.contains("Please refer to [shared] in the previous conversation."),
        "{hinted}"
    );
    assert_eq!(arm(&figures, "dedup+hint")["deduplicated"], 1);
    assert_eq!(arm(&figures, "retrieval")["exact_match"]["value"], 100.0);
}

#[test]
fn a_head_that_changes_is_made_alike_in_the_arms_that_stabilise_it() {
    let upstream = reader();
    let lines: Vec<Value> = (0..6).map(|number| question(number, 1)).collect();
    let evaluation = Evaluation::of(&lines);
    let arms = "retrieval,stabilised,stabilised:tools,stabilised:words";
    evaluation.figures(&upstream, &["--changing-head", "--arms", arms]);
    let received = upstream.received();
    let distinct = |name: &str, part: &dyn Fn(&Value) -> String| {
        let bodies = of(&received, name);
        assert_eq!(bodies.len(), lines.len(), "{name}");
        let parts = bodies
            .iter()
            .map(|request| part(&serde_json::from_slice(&request.body).unwrap()));
        parts.collect::<std::collections::BTreeSet<String>>().len()
    };
    let tools = |body: &Value| body["tools"].to_string();
    let system = |body: &Value| body["messages"][0]["content"].to_string();
    let heads = [
        "retrieval",
        "stabilised",
        "stabilised:tools",
        "stabilised:words",
    ]
    .map(|name| (distinct(name, &tools) > 1, distinct(name, &system) > 1));
    assert_eq!(
        heads,
        [(true, true), (false, false), (false, true), (true, false)]
    );
    // The clock stands behind the documents, and each question has the same one in every arm.
    for (came, sent) in of(&received, "retrieval")
        .iter()
        .zip(of(&received, "stabilised:words"))
    {
        let body: Value = serde_json::from_slice(&came.body).unwrap();
        let system = body["messages"][0]["content"].as_str().unwrap();
        let moved = asked(sent);
        let question = asked(came).lines().next_back().unwrap().to_owned();
        assert!(moved.ends_with(&question), "{moved}");
        for line in system.lines().take(2) {
            let is_theirs = of(&received, "stabilised:words")
                .iter()
                .any(|sent| asked(sent).contains(line));
            assert!(is_theirs, "{line}");
        }
    }
}

#[test]
fn the_key_the_salt_and_other_members_are_sent_as_told() {
    let upstream = reader();
    let evaluation = Evaluation::of(&[question(1, 0)]);
    let arguments = [
        "--arms",
        "retrieval",
        "--no-cache-salt",
        "--api-key-env",
        "SOME_KEY",
        "--system",
        "Say it.",
        "--max-tokens",
        "7",
        "--extra",
        r#"{"chat_template_kwargs": {"enable_thinking": false}}"#,
    ];
    let output = evaluation
        .command(upstream.address(), &arguments)
        .env("SOME_KEY", "secret")
        .output()
        .unwrap();
    assert!(output.status.success());
    let request = upstream.last().unwrap();
    assert_eq!(request.header("authorization"), Some("Bearer secret"));
    assert!(request.line.starts_with("POST /v1/chat/completions "));
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert!(body.get("cache_salt").is_none());
    assert_eq!(
        body["messages"][0],
        json!({"role": "system", "content": "Say it."})
    );
    assert_eq!(
        body["chat_template_kwargs"],
        json!({"enable_thinking": false})
    );
    assert_eq!(
        (&body["max_tokens"], &body["temperature"]),
        (&json!(7), &json!(0))
    );
    let kept = std::fs::read_to_string(evaluation.path("answers.jsonl")).unwrap();
    assert!(!kept.contains("secret"));
}

#[test]
fn documents_are_sent_as_the_template_has_them_and_arms_reorder_them_there() {
    for (template, mark) in [
        ("numbered", "[3] "),
        ("open-webui", "<source id=\"3\" name=\""),
        ("llamaindex", "\nfile_name: "),
        ("cohere", "\"documents\":[{\"id\":"),
    ] {
        let upstream = reader();
        let evaluation = Evaluation::of(&[question(0, 2), question(2, 0)]);
        let arguments = ["--arms", "retrieval,random", "--template", template];
        let figures = evaluation.figures(&upstream, &arguments);
        let received = upstream.received();
        let bodies = of(&received, "random");
        let text = |request: &Received| {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            format!("{}{}", asked(request), body)
                .replace("\\n", "\n")
                .replace("\\\"", "\"")
        };
        assert!(
            text(bodies[0]).contains(mark),
            "{template}: {}",
            text(bodies[0])
        );
        assert_eq!(arm(&figures, "retrieval")["moved"], 0, "{template}");
        assert_eq!(arm(&figures, "random")["documents"], 6, "{template}");
        assert!(
            arm(&figures, "random")["moved"].as_u64() > Some(0),
            "{template}"
        );
    }
}
