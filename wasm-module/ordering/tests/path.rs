//! From a request's chosen path to the ends of its documents in the prompt that an engine renders.

use foreword_ordering::path::{Located, Locator, Run, SentPath};
use foreword_ordering::policy::Placement;
use foreword_ordering::tree::Scope;
use foreword_ordering::{Config, Orderer, Tenant};
use serde_json::{Value, json};

fn config(json: &Value) -> Config {
    Config::from_json(json.to_string().as_bytes())
        .unwrap()
        .with_placement(Placement::FREE)
}

/// As chat templates do: the array's texts first, then one message after another.
fn render(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let mut prompt = String::new();
    for document in body["documents"].as_array().into_iter().flatten() {
        prompt += &format!("[{}]", document["text"].as_str().unwrap());
    }
    for message in body["messages"].as_array().unwrap() {
        prompt += &format!("<|{}|>", message["role"].as_str().unwrap());
        match &message["content"] {
            Value::String(text) => prompt += text,
            parts => {
                for part in parts.as_array().unwrap() {
                    prompt += part["text"].as_str().unwrap();
                }
            }
        }
    }
    prompt
}

struct Sent {
    body: Vec<u8>,
    path: SentPath,
    prompt: String,
}

fn send(orderer: &mut Orderer, body: &Value) -> Sent {
    let body = body.to_string().into_bytes();
    let rewrite = orderer.rewrite(Tenant::default(), &body).unwrap();
    let body = rewrite.body.unwrap_or(body);
    Sent {
        prompt: render(&body),
        path: rewrite.path,
        body,
    }
}

fn locate(sent: &Sent) -> Vec<Located> {
    let locator = Locator::new(Config::default().with_placement(Placement::FREE));
    // Through the header, as it travels.
    let path = SentPath::from_header(&sent.path.to_header().unwrap()).unwrap();
    locator.locate(&path, &sent.body, &sent.prompt).unwrap()
}

/// What stands in the prompt up to the end of each document, and not further.
fn ends<'p>(sent: &'p Sent, located: &[Located]) -> Vec<&'p str> {
    let ends = located.iter().flat_map(|run| &run.documents);
    let mut from = located[0].start;
    ends.map(|(_, end)| &sent.prompt[std::mem::replace(&mut from, *end)..*end])
        .collect()
}

fn assert_whole(sent: &Sent, located: &[Located]) {
    let runs: Vec<Run> = located
        .iter()
        .map(|run| Run {
            scope: run.scope,
            documents: run
                .documents
                .iter()
                .map(|(document, _)| *document)
                .collect(),
        })
        .collect();
    assert_eq!(runs, sent.path.runs);
}

fn tagged(ids: &[&str]) -> String {
    let documents: Vec<_> = ids
        .iter()
        .map(|id| format!("<doc id=\"{id}\">\"Ünique\" text\n\tof {id}</doc>"))
        .collect();
    documents.join("\n")
}

fn array(ids: &[&str]) -> Value {
    ids.iter()
        .map(|id| json!({"id": id, "title": format!("Title {id}"), "text": format!("Line\n\n\"of\" {id} é")}))
        .collect()
}

#[test]
fn tagged_documents_end_with_their_closing_tags() {
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    let body = |ids: &[&str]| {
        json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": format!("{}\nWhy?", tagged(ids))},
        ]})
    };
    send(&mut orderer, &body(&["a", "b", "c"]));
    let sent = send(&mut orderer, &body(&["c", "b", "a"]));
    let located = locate(&sent);
    assert_whole(&sent, &located);
    for (piece, id) in ends(&sent, &located).iter().zip(["a", "b", "c"]) {
        let block = format!("<doc id=\"{id}\">\"Ünique\" text\n\tof {id}</doc>");
        assert_eq!(piece.trim_start(), block);
    }
}

#[test]
fn documents_of_an_array_are_found_where_the_gateway_wrote_them() {
    for content in [json!("Why?"), json!([{"type": "text", "text": "Why?"}])] {
        let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
        let body = |documents: Value| json!({"messages": [{"role": "user", "content": content}], "documents": documents});
        send(&mut orderer, &body(array(&["a", "b"])));
        let mut documents = array(&["b", "a"]);
        // No id, no title; and twice the same.
        documents
            .as_array_mut()
            .unwrap()
            .extend([json!("plain \\ text"), json!("plain \\ text")]);
        let sent = send(&mut orderer, &body(documents));
        let located = locate(&sent);
        assert_whole(&sent, &located);
        let words = [
            "of\" a é\n</document>",
            "of\" b é\n</document>",
            "plain \\ text\n</document>",
        ];
        for (piece, words) in ends(&sent, &located).iter().zip(words) {
            assert!(piece.ends_with(words), "{piece}");
        }
    }
}

#[test]
fn documents_that_the_template_renders_end_with_their_texts() {
    let mut orderer = Orderer::new(config(&json!({"documents": {"field": "reorder"}})));
    let body = |ids: &[&str]| {
        json!({
            "messages": [{"role": "user", "content": format!("{}Why?", tagged(&["z"]))}],
            "documents": array(ids),
        })
    };
    send(&mut orderer, &body(&["a", "b"]));
    let sent = send(&mut orderer, &body(&["b", "a"]));
    let located = locate(&sent);
    assert_whole(&sent, &located);
    for (piece, words) in
        ends(&sent, &located)
            .iter()
            .zip(["\"of\" a é", "\"of\" b é", "of z</doc>"])
    {
        assert!(piece.ends_with(words), "{piece}");
    }
}

#[test]
fn a_chat_has_a_run_for_every_turn_pinned_documents_included() {
    let mut orderer = Orderer::new(config(&json!({"conversation": {"pin": true}})));
    let user = |text: &str| json!({"role": "user", "content": text});
    let answer = json!({"role": "assistant", "content": "Because."});
    send(
        &mut orderer,
        &json!({"messages": [user("Why?")], "documents": array(&["a", "b"])}),
    );
    let sent = send(
        &mut orderer,
        &json!({"messages": [user("Why?"), answer, user("And?")], "documents": array(&["b", "c"])}),
    );
    assert_eq!(sent.path.runs.len(), 2, "{:?}", sent.path);
    let located = locate(&sent);
    assert_whole(&sent, &located);
    for (piece, id) in ends(&sent, &located).iter().zip(["a", "b", "c"]) {
        assert!(
            piece.ends_with(&format!("of\" {id} é\n</document>")),
            "{piece}"
        );
    }
}

#[test]
fn a_run_ends_at_the_first_document_that_is_not_there() {
    let mut orderer = Orderer::new(Config::default().with_placement(Placement::FREE));
    let body = json!({"messages": [{"role": "user", "content": tagged(&["a", "b", "c"])}]});
    let mut sent = send(&mut orderer, &body);
    sent.path.runs[0].documents[1].0 ^= 1;
    let scope = sent.path.runs[0].scope;
    sent.path.runs.insert(
        0,
        Run {
            scope: Scope(1),
            documents: vec![sent.path.runs[0].documents[1]],
        },
    );
    let located = locate(&sent);
    assert_eq!(located.len(), 1);
    assert_eq!((located[0].scope, located[0].documents.len()), (scope, 1));

    // A template that prints other text than it was given.
    sent.prompt = sent.prompt.replace("</doc>", "");
    assert_eq!(locate(&sent), []);
}
