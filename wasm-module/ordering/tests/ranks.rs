//! Documents whose blocks say of one request where they stood and how well they fitted: that is said behind them, and a
//! document is the same text for every question.

use foreword_ordering::head::ChangeKind;
use foreword_ordering::policy::Placement;
use foreword_ordering::{Config, Orderer, Skip, Tenant};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

fn orderer(config: Value) -> Orderer {
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

/// Nothing is put in order or left out.
fn plain(documents: Value) -> Orderer {
    orderer(json!({
        "policy": "retrieval",
        "conversation": {"deduplicate": false},
        "head": {"mode": "apply", "documents": documents}
    }))
}

fn send(orderer: &mut Orderer, body: &str) -> String {
    match orderer.rewrite(Tenant::default(), body.as_bytes()) {
        Ok(rewrite) => rewrite
            .body
            .map_or(body.to_owned(), |sent| String::from_utf8(sent).unwrap()),
        Err(Skip::NoDocuments) => body.to_owned(),
        Err(skip) => panic!("{skip}"),
    }
}

fn body(content: &str) -> String {
    json!({"messages": [{"role": "user", "content": content}]}).to_string()
}

fn content(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    let last = body["messages"].as_array().unwrap().last().unwrap();
    last["content"].as_str().unwrap().to_owned()
}

/// What is sent for that content.
fn sent(text: &str) -> String {
    content(&send(&mut plain(json!({})), &body(text)))
}

#[test]
fn numbers_by_place_become_keys_and_scores_stand_behind() {
    let text = "<source id=\"1\" score=\"0.91\">Rivers run.</source>\n<source id=\"2\" score=\"0.5\">Hills stand.</source>\nWhy?";
    let sent = sent(text);
    let keys: Vec<&str> = sent.split("id=\"").skip(1).map(|rest| &rest[..6]).collect();
    let [one, two] = keys[..] else {
        panic!("{sent}")
    };
    assert_eq!(
        sent,
        format!(
            "<source id=\"{one}\">Rivers run.</source>\n<source id=\"{two}\">Hills stand.</source>\nCite documents by these numbers: {one} as 1, {two} as 2.\nSearch results: {one} score=\"0.91\"; {two} score=\"0.5\".\nWhy?"
        )
    );
}

#[test]
fn every_form_of_a_score_is_known_and_each_document_keeps_its_name() {
    for (one, other) in [
        (
            "<doc id=\"a\" score=\"0.83\">Text.</doc>",
            "<doc id=\"a\" score=\"0.21\">Text.</doc>",
        ),
        (
            "<doc rank='1' id=\"a\">Text.</doc>",
            "<doc rank='12' id=\"a\">Text.</doc>",
        ),
        (
            "<doc id=\"a\">\nscore: 0.83\nText.</doc>",
            "<doc id=\"a\">\nscore: 1e-3\nText.</doc>",
        ),
        (
            "<doc id=\"a\">\nsource: a.pdf\n**Relevance score:** 83 %\n\nText.</doc>",
            "<doc id=\"a\">\nsource: a.pdf\n**Relevance score:** 7 %\n\nText.</doc>",
        ),
        (
            "<doc id=\"a\">\n<score>0.83</score>\n<content>Text.</content></doc>",
            "<doc id=\"a\">\n<score>0.2</score>\n<content>Text.</content></doc>",
        ),
        (
            "<doc id=\"a\">Text.\n(distance = 0.831)\n</doc>",
            "<doc id=\"a\">Text.\n(distance = 0.2)\n</doc>",
        ),
        (
            "<doc index=\"1\">Text.</doc>",
            "<doc index=\"2\">Text.</doc>",
        ),
    ] {
        let filler = "<doc index=\"1\">Filler.</doc>";
        let [one, other] =
            [(one, String::new()), (other, filler.to_owned())].map(|(block, before)| {
                let before = if block.contains("index=\"2\"") {
                    before
                } else {
                    String::new()
                };
                let sent = sent(&format!("{before}{block}\nWhy?"));
                let start = sent.rfind("<doc ").unwrap();
                let end = sent.rfind("</doc>").unwrap();
                sent[start..end].to_owned()
            });
        assert_eq!(one, other);
        assert!(one.contains("Text."), "{one}");
    }
}

#[test]
fn what_is_a_documents_own_stays() {
    for text in [
        // Names that are no places.
        "<doc id=\"17\">a</doc><doc id=\"4\">b</doc> Why?",
        "<doc id=\"a1\">a</doc><doc id=\"2\">b</doc> Why?",
        "<doc id=\"01\">a</doc> Why?",
        // No scores of a search.
        "<doc id=\"a\" price=\"0.5\">a</doc> Why?",
        "<doc id=\"a\" score=\"high\">a</doc> Why?",
        "<doc id=\"a\">The score: 3 to 1.</doc> Why?",
        "<doc id=\"a\">\nCredit score: 700\n\nText.</doc> Why?",
        "<doc id=\"a\">Text.\n\nscore: 3\nMore text, and more of it.</doc> Why?",
        "<doc id=\"a\">\nC:\\nscore: 5</doc> Why?",
        "<doc id=\"a\">Text of C:\\nscore: 5</doc> Why?",
        // Nothing to call it by.
        "<doc score=\"0.5\">a</doc> Why?",
    ] {
        assert_eq!(sent(text), text);
    }
}

#[test]
fn each_part_has_a_switch_and_neither_touches_results_of_tools() {
    let text = "<doc id=\"1\" score=\"0.5\">a</doc> Why?";
    let with = |documents: Value| content(&send(&mut plain(documents), &body(text)));
    assert_eq!(with(json!({"numbers": false, "scores": false})), text);
    let scores = with(json!({"numbers": false}));
    assert_eq!(
        scores,
        "<doc id=\"1\">a</doc>\nSearch results: 1 score=\"0.5\".\n Why?"
    );
    assert!(!with(json!({"scores": false})).contains("Search results"));
    let reported = orderer(json!({"policy": "retrieval"}));
    let mut reported = reported;
    assert_eq!(content(&send(&mut reported, &body(text))), text);
    assert_eq!(
        (reported.last_head().numbered, reported.last_head().scored),
        (1, 1)
    );
    let result = json!({"messages": [
        {"role": "user", "content": "Why?"},
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]});
    assert_eq!(
        send(&mut plain(json!({})), &result.to_string()),
        result.to_string()
    );
}

#[test]
fn a_document_is_reused_wherever_it_is_found() {
    let mut orderer = orderer(json!({"head": {"mode": "apply"}}));
    let text = |list: &[&str]| -> String {
        let documents = list.iter().zip(1..).map(|(name, at)| {
            format!(
                "<source id=\"{at}\" score=\"0.{}\">{}</source>\n",
                90 - at,
                format!("All about {name}. ").repeat(9)
            )
        });
        documents.collect::<String>() + "Why?"
    };
    send(&mut orderer, &body(&text(&["a", "b", "c"])));
    let rewrite = orderer.rewrite(
        Tenant::default(),
        body(&text(&["x", "c", "b", "a"])).as_bytes(),
    );
    assert_eq!(rewrite.unwrap().report.matched, 3);
}

/// A document: its words, whether it has a score, and where that stands.
type Found = (u8, u8);

fn block(form: u8, at: usize, (words, score): Found) -> String {
    let words = format!("Words {words} of it.\nAnd \"more\" é.");
    let figure = format!("0.{score}");
    match form {
        0 => format!(
            "<source id=\"{}\" name=\"n {}\">{words}</source>",
            at + 1,
            words.len()
        ),
        1 => format!("<doc id=\"{at}\" score=\"{figure}\">\n{words}</doc>"),
        2 => format!("[CONTEXT {at}]:\nscore: {figure}\n{words}\n[END CONTEXT {at}]"),
        3 => format!(
            "<document index=\"{}\">\n<rank>{score}</rank>\n{words}\n</document>",
            at + 1
        ),
        _ => format!(
            "<doc id=\"d-{}\" distance='{figure}'>{words}</doc>",
            words.len() + usize::from(score % 2)
        ),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What is sent is what came with the listed ranges changed, and words behind the documents that say each of them; a
    /// message is sent alike in every request; and `report` changes no byte.
    #[test]
    fn nothing_is_lost_or_altered_but_what_is_listed(
        chats in prop::collection::vec(prop::collection::vec((any::<u8>(), any::<u8>()), 0..5), 1..5),
        form in 0_u8..5,
    ) {
        let (mut applying, mut reporting) = (plain(json!({})), orderer(json!({"policy": "retrieval"})));
        let mut messages = Vec::new();
        let mut before: Vec<Value> = Vec::new();
        let mut blocks: HashMap<String, String> = HashMap::new();
        for (turn, found) in chats.iter().enumerate() {
            // A document that comes twice is sent once.
            let mut seen = HashSet::new();
            let found: Vec<Found> = found.iter().copied().filter(|(words, _)| seen.insert(*words)).collect();
            let documents: Vec<String> = found.iter().enumerate().map(|(at, found)| block(form, at, *found)).collect();
            let question = format!("Question {turn}?");
            messages.push(json!({"role": "user", "content": format!("{}\n{question}", documents.join("\n\n"))}));
            let came = json!({"messages": messages}).to_string();
            prop_assert_eq!(&send(&mut reporting, &came), &came);
            let went = send(&mut applying, &came);
            let report = applying.last_head().clone();
            let value: Value = serde_json::from_str(&went).unwrap();
            let all = value["messages"].as_array().unwrap();
            prop_assert_eq!(&all[..before.len()], &before[..]);
            before.clone_from(all);
            // The words behind the documents, taken out again.
            let mut left = went.clone();
            let mut said = String::new();
            for opening in ["\\nCite documents by these numbers: ", "\\nSearch results: "] {
                while let Some(start) = left.find(opening) {
                    let end = start + left[start..].find(r".\n").unwrap_or_else(|| left[start..].find(".\"").unwrap()) + 1;
                    said += &left[start..end];
                    left.replace_range(start..end, "");
                }
            }
            let mut changes = report.changes.clone();
            changes.sort_by_key(|change| change.range.start);
            let mut expected = came.clone();
            for change in changes.iter().rev() {
                let words = &came[change.range.clone()];
                match change.kind {
                    ChangeKind::Number => {
                        let is_said = said.contains(&format!(" as {words},")) || said.contains(&format!(" as {words}."));
                        prop_assert!(is_said, "{words} in {said}");
                        expected.replace_range(change.range.clone(), "#");
                    }
                    ChangeKind::Score => {
                        let words = words.trim_start_matches(r"\n").trim_end_matches(r"\n").trim();
                        prop_assert!(said.contains(words), "{words} in {said}");
                        expected.replace_range(change.range.clone(), "");
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            // Keys are numbers of six digits; no other words have any.
            let mut keyless = String::new();
            let mut digits = String::new();
            for c in left.chars().chain(['\0']) {
                if c.is_ascii_digit() {
                    digits.push(c);
                    continue;
                }
                keyless += if digits.len() == 6 { "#" } else { &digits };
                digits.clear();
                keyless.push(c);
            }
            // Where nothing parted the documents from what follows, a line end was added.
            prop_assert_eq!(keyless.trim_end_matches('\0'), expected);
            for (at, document) in found.iter().enumerate() {
                let words = format!("{:?}", (form, document.0, if form == 4 { document.1 % 2 } else { 0 }));
                let text = all.last().unwrap()["content"].as_str().unwrap();
                let opening = ["<source ", "<doc ", "[CONTEXT ", "<document ", "<doc "][usize::from(form)];
                let sent = text.split(opening).nth(at + 1).unwrap();
                let sent = sent.split("And \"more\" é.").next().unwrap().to_owned();
                let known = blocks.entry(words).or_insert_with(|| sent.clone());
                prop_assert_eq!(&*known, &sent, "one document is one text");
            }
        }
    }
}
