//! Bodies in, bodies out, through the public API.

use foreword_ordering::feed::TenantKey;
use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Report, Skip, Tenant};
use proptest::prelude::*;
use serde_json::{Value, json};

fn orderer(config: Value) -> Orderer {
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

/// The body as sent on, and the report.
fn rewrite(orderer: &mut Orderer, body: &str) -> (String, Report) {
    let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes()).unwrap();
    let out = rewrite
        .body
        .map_or_else(|| body.to_owned(), |body| String::from_utf8(body).unwrap());
    (out, rewrite.report)
}

fn skip(body: &[u8]) -> Skip {
    Orderer::new(Config::default().with_placement(Placement::FREE))
        .rewrite(Tenant::default(), body)
        .err()
        .unwrap()
}

fn tagged(ids: &[&str]) -> String {
    let documents: Vec<String> = ids
        .iter()
        .map(|id| format!("<doc id=\\\"{id}\\\">Text of {id}.</doc>"))
        .collect();
    format!(
        "{{ \"model\" : \"m\",\n \"messages\":[{{\"role\":\"system\",\"content\":\"Be \\u0062rief.\"}}, \
         {{\"content\":\"Context:\\n{}\\n\\nWhy?\",\"role\":\"user\"}}], \"seed\":1e3 }}\n",
        documents.join("\\n")
    )
}

fn with_array(ids: &[&str]) -> String {
    let documents: Vec<String> = ids
        .iter()
        .map(|id| {
            format!(
                "{{\"id\":\"{id}\",\"title\":\"Title {id}\",\"text\":\"Text \\u00e9 of {id}.\"}}"
            )
        })
        .collect();
    format!(
        "{{\"model\":\"m\",\"documents\":[{}],\"messages\":[{{\"role\":\"system\",\"content\":\"Be brief.\"}},\
         {{\"role\":\"user\",\"content\":\"Why?\"}}]}}",
        documents.join(", ")
    )
}

fn user_text(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["messages"][1]["content"].as_str().unwrap().to_owned()
}

#[test]
fn the_first_request_keeps_its_order_and_its_bytes() {
    let mut orderer = orderer(json!({}));
    let body = tagged(&["a", "b", "c"]);
    let (out, report) = rewrite(&mut orderer, &body);
    assert_eq!(out, body);
    assert_eq!(
        (
            report.documents,
            report.matched,
            report.moved,
            report.hinted
        ),
        (3, 0, 0, false)
    );
}

#[test]
fn tagged_documents_follow_the_cached_path_and_every_other_byte_stays() {
    let mut orderer = orderer(json!({}));
    rewrite(&mut orderer, &tagged(&["a", "b", "c"]));
    let (out, report) = rewrite(&mut orderer, &tagged(&["c", "d", "b", "a"]));
    let hint = "\\nBest documents first: c>d>b>a.";
    let expected = tagged(&["a", "b", "c", "d"])
        .replace("</doc>\\n\\nWhy?", &format!("</doc>{hint}\\n\\nWhy?"));
    assert_eq!(out, expected);
    assert_eq!(
        (
            report.documents,
            report.matched,
            report.moved,
            report.hinted
        ),
        (4, 3, 4, true)
    );
    assert!(report.matched_tokens * 4 == report.document_tokens * 3);
}

#[test]
fn a_hint_stands_behind_the_documents_wrapper() {
    let mut orderer = orderer(json!({}));
    let body = |order: &str| {
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"<documents>{order}</documents>\\nWhy?\"}}]}}"
        )
    };
    let (a, b) = ("<doc id='a'>A</doc>", "<doc id='b'>B</doc>");
    rewrite(&mut orderer, &body(&format!("{a}{b}")));
    let (out, _) = rewrite(&mut orderer, &body(&format!("{b}{a}")));
    assert!(out.contains("</doc></documents>\\nBest documents"), "{out}");
    assert!(out.contains("first: b>a.\\nWhy?"), "{out}");
}

/// A hint in the text of a string within JSON would need a second escape.
#[test]
fn documents_in_a_tools_json_are_ordered_without_a_hint() {
    let mut orderer = orderer(json!({}));
    let body = |ids: &[&str]| {
        let documents = ids
            .iter()
            .map(|id| format!("<doc id={id}>Text of {id}.</doc>"));
        let result = json!({"pages": documents.collect::<Vec<String>>()}).to_string();
        json!({"messages": [{"role": "tool", "content": result}]}).to_string()
    };
    rewrite(&mut orderer, &body(&["a", "b", "c"]));
    let (out, report) = rewrite(&mut orderer, &body(&["c", "b", "a", "b"]));
    assert_eq!(out, body(&["a", "b", "c", "b"]));
    assert_eq!((report.moved, report.dropped, report.hinted), (2, 0, false));
}

