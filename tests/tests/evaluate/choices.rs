//! Tests of questions with choices and of a judge.

use super::{Evaluation, answer, arm, asked, error_of, figures_of, question, reader};
use foreword_tests::{Received, Reply, Upstream};
use serde_json::{Value, json};

/// A question with choices, of which the second is right.
fn choice(number: usize) -> Value {
    json!({
        "id": format!("c{number}"),
        "question": format!("What is the colour of thing {number}?"),
        "documents": [format!("Thing {number} is red."), "Other words.", "More words."],
        "choices": ["blue", "red", "green"],
        "answers": ["B"],
    })
}

fn body(request: &Received) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

/// Streams one token with its rivals.
fn token(reply: &mut Reply<'_>, text: &str, rivals: &Value) -> anyhow::Result<()> {
    reply.begin_events()?;
    let logprobs = json!({"content": [{"token": text, "logprob": -1.0, "top_logprobs": rivals}]});
    let chunk = json!({"choices": [{"delta": {"content": text}, "logprobs": logprobs, "finish_reason": "length"}]});
    reply.event(&chunk.to_string())?;
    reply.event("[DONE]")?;
    reply.end_events()
}

#[test]
fn the_likeliest_letter_is_the_answer_whatever_the_model_writes() {
    let upstream = Upstream::scripted(|_, reply| {
        let rivals = [("The", -0.1), (" B", -1.5), ("A", -2.0), ("D", -0.2)];
        let rivals: Vec<_> = rivals
            .map(|(token, logprob)| json!({"token": token, "logprob": logprob, "bytes": null}))
            .to_vec();
        token(reply, "The", &rivals.into())
    })
    .unwrap();
    let evaluation = Evaluation::of(&[choice(1), choice(2)]);
    let figures = evaluation.figures(&upstream, &["--arms", "retrieval,reversed"]);
    for name in ["retrieval", "reversed"] {
        assert_eq!(arm(&figures, name)["exact_match"]["value"], 100.0);
        assert_eq!(arm(&figures, name)["chosen_by_text"], 0);
    }
    let request = upstream.last().unwrap();
    let sent = body(&request);
    assert_eq!(
        [
            &sent["logprobs"],
            &sent["top_logprobs"],
            &sent["max_tokens"]
        ],
        [&json!(true), &json!(20), &json!(1)]
    );
    let words = asked(&request);
    assert!(
        words.ends_with("?\n\nA. blue\nB. red\nC. green\n\nAnswer with the letter alone."),
        "{words}"
    );
    assert_eq!(evaluation.records()[0]["answer"], "B");
}

#[test]
fn an_endpoint_without_log_probabilities_is_taken_at_its_word_and_the_report_says_so() {
    let upstream = Upstream::scripted(|_, reply| answer(reply, "(b) red")).unwrap();
    let evaluation = Evaluation::of(&[choice(1), choice(2)]);
    let arguments = ["--arms", "retrieval"];
    let figures = evaluation.figures(&upstream, &arguments);
    assert_eq!(arm(&figures, "retrieval")["exact_match"]["value"], 100.0);
    assert_eq!(arm(&figures, "retrieval")["chosen_by_text"], 2);
    let table = evaluation.run(&upstream, &arguments).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(
        table.contains("2 choices were read from the answer's text"),
        "{table}"
    );
}

/// A judge who finds answers right that name an even thing.
fn judge() -> Upstream {
    Upstream::scripted(|request, reply| {
        let asked = asked(request);
        let given = asked.split("Given answer: ").nth(1).unwrap();
        let code = given.lines().next().unwrap();
        let digit = code.chars().rev().find_map(|last| last.to_digit(10));
        let word = match digit {
            Some(digit) if digit % 2 == 0 => "Yes.",
            Some(_) => "No.",
            None => "Hm.",
        };
        answer(reply, word)
    })
    .unwrap()
}

#[test]
fn a_judge_is_asked_once_for_equal_answers_and_after_the_run_too() {
    let upstream = reader();
    let judge = judge();
    let lines: Vec<_> = (0..10).map(|number| question(number, 0)).collect();
    let evaluation = Evaluation::of(&lines);
    let arms = ["--arms", "retrieval,first", "--concurrency", "2"];
    let figures = evaluation.figures(&upstream, &arms);
    assert!(arm(&figures, "retrieval")["judged"].is_null());
    let requests = upstream.received().len();

    let endpoint = format!("http://{}", judge.address());
    let with = [&arms[..], &["--judge", &endpoint, "--judge-model", "j"]].concat();
    let figures = evaluation.figures(&upstream, &with);
    assert_eq!(upstream.received().len(), requests, "the answers were kept");
    for name in ["retrieval", "first"] {
        assert_eq!(arm(&figures, name)["judged"]["value"], 50.0, "{figures}");
    }
    assert_eq!(arm(&figures, "first")["difference"]["judged"]["value"], 0.0);
    // Both arms gave the same answers.
    assert_eq!(judge.received().len(), 10);
    let request = judge.last().unwrap();
    assert_eq!(body(&request)["model"], "j");
    assert!(asked(&request).contains("Right answers:\n- X"));
    let output = evaluation.run(&upstream, &with);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("\njudged right") && table.contains("50.0 %"),
        "{table}"
    );
    assert_eq!(judge.received().len(), 10, "the judgements were kept");
}

#[test]
fn a_judge_that_is_not_there_ends_the_run_and_what_it_says_is_not_guessed() {
    let upstream = Upstream::scripted(|_, reply| answer(reply, "no code")).unwrap();
    let evaluation = Evaluation::of(&[question(1, 0)]);
    let arguments = [
        "--arms",
        "retrieval",
        "--retries",
        "0",
        "--judge-model",
        "j",
        "--judge",
    ];
    let gone = "http://127.0.0.1:1";
    let output = evaluation.run(&upstream, &[&arguments[..], &[gone]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_of(&output).contains("the judge does not answer"),
        "{}",
        error_of(&output)
    );

    let judge = judge();
    let there = format!("http://{}", judge.address());
    let output = evaluation.run(&upstream, &[&arguments[..], &[&there, "--json"]].concat());
    assert!(error_of(&output).contains("1 replies of the judge were neither yes nor no"));
    assert!(arm(&figures_of(&output), "retrieval")["judged"].is_null());
}
