//! Tests with the reader of `examples/reader`, a checkpoint that was trained: its template, tokens, logits and answers
//! against what `transformers` recorded (`reference.json`, by `reference.py`).
//!
//! The fixtures' random weights distinguish a right engine from a wrong one (`reference.rs`). The tests here go the
//! whole way, from a chat with documents to a right answer about names that the training never saw. The tolerance is
//! the same.

#[path = "support/machine.rs"]
mod machine;
#[path = "support/recorded.rs"]
mod recorded;

use foreword_engine::backend::cpu::{CpuBackend, Precision};
use foreword_engine::backend::{Backend, Output, PageId};
use foreword_engine::engine::{Engine, EngineConfig, Event, Request};
use foreword_engine::models::ModelConfig;
use foreword_engine::sampling::Logprobs;
use foreword_engine::text::{ChatTemplate, Tokenizer};
use machine::{PAGE_TOKENS, POOL, best, load, run};
use recorded::floats;
use serde_json::Value;
use std::path::PathBuf;

/// Largest error of a logit, in its row's standard deviations.
const TOLERANCE: f32 = 2e-4;
const MAX_ANSWER: usize = 32;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/reader")
}

fn questions() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let questions = reference["questions"].as_array().unwrap().clone();
    assert!(questions.len() >= 5, "the reference is cut short");
    questions
}

fn tokens(value: &Value) -> Vec<u32> {
    let tokens = value.as_array().unwrap().iter();
    tokens.map(|token| token.as_u64().unwrap() as u32).collect()
}