#[test]
fn labelled_documents_stay_behind_their_labels() {
    let mut orderer = orderer(json!({}));
    let body = |[a, b, c, d]: [&str; 4]| {
        let [a, b, c, d] = [a, b, c, d].map(|id| format!("<doc id={id}>Text of {id}.</doc>"));
        format!(
            r#"{{"messages":[{{"role":"user","content":"Ours:\n{a}{b}\nTheirs:\n{c}{d}\nWhy?"}}]}}"#
        )
    };
    rewrite(&mut orderer, &body(["a", "b", "c", "d"]));
    rewrite(&mut orderer, &body(["a", "c", "b", "d"]));
    let (out, report) = rewrite(&mut orderer, &body(["a", "b", "d", "c"]));
    assert_eq!((report.documents, report.matched, report.moved), (4, 4, 2));
    let hinted = r"\nBest documents first: d>c.\nWhy";
    let expected = body(["a", "b", "c", "d"]).replace(r"\nWhy", hinted);
    assert_eq!(out, expected);
    // A label of each document's own keeps all in their places.
    let single = body(["b", "c", "a", "d"]).replace("</doc><doc", r"</doc>\nHers:\n<doc");
    assert_eq!(rewrite(&mut orderer, &single).0, single);
}

#[test]
fn a_documents_array_is_written_before_the_question() {
    let mut orderer = orderer(json!({}));
    let (out, report) = rewrite(&mut orderer, &with_array(&["a", "b"]));
    let block =
        |id: &str| format!("<document id=\"{id}\">\nTitle {id}\n\nText é of {id}.\n</document>\n");
    assert_eq!(
        user_text(&out),
        format!("{}{}\nWhy?", block("a"), block("b"))
    );
    assert!(out.contains("\"documents\":null"));
    assert!(
        out.contains(r"Text \u00e9 of a."),
        "text is moved, never re-encoded"
    );
    assert_eq!((report.documents, report.moved), (2, 0));

    let (out, report) = rewrite(&mut orderer, &with_array(&["c", "b", "a"]));
    let hint = "Best documents first: c>b>a.\n";
    assert_eq!(
        user_text(&out),
        format!("{}{}{}{hint}\nWhy?", block("a"), block("b"), block("c"))
    );
    assert_eq!((report.matched, report.moved, report.hinted), (2, 2, true));
}

#[test]
fn a_documents_array_goes_into_content_parts_too() {
    let mut orderer = orderer(json!({}));
    for (content, expected) in [
        (
            json!([]),
            json!([{"type": "text", "text": "<document id=\"7\">\nx\n</document>\n\n"}]),
        ),
        (
            json!([{"type": "text", "text": "Why?"}]),
            json!([
                {"type": "text", "text": "<document id=\"7\">\nx\n</document>\n\n"},
                {"type": "text", "text": "Why?"}
            ]),
        ),
    ] {
        let body = json!({"documents": [{"id": 7, "content": "x"}], "messages": [{"role": "user", "content": content}]});
        let (out, _) = rewrite(&mut orderer, &body.to_string());
        let out: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(out["messages"][0]["content"], expected);
    }
}

#[test]
fn in_reorder_mode_the_elements_change_places() {
    let mut orderer = orderer(json!({"documents": {"field": "reorder"}}));
    rewrite(&mut orderer, &with_array(&["a", "b"]));
    let (out, report) = rewrite(&mut orderer, &with_array(&["c", "b", "a", "b"]));
    let out: Value = serde_json::from_str(&out).unwrap();
    let ids: Vec<_> = out["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b", "c", "b"]);
    assert_eq!((report.matched, report.dropped), (2, 0));
    assert!(
        out["messages"][1]["content"]
            .as_str()
            .unwrap()
            .starts_with("Best documents")
    );
}

#[test]
fn an_ignored_array_is_left_alone() {
    let mut orderer = orderer(json!({"documents": {"field": "ignore"}}));
    assert_eq!(
        orderer
            .rewrite(Tenant::default(), with_array(&["a"]).as_bytes())
            .err(),
        Some(Skip::NoDocuments)
    );
}

