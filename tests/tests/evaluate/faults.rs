//! Tests of endpoints that fail, and of arguments that do not fit.

use super::{
    Evaluation, answer, arm, asked, error_of, figures_of, first_document, question, reader,
};
use foreword_tests::{Received, Reply, Upstream};
use serde_json::json;
use std::sync::Mutex;

fn ten() -> Evaluation {
    let lines: Vec<_> = (0..10).map(|number| question(number, 0)).collect();
    Evaluation::of(&lines)
}

/// Starts an endpoint that treats the first `count` requests differently, and answers the others.
fn after(
    count: usize,
    otherwise: impl Fn(&mut Reply<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
) -> Upstream {
    let seen = Mutex::new(0);
    Upstream::scripted(move |request, reply| {
        let number = {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            *seen
        };
        if number <= count {
            otherwise(reply)
        } else {
            answer(reply, &first_document(request))
        }
    })
    .unwrap()
}

const RETRIEVAL: [&str; 2] = ["--arms", "retrieval"];

#[test]
fn what_may_pass_is_tried_again() {
    for otherwise in [
        |reply: &mut Reply<'_>| reply.json(503, r#"{"error": {"message": "loading"}}"#),
        |reply: &mut Reply<'_>| reply.json(429, "{}"),
        // Closed without a word; closed in mid-stream; garbage in a stream; an error in it.
        |_: &mut Reply<'_>| Ok(()),
        |reply: &mut Reply<'_>| {
            reply.begin_events()?;
            reply.event(r#"{"choices": [{"delta": {"content": "wro"}}]}"#)
        },
        |reply: &mut Reply<'_>| {
            reply.begin_events()?;
            reply.event("garbage")?;
            reply.end_events()
        },
        |reply: &mut Reply<'_>| {
            reply.begin_events()?;
            reply.event(r#"{"error": {"message": "out of pages"}}"#)?;
            reply.end_events()
        },
    ] {
        let upstream = after(3, otherwise);
        let figures = ten().figures(&upstream, &RETRIEVAL);
        assert_eq!(arm(&figures, "retrieval")["exact_match"]["value"], 100.0);
        assert_eq!(upstream.received().len(), 13);
    }
}

#[test]
fn an_endpoint_that_is_gone_ends_the_run_and_nothing_is_lost() {
    let seen = Mutex::new(0);
    let gone = Upstream::scripted(move |request, reply| {
        let number = {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            *seen
        };
        // From the fifth to the twelfth request nobody answers.
        if (5..=12).contains(&number) {
            return Ok(());
        }
        answer(reply, &first_document(request))
    })
    .unwrap();
    let evaluation = ten();
    let arguments = ["--arms", "retrieval", "--retries", "1"];
    let output = evaluation.run(&gone, &arguments);
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("3 requests in a row were not answered; 4 answers are kept"),
        "{error}"
    );
    assert!(error.contains("(tried 2 times)"), "{error}");
    assert_eq!(evaluation.records().len(), 4);
    // One more question fails, and the others of its arm are answered; the next run sends it again.
    let figures = evaluation.figures(&gone, &arguments);
    assert_eq!(figures["left_out"], 1);
    assert_eq!(arm(&figures, "retrieval")["questions"], 9);
    let figures = evaluation.figures(&gone, &arguments);
    assert_eq!(figures["left_out"], 0);
    assert_eq!(arm(&figures, "retrieval")["questions"], 10);
}