fn backend(precision: Precision) -> Option<CpuBackend> {
    match load(&folder(), 2, precision) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(precision == Precision::Bf16, "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

/// Returns the logits of the last of these tokens of the only sequence.
fn last(backend: &mut CpuBackend, tokens: &[u32], start: usize) -> Vec<f32> {
    let pages = ((start + tokens.len()) as u32).div_ceil(PAGE_TOKENS);
    assert!(pages <= POOL, "the pool is too small");
    let pages: Vec<PageId> = (0..pages).map(PageId).collect();
    run(backend, tokens, start, &pages, Output::Last)
}

/// Returns the greedy answer after a prompt, its end token included.
fn answer(backend: &mut CpuBackend, prompt: &[u32], first: &[f32], ends: &[u32]) -> Vec<u32> {
    let mut said = vec![best(first)];
    while said.len() < MAX_ANSWER && !said.last().is_some_and(|token| ends.contains(token)) {
        let at = prompt.len() + said.len() - 1;
        let row = last(backend, &said[said.len() - 1..], at);
        said.push(best(&row));
    }
    said
}

#[test]
fn chats_become_the_recorded_tokens() {
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let template = ChatTemplate::load(&folder()).unwrap().unwrap();
    for question in questions() {
        let text = template.render(&question["messages"], None, None).unwrap();
        let encoded = tokenizer.encode(&text, true).unwrap();
        assert_eq!(encoded, tokens(&question["tokens"]), "{text}");
    }
}

#[test]
fn documents_of_an_array_make_the_prompt_that_the_gateway_makes_of_them() {
    let template = ChatTemplate::load(&folder()).unwrap().unwrap();
    let documents = serde_json::json!([
        {"id": "a-b", "title": "A b", "text": "One."}, {"id": "c", "text": "Two."}
    ]);
    let message = |content: &str| serde_json::json!([{"role": "user", "content": content}]);
    let written = "<document id=\"a-b\">\nA b\n\nOne.\n</document>\n<document id=\"c\">\nTwo.\n</document>\n\nWhy?";
    assert_eq!(
        template
            .render(&message("Why?"), None, Some(&documents))
            .unwrap(),
        template.render(&message(written), None, None).unwrap()
    );
}

#[test]
fn logits_agree_with_transformers_and_held_out_questions_are_answered_rightly() {
    let ends = ModelConfig::load(&folder()).unwrap().eos_tokens;
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let mut backend = backend(Precision::F32).unwrap();
    for question in questions() {
        let prompt = tokens(&question["tokens"]);
        let logits = last(&mut backend, &prompt, 0);
        let expected = floats(question["logits"].as_str().unwrap());
        assert_eq!(logits.len(), expected.len());
        let mean = expected.iter().sum::<f32>() / expected.len() as f32;
        let square = expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>();
        let deviation = (square / expected.len() as f32).sqrt();
        let errors = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let worst = errors.fold(0.0, f32::max) / deviation;
        println!("{}: {worst:e} of the deviation", question["kind"]);
        assert!(worst <= TOLERANCE, "{worst} of the deviation {deviation}");

        let said = answer(&mut backend, &prompt, &logits, &ends);
        assert_eq!(said, tokens(&question["answer_tokens"]));
        let mut decoder = tokenizer.decoder();
        let mut text: String = said.iter().map(|&token| decoder.push(token)).collect();
        text += &decoder.finish();
        assert_eq!(text, question["answer"].as_str().unwrap());
    }
}

#[test]
fn products_in_bf16_give_the_same_answers() {
    let ends = ModelConfig::load(&folder()).unwrap().eos_tokens;
    let Some(mut backend) = backend(Precision::Bf16) else {
        return;
    };
    for question in questions() {
        let prompt = tokens(&question["tokens"]);
        let logits = last(&mut backend, &prompt, 0);
        let said = answer(&mut backend, &prompt, &logits, &ends);
        assert_eq!(
            said,
            tokens(&question["answer_tokens"]),
            "{}",
            question["kind"]
        );
    }
}

/// Returns a request's answer, and the log-probabilities of its prompt and of its answer.
fn ask(engine: &Engine, request: Request) -> (Vec<u32>, Vec<Logprobs>, Vec<Logprobs>) {
    let mut generation = engine.submit(request).unwrap();
    let (mut answer, mut of_prompt, mut of_answer) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Started { .. } | Event::Finished(_) => {}
            Event::Prompt(logprobs) => of_prompt = logprobs,
            Event::Token { id, logprobs } => {
                answer.push(id);
                of_answer.extend(logprobs.map(|logprobs| *logprobs));
            }
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
    (answer, of_prompt, of_answer)
}

#[test]
fn a_forced_answer_is_as_likely_as_it_was_when_it_was_generated() {
    let question = &questions()[0];
    let prompt = tokens(&question["tokens"]);
    let mut backend = backend(Precision::F32).unwrap();
    let width = backend.shape().vocabulary as usize;
    let pages: Vec<PageId> = (0..(prompt.len() as u32).div_ceil(PAGE_TOKENS))
        .map(PageId)
        .collect();
    let rows = run(&mut backend, &prompt, 0, &pages, Output::All);
    // Steps shorter than the prompt.
    let config = EngineConfig {
        max_step_tokens: 64,
        ..EngineConfig::default()
    };
    let engine = Engine::start(Box::new(backend), config);
    let request = Request {
        prompt: prompt.clone(),
        max_tokens: 6,
        top_logprobs: Some(2),
        ..Request::default()
    };
    let (answer, none, generated) = ask(&engine, request);
    assert!(none.is_empty());
    for _ in 0..2 {
        let request = Request {
            prompt: [&prompt[..], &answer].concat(),
            prompt_logprobs: Some(2),
            ..Request::default()
        };
        let (_, forced, _) = ask(&engine, request);
        assert_eq!(forced.len(), prompt.len() + answer.len() - 1);
        assert_eq!(forced[prompt.len() - 1..], generated, "bit for bit");
        for (at, found) in forced[..prompt.len() - 1].iter().enumerate() {
            let row = &rows[at * width..][..width];
            let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = f64::from(row[prompt[at + 1] as usize]) - total.ln();
            assert!((f64::from(found.chosen) - expected).abs() < 1e-4, "{at}");
        }
    }
    engine.shutdown();
}