#[test]
fn documents_after_other_words_share_nothing() {
    let mut orderer = orderer(json!({}));
    rewrite(&mut orderer, &tagged(&["a", "b"]));
    let other = tagged(&["b", "a"]).replace("rief", "lunt");
    let (out, report) = rewrite(&mut orderer, &other);
    assert_eq!((out, report.matched), (other, 0));
}

#[test]
fn an_edited_document_is_another_document() {
    let mut orderer = orderer(json!({}));
    rewrite(&mut orderer, &tagged(&["a", "b"]));
    let (_, report) = rewrite(
        &mut orderer,
        &tagged(&["b", "a"]).replace("Text of a", "New text of a"),
    );
    assert_eq!(report.matched, 0);
}

#[test]
fn tenants_and_models_share_nothing() {
    let mut orderer = orderer(json!({}));
    rewrite(&mut orderer, &tagged(&["a", "b"]));
    let body = tagged(&["b", "a"]);
    let other_model = body.replace("\"m\"", "\"n\"");
    assert_eq!(
        orderer
            .rewrite(Tenant::named("x"), body.as_bytes())
            .unwrap()
            .report
            .matched,
        0
    );
    assert_eq!(
        orderer
            .rewrite(Tenant::default(), other_model.as_bytes())
            .unwrap()
            .report
            .matched,
        0
    );
    assert_eq!(
        orderer
            .rewrite(Tenant::default(), body.as_bytes())
            .unwrap()
            .report
            .matched,
        2
    );
}

/// One tenant's old and new salt, and salts that a model's name tries to look like.
#[test]
fn what_was_sent_under_one_salt_is_not_expected_under_another() {
    let mut orderer = orderer(json!({}));
    let key = TenantKey::of("salt");
    let body = |model: &str| tagged(&["a", "b"]).replacen("\"m\"", &json!(model).to_string(), 1);
    for (key, model) in [
        (key, "m".to_owned()),
        (TenantKey::default(), "m".to_owned()),
        (TenantKey::default(), format!("{key}m")),
        (TenantKey::default(), format!("{key};m")),
        (TenantKey::of("another"), "m".to_owned()),
    ] {
        let tenant = Tenant { name: "x", key };
        for matched in [0, 2] {
            let rewrite = orderer.rewrite(tenant, body(&model).as_bytes()).unwrap();
            assert_eq!(rewrite.report.matched, matched, "{key}, {model}");
        }
    }
}

#[test]
fn trees_are_bounded() {
    let mut orderer = orderer(json!({"tree": {"max_trees": 3, "max_nodes": 4}}));
    for tenant in 0..10 {
        orderer
            .rewrite(
                Tenant::named(&tenant.to_string()),
                tagged(&["a", "b", "c", "d", "e"]).as_bytes(),
            )
            .unwrap();
        assert!(orderer.trees() <= 3 && orderer.nodes() <= 12);
    }
    assert_eq!(
        orderer
            .rewrite(Tenant::named("9"), tagged(&["a", "b"]).as_bytes())
            .unwrap()
            .report
            .matched,
        2
    );
    orderer.clear();
    assert_eq!(orderer.nodes(), 0);
}

#[test]
fn repeats_are_dropped_and_announced() {
    let mut orderer = orderer(json!({}));
    let (out, report) = rewrite(&mut orderer, &tagged(&["a", "b", "a"]));
    assert_eq!(user_text(&out).matches("Text of a").count(), 1);
    assert_eq!(
        (report.documents, report.dropped, report.hinted),
        (3, 1, false)
    );
    // The same id with another text is another document: nothing is dropped, and a hint could not name it.
    rewrite(&mut orderer, &tagged(&["b", "c"]));
    let twice = tagged(&["c", "b", "c"]).replacen("Text of c", "Other text of c", 1);
    let (out, report) = rewrite(&mut orderer, &twice);
    assert_eq!(
        (
            report.documents,
            report.dropped,
            report.matched,
            report.hinted
        ),
        (3, 0, 2, false)
    );
    assert!(out.contains("Other text of c") && out.contains(">Text of c"));
}

#[test]
fn documents_without_ids_are_ordered_without_a_hint() {
    let mut orderer = orderer(json!({}));
    let body = |order: &str| json!({"messages": [{"role": "user", "content": order}]}).to_string();
    rewrite(&mut orderer, &body("<doc>A</doc><doc>B</doc>"));
    let (out, report) = rewrite(&mut orderer, &body("<doc>B</doc><doc>A</doc>"));
    assert_eq!(out, body("<doc>A</doc><doc>B</doc>"));
    assert_eq!((report.matched, report.hinted), (2, false));
}