#[test]
fn a_question_that_is_not_served_is_left_out_of_all_arms() {
    let is_long = |request: &Received| asked(request).ends_with("thing 3?");
    let upstream = Upstream::scripted(move |request, reply| {
        if is_long(request) {
            return reply.json(400, r#"{"error": {"message": "the prompt is too long"}}"#);
        }
        answer(reply, &first_document(request))
    })
    .unwrap();
    let evaluation = ten();
    let output = evaluation.run(&upstream, &["--arms", "retrieval,ordered,random", "--json"]);
    let figures = figures_of(&output);
    let error = error_of(&output);
    assert!(error.starts_with("left out: \"q3\" ("), "{error}");
    assert!(
        error.contains("400: ") && error.contains("the prompt is too long"),
        "{error}"
    );
    assert_eq!(figures["left_out"], 1);
    for name in ["retrieval", "ordered", "random"] {
        assert_eq!(arm(&figures, name)["questions"], 9);
    }
    // It is not sent under the other arms.
    assert_eq!(upstream.received().len(), 28);
}

#[test]
fn an_endpoint_that_serves_nothing_of_the_kind_is_asked_once() {
    for (otherwise, words) in [
        (
            (|reply: &mut Reply<'_>| reply.json(401, r#"{"error": "no key"}"#))
                as fn(&mut Reply<'_>) -> _,
            "answered 401: {\"error\": \"no key\"}",
        ),
        (|reply| reply.json(404, "{}"), "answered 404"),
        (
            |reply| {
                reply.json(
                    200,
                    r#"{"choices": [{"message": {"content": "all at once"}}]}"#,
                )
            },
            "is not a stream of events",
        ),
    ] {
        let upstream = after(100, otherwise);
        let output = ten().run(&upstream, &RETRIEVAL);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        assert!(error_of(&output).contains(words), "{}", error_of(&output));
        assert_eq!(upstream.received().len(), 1);
    }
}

#[test]
fn twenty_refusals_in_a_row_end_the_run() {
    let upstream = after(1_000, |reply| reply.json(400, "no such member: cache_salt"));
    let lines: Vec<_> = (0..30).map(|number| question(number, 0)).collect();
    let output = Evaluation::of(&lines).run(&upstream, &RETRIEVAL);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_of(&output).contains("20 requests in a row were not answered; 0 answers are kept")
    );
    assert_eq!(upstream.received().len(), 20);
}

#[test]
fn counts_that_the_endpoint_does_not_give_are_absent() {
    let upstream = Upstream::scripted(|_, reply| {
        reply.begin_events()?;
        reply.event(r#"{"choices": [{"delta": {"content": "X0"}, "finish_reason": "length"}]}"#)?;
        reply.end_events()
    })
    .unwrap();
    let figures = ten().figures(&upstream, &["--arms", "retrieval,reversed"]);
    let retrieval = arm(&figures, "retrieval");
    assert_eq!(retrieval["exact_match"]["value"], 10.0);
    assert!(retrieval["reused"].is_null() && retrieval["prompt_tokens"].is_null());
    assert_eq!(retrieval["cut"], 10);
    assert!(arm(&figures, "reversed")["difference"]["reused"].is_null());
}

#[test]
fn bad_arguments_and_bad_data_are_named_before_anything_is_asked() {
    let upstream = reader();
    for (line, arguments, code, words) in [
        (
            question(1, 0),
            &["--arms", "best"][..],
            2,
            "it must be one of retrieval, ",
        ),
        (
            question(1, 0),
            &["--arms", "gateway"],
            1,
            "the arm gateway needs --gateway",
        ),
        (
            question(1, 0),
            &["--gateway", "ftp://g"],
            1,
            "--gateway: an endpoint is a plain URL",
        ),
        (
            question(1, 0),
            &["--extra", "[]"],
            2,
            "it must be a JSON object",
        ),
        (
            question(1, 0),
            &["--api-key-env", "NO_SUCH_KEY"],
            1,
            "the environment has no NO_SUCH_KEY",
        ),
        (
            question(1, 0),
            &["--ordering", "gone.json"],
            1,
            "cannot read the gateway's configuration in gone.json",
        ),
        (question(1, 0), &["--questions", "0"], 2, "--questions"),
        (
            json!({"question": "Why?"}),
            &[],
            1,
            "cannot read data.jsonl: line 1: it has no answers",
        ),
        (
            json!({"id": "odd", "question": "<doc>a</doc>?", "documents": ["b"], "answers": ["b"]}),
            &[],
            1,
            "\"odd\" has 1 documents, but 2 would be found in its request",
        ),
    ] {
        let output = Evaluation::of(&[line]).run(&upstream, arguments);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {error}");
        assert!(error.contains(words), "{error}");
    }
    assert!(upstream.received().is_empty());
}
