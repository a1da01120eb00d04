//! Counts the cost of reading bodies that are made to be expensive.

#[path = "../../../tests/hostile/mod.rs"]
mod shapes;

use super::super::{parse, question, salted};
use crate::config::Config;
use crate::document::Fingerprint;
use crate::path::{Locator, Run, SentPath};
use crate::tree::Scope;
use crate::work::{Work, counted};
use proptest::prelude::*;

/// Returns a configuration that looks for documents in every format.
fn all() -> Config {
    let config =
        br#"{"documents": {"numbered": true, "rules": true, "headings": true, "outputs": true}}"#;
    Config::from_json(config).unwrap()
}

/// Returns the work that each reader of a body takes for `body`, with the reader's name.
fn costs(body: &str, config: &Config) -> [(&'static str, Work); 4] {
    let (parsed, reading) = counted(|| parse(body.as_bytes(), config));
    let asking = parsed.map_or(Work::default(), |parsed| {
        counted(|| (parsed.place_of_retrieval(), question(&parsed).is_ok())).1
    });
    let path = SentPath {
        runs: (0..100)
            .map(|scope| Run {
                scope: Scope(scope),
                documents: vec![Fingerprint::of(&[body.as_bytes()]), Fingerprint(scope)],
            })
            .collect(),
    };
    let locator = Locator::new(config.clone());
    [
        ("reading", reading),
        ("the question", asking),
        ("a salt", counted(|| salted(body.as_bytes(), "s")).1),
        (
            "locating",
            counted(|| locator.locate(&path, body.as_bytes(), "")).1,
        ),
    ]
}

fn assert_linear(name: &str, body: &str) {
    for config in [Config::default(), all()] {
        for (what, work) in costs(body, &config) {
            let bytes = body.len();
            let looks = work.looked as f64 / bytes as f64;
            assert_eq!(
                work.within(bytes),
                Ok(()),
                "{what}: {name}, {bytes} bytes, {looks} looks a byte"
            );
        }
    }
}

#[test]
fn no_hostile_body_costs_more_than_a_few_looks_a_byte() {
    for bytes in [200, 20_000] {
        for (name, body) in shapes::bodies(bytes) {
            assert_linear(&name, &body);
        }
    }
}

#[test]
fn what_a_function_of_geminis_said_is_passed_over_no_more_often_than_it_must() {
    for text in [r"---\n", r"***\n\n"] {
        for times in [30, 58, 1_000] {
            let text = text.repeat(times);
            assert_linear(
                "rules",
                &format!(
                    r#"{{"contents":[{{"parts":[{{"functionResponse":{{"response":{{"output":"{text}"}}}}}}]}}]}}"#
                ),
            );
        }
    }
}

#[test]
fn the_count_counts() {
    let (_, work) = counted(|| {
        parse(
            br#"{"messages":[{"content":"<doc>a</doc>"}]}"#,
            &Config::default(),
        )
    });
    assert!(work.looked >= 41 && work.hashed >= 13, "{work:?}");
    let bytes = 100;
    let looked = crate::work::MAX_LOOKS * bytes as u64 + 65;
    let work = Work { looked, hashed: 0 };
    assert_eq!(work.within(bytes), Err(work));
}

#[test]
fn a_path_that_names_what_the_prompt_lacks_is_given_up() {
    let config = Config::default();
    let documents: Vec<String> = (0..100)
        .map(|id| format!("<doc id={id}>some words</doc>"))
        .collect();
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#,
        documents.concat()
    );
    let runs = documents.iter().map(|document| Run {
        scope: Scope(1),
        documents: vec![Fingerprint::of(&[document.as_bytes()])],
    });
    let path = SentPath {
        runs: runs.collect(),
    };
    let prompt = "words ".repeat(10_000);
    let locator = Locator::new(config);
    let (located, work) = counted(|| locator.locate(&path, body.as_bytes(), &prompt));
    assert_eq!(located.unwrap(), []);
    assert!(work.looked > prompt.len() as u64, "{work:?}");
    assert_eq!(work.within(body.len() + prompt.len()), Ok(()));
}

/// Generates texts from pieces of every syntax that the parser knows, nested in each other and repeated.
fn texts() -> impl Strategy<Value = String> {
    let pieces = shapes::TEXTS.iter().flat_map(|(_, pieces)| *pieces);
    let pieces: Vec<&str> = pieces.filter(|piece| !piece.is_empty()).collect();
    let part = (
        prop::collection::vec(prop::sample::select(pieces), 1..5),
        1_usize..40,
    );
    let parts = prop::collection::vec(part, 1..5);
    parts.prop_map(|parts| {
        let parts = parts
            .iter()
            .map(|(pieces, times)| pieces.concat().repeat(*times));
        parts.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_costs_more_than_a_few_looks_a_byte(text in texts(), shape in 0..9) {
        let text = text.as_str();
        let body = match shape {
            0 => format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#),
            1 => format!(r#"{{"messages":[{{"role":"tool","content":"{text}"}}]}}"#),
            2 => format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","content":[{{"type":"text","text":"{text}"}}]}}]}}]}}"#
            ),
            3 => format!(r#"{{"input":"{text}"}}"#),
            4 => format!(r#"{{"input":[{{"type":"function_call_output","output":"{text}"}}]}}"#),
            5 => format!(
                r#"{{"contents":[{{"parts":[{{"functionResponse":{{"response":{{"output":"{text}"}}}}}}]}}]}}"#
            ),
            6 => format!(
                r#"{{"messages":[{{"role":"user","content":[{{"toolResult":{{"content":[{{"text":"{text}"}}]}}}}]}}]}}"#
            ),
            7 => format!(
                r#"{{"systemInstruction":{{"parts":[{{"text":"{text}"}}]}},"contents":[{{"parts":[{{"text":"{text}"}}]}}]}}"#
            ),
            _ => format!(r#"{{"documents":[{{"id":"{text}","text":"{text}"}}],"messages":[{{"role":"user","content":"a"}}]}}"#),
        };
        assert_linear("pieces", &body);
    }
}