#[test]
fn escaped_angle_brackets_are_tags_too() {
    // As Go's encoding/json writes them.
    let mut orderer = orderer(json!({}));
    let body = |order: [&str; 2]| {
        let documents = order
            .map(|id| format!(r#"\u003cdoc id=\"{id}\"\u003e{id}\ud83d\ude00\u003c/doc\u003e"#));
        format!(
            r#"{{"messages":[{{"role":"user","content":"{}\n"}}]}}"#,
            documents.concat()
        )
    };
    rewrite(&mut orderer, &body(["a", "b"]));
    let (out, report) = rewrite(&mut orderer, &body(["b", "a"]));
    assert_eq!(report.moved, 2);
    assert!(
        out.starts_with(body(["a", "b"]).strip_suffix(r#"\n"}]}"#).unwrap()),
        "{out}"
    );
}

#[test]
fn several_turns_are_ordered_each_for_itself() {
    let mut orderer = orderer(json!({}));
    let turn = |ids: [&str; 2]| json!({"role": "user", "content": format!("<doc id='{0}'>{0}</doc><doc id='{1}'>{1}</doc>?", ids[0], ids[1])});
    let answer = json!({"role": "assistant", "content": "Because."});
    let body = |messages: Value| json!({"messages": messages}).to_string();
    rewrite(&mut orderer, &body(json!([turn(["a", "b"])])));
    rewrite(
        &mut orderer,
        &body(json!([turn(["b", "a"]), answer, turn(["c", "d"])])),
    );
    let (out, report) = rewrite(
        &mut orderer,
        &body(json!([turn(["b", "a"]), answer, turn(["d", "c"])])),
    );
    assert_eq!((report.documents, report.matched), (4, 4));
    assert!(
        out.find("<doc id='a'>") < out.find("<doc id='b'>")
            && out.find("<doc id='c'>") < out.find("<doc id='d'>")
    );
}

#[test]
fn what_cannot_be_ordered_says_why() {
    let many: Vec<_> = (0..10_000)
        .map(|id| json!({"id": id, "text": "x"}))
        .collect();
    let user = json!([{"role": "user", "content": "?"}]);
    for (body, message) in [
        (r#"{"messages":[]}"#.into(), "the request has no documents"),
        ("{}".into(), "the request has no documents"),
        (
            r#"{"documents":[],"messages":null}"#.into(),
            "error at line 1, column 28",
        ),
        ("{\"messages\":\n [5]}".into(), "error at line 2, column 3"),
        ("[]".into(), "error at line 1, column 1"),
        ("".into(), "error at line 1, column 1"),
        (
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x}]}".into(),
            "error at line 1, column",
        ),
        (r#"{"model":5}"#.into(), "error at line 1, column 10"),
        (r#"{"documents":["a"]}"#.into(), "no user message"),
        (
            json!({"documents": [{"id": 1}], "messages": user}).to_string(),
            "documents[0] has no text",
        ),
        (
            json!({"documents": [{"text": {}}], "messages": user}).to_string(),
            "documents[0] has no text",
        ),
        (
            json!({"documents": ["x", 7], "messages": user}).to_string(),
            "documents[1] has no text",
        ),
        (
            json!({"documents": many, "messages": user}).to_string(),
            "10000 documents, more than the limit of 512",
        ),
        (
            json!({"model": "m".repeat(513)}).to_string(),
            "513 bytes, more than the limit of 512",
        ),
        (
            tagged(&vec!["a"; 600]),
            "600 documents, more than the limit of 512",
        ),
    ] as [(String, &str); 15]
    {
        let skip = skip(body.as_bytes());
        assert!(
            skip.to_string().contains(message),
            "{skip} should contain: {message}"
        );
        assert!(Skip::REASONS.contains(&skip.reason()));
    }
    assert_eq!(
        skip(b"{\"model\":\"\xff\"}"),
        Skip::InvalidUtf8 { offset: 10 }
    );
}

#[test]
fn deeply_nested_bodies_do_no_harm() {
    for nest in ["[", "{\"a\":"] {
        let body = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":{}",
            nest.repeat(1_000_000)
        );
        assert_eq!(skip(body.as_bytes()).reason(), "invalid-json");
    }
}

/// A message: its first words, then documents as what stands before them, id and text.
type Message = (String, Vec<(String, u8, String)>);

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let document = (
        "[a-z<>&\"\\\\ é😀\n]{0,12}",
        0_u8..6,
        "[a-z \"\\\\é😀\n]{0,20}",
    );
    prop::collection::vec(
        (
            "[a-z \"\\\\é\n<>/]{0,10}",
            prop::collection::vec(document, 0..5),
        ),
        1..4,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Out equals in: the same documents, less those announced as dropped; every other byte in its place.
    #[test]
    fn requests_keep_their_documents_and_their_other_bytes(requests in prop::collection::vec(messages(), 1..6)) {
        let mut orderer = orderer(json!({"hint": {"enabled": false}}));
        for messages in requests {
            let content = |(text, documents): &Message| {
                let documents: String = documents
                    .iter()
                    .map(|(between, id, text)| format!("{between}<doc id=\"{id}\">{text}</doc>"))
                    .collect();
                json!({"role": "user", "content": format!("{text}{documents}")})
            };
            let body = json!({"messages": messages.iter().map(content).collect::<Vec<_>>()}).to_string();
            let Ok(rewrite) = orderer.rewrite(Tenant::default(), body.as_bytes()) else { continue };
            let out = rewrite.body.map_or(body.clone(), |body| String::from_utf8(body).unwrap());
            let out: Value = serde_json::from_str(&out).unwrap();
            let body: Value = serde_json::from_str(&body).unwrap();
            let mut dropped = 0;
            for at in 0..messages.len() {
                let (before, mut documents_in) = split(body["messages"][at]["content"].as_str().unwrap());
                let (after, mut documents_out) = split(out["messages"][at]["content"].as_str().unwrap());
                documents_in.sort_unstable();
                documents_out.sort_unstable();
                // Repeats are dropped unless a label between them says which is which.
                dropped += documents_in.len() - documents_out.len();
                documents_in.dedup();
                documents_out.dedup();
                prop_assert_eq!(&documents_in, &documents_out);
                // A dropped repeat leaves its neighbours' text joined.
                prop_assert_eq!(before.concat(), after.concat());
            }
            prop_assert_eq!(dropped, rewrite.report.dropped as usize);
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let rewrite = Orderer::new(Config::default().with_placement(Placement::FREE)).rewrite(Tenant::default(), &body);
        prop_assert!(rewrite.is_err(), "these bytes are no chat: {rewrite:?}");
    }

    /// Valid requests with one byte changed, inserted or cut.
    #[test]
    fn damaged_bodies_do_no_harm(at in 0_usize..400, byte in any::<u8>(), cut in any::<bool>(), array in any::<bool>()) {
        let ids = ["a", "b", "c"];
        let mut body = if array { with_array(&ids) } else { tagged(&ids) }.into_bytes();
        let at = at % body.len();
        if cut { body.truncate(at) } else { body[at] = byte }
        let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
        orderer.rewrite(Tenant::default(), with_array(&["c", "b", "a"]).as_bytes()).unwrap();
        orderer.rewrite(Tenant::default(), tagged(&["c", "b", "a"]).as_bytes()).unwrap();
        if let Ok(rewrite) = orderer.rewrite(Tenant::default(), &body)
            && let Some(out) = rewrite.body
            && serde_json::from_slice::<Value>(&body).is_ok()
        {
            prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
        }
    }
}

/// What stands outside the documents of a text, and the documents.
fn split(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut outside, mut documents, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some(start) = rest.find("<doc id=\"") {
        let Some(end) = rest[start..]
            .find("</doc>")
            .map(|end| start + end + "</doc>".len())
        else {
            break;
        };
        outside.push(&rest[..start]);
        documents.push(&rest[start..end]);
        rest = &rest[end..];
    }
    outside.push(rest);
    (outside, documents)
}

#[test]
fn white_space_that_is_not_jsons_makes_a_body_unreadable() {
    let chat = r#"{"messages":[{"role":"user","content":"<doc>a</doc><doc>b</doc>"}]}"#;
    assert!(
        Orderer::new(Config::default().with_placement(Placement::FREE))
            .rewrite(Tenant::default(), format!(" \t\r\n{chat}\n ").as_bytes())
            .is_ok()
    );
    for body in [format!("{chat}\x0c"), format!("\x0c{chat}")] {
        assert!(matches!(skip(body.as_bytes()), Skip::InvalidJson { .. }));
        assert!(foreword_ordering::salted(body.as_bytes(), "s").is_err());
    }
}
