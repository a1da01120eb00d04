//! Tests of tokenizer, decoder and chat template against what `transformers` recorded (`fixtures/*/reference.json`).

use foreword_engine::text::{ChatTemplate, Decoder, Ending, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns the folders with a recorded reference.
fn checkpoints() -> Vec<(PathBuf, Value)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folders = std::fs::read_dir(fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let references = folders.filter_map(|folder| {
        let text = std::fs::read_to_string(folder.join("reference.json")).ok()?;
        Some((folder, serde_json::from_str(&text).unwrap()))
    });
    let found: Vec<_> = references.collect();
    assert!(found.len() >= 4, "fixtures are missing: {found:?}");
    found
}

fn tokens(json: &Value) -> Vec<u32> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_u64().unwrap() as u32)
        .collect()
}

fn cases<'a>(reference: &'a Value, key: &str) -> &'a [Value] {
    let cases = reference[key].as_array().unwrap();
    assert!(!cases.is_empty());
    cases
}

fn decode(mut decoder: Decoder<'_>, tokens: &[u32]) -> String {
    let mut text: String = tokens.iter().map(|&token| decoder.push(token)).collect();
    text += &decoder.finish();
    text
}

#[test]
fn texts_become_the_recorded_tokens_and_come_back() {
    for (folder, reference) in checkpoints() {
        let tokenizer = Tokenizer::load(&folder).unwrap();
        for case in cases(&reference, "tokenizer") {
            let text = case["text"].as_str().unwrap();
            let expected = tokens(&case["tokens"]);
            assert_eq!(
                tokenizer.encode(text, true).unwrap(),
                expected,
                "{text:?} of {folder:?}"
            );
            let decoded = case["decoded_without_special"].as_str().unwrap();
            assert_eq!(
                decode(tokenizer.decoder(), &expected),
                decoded,
                "{text:?} of {folder:?}"
            );
            assert_eq!(
                decode(tokenizer.continuation(), &expected),
                decoded,
                "{text:?} of {folder:?}"
            );
        }
    }
}

#[test]
fn conversations_become_the_recorded_prompts() {
    for (folder, reference) in checkpoints() {
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let template = ChatTemplate::load(&folder, None).unwrap().unwrap();
        for case in cases(&reference, "chat") {
            let rendered = template
                .render(
                    &case["messages"],
                    case.get("tools"),
                    case.get("documents"),
                    None,
                    Ending::Answer,
                )
                .unwrap();
            assert_eq!(rendered, case["rendered"].as_str().unwrap(), "{folder:?}");
            assert_eq!(
                tokenizer.encode(&rendered, false).unwrap(),
                tokens(&case["tokens"]),
                "{folder:?}"
            );
        }
    }
}

#[test]
fn the_recorded_template_speaks_for_itself() {
    let (folder, _) = checkpoints().swap_remove(0);
    let template = ChatTemplate::load(&folder, None).unwrap().unwrap();
    let messages = serde_json::json!([{"role": "oracle", "content": "hm"}]);
    let error = template
        .render(&messages, None, None, None, Ending::Answer)
        .unwrap_err();
    assert_eq!(error.to_string(), "chat template: unknown role oracle");
}
