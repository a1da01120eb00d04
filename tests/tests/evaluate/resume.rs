//! Tests that a run which was stopped can be resumed.

use super::{Evaluation, answer, arm, asked, error_of, first_document, question, reader};
use foreword_tests::Upstream;
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

/// Returns single questions whose documents overlap, and chats.
fn lines() -> Vec<Value> {
    let mut lines: Vec<_> = (0..12).map(|number| question(number, number % 3)).collect();
    for chat in 20..24 {
        let turns = [question(chat, 0), question(chat + 10, 1), question(chat, 2)];
        lines.push(json!({"id": format!("chat {chat}"), "turns": turns}));
    }
    lines
}

const ARMS: [&str; 3] = [
    "--arms",
    "retrieval,ordered+hint,dedup+hint,random",
    "--no-cache-salt",
];

#[test]
fn after_a_kill_it_asks_what_is_left_with_the_very_bodies_it_would_have_sent() {
    let whole = {
        let upstream = reader();
        let evaluation = Evaluation::of(&lines());
        let figures = evaluation.figures(&upstream, &ARMS);
        let bodies: Vec<_> = upstream
            .received()
            .into_iter()
            .map(|request| request.body)
            .collect();
        (figures, bodies)
    };
    for killed_at in [1, 30, 71] {
        let (reached, wait) = channel();
        let (release, killed) = channel::<()>();
        let ends = Mutex::new((reached, killed));
        let holds = AtomicBool::new(true);
        let count = Mutex::new(0);
        let upstream = Upstream::scripted(move |request, reply| {
            let number = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count
            };
            if number == killed_at && holds.swap(false, Ordering::Relaxed) {
                // Half an answer is sent, and then the client is killed.
                reply.begin_events()?;
                reply.event(&json!({"choices": [{"delta": {"content": "half"}}]}).to_string())?;
                let ends = ends.lock().unwrap();
                ends.0.send(())?;
                // Blocks until the test has continued.
                let _ = ends.1.recv();
                return Ok(());
            }
            answer(reply, &first_document(request))
        })
        .unwrap();
        let evaluation = Evaluation::of(&lines());
        let mut command = evaluation.command(upstream.address(), &ARMS);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait.recv().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(release);
        assert_eq!(evaluation.records().len(), killed_at - 1);
        // A crash of the machine may leave a line without its end.
        let path = evaluation.path("answers.jsonl");
        let mut kept = std::fs::read(&path).unwrap();
        kept.extend(br#"{"case":"q1","tu"#);
        std::fs::write(&path, kept).unwrap();

        let figures = evaluation.figures(&upstream, &ARMS);
        let mut bodies: Vec<_> = upstream
            .received()
            .into_iter()
            .map(|request| request.body)
            .collect();
        assert_eq!(bodies[killed_at - 1], bodies[killed_at], "asked again");
        bodies.remove(killed_at);
        assert!(bodies == whole.1, "killed at {killed_at}");
        for name in ["retrieval", "ordered+hint", "dedup+hint", "random"] {
            for figure in [
                "exact_match",
                "f1",
                "moved",
                "deduplicated",
                "cached_tokens",
            ] {
                assert_eq!(
                    arm(&figures, name)[figure],
                    arm(&whole.0, name)[figure],
                    "{name} {figure}"
                );
            }
        }
    }
}

#[test]
fn with_other_parameters_it_does_not() {
    let upstream = reader();
    let evaluation = Evaluation::of(&[question(1, 0), question(2, 1)]);
    evaluation.figures(&upstream, &["--arms", "retrieval"]);
    let asked_before = upstream.received().len();
    for (arguments, words) in [
        (
            &["--arms", "retrieval", "--seed", "1"][..],
            "seed was 0 and is 1",
        ),
        (
            &["--arms", "random"],
            "arms was [\"retrieval\"] and is [\"random\"]",
        ),
        (
            &["--arms", "retrieval", "--questions", "1"],
            "questions was null and is 1",
        ),
        (
            &["--arms", "retrieval", "--max-tokens", "1"],
            "max_tokens was 64 and is 1",
        ),
    ] {
        let output = evaluation.run(&upstream, arguments);
        assert_eq!(output.status.code(), Some(1));
        let error = error_of(&output);
        assert!(
            error.starts_with("error: run holds a run with other parameters: "),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
    }
    std::fs::write(
        evaluation.folder.path().join("data.jsonl"),
        question(1, 0).to_string(),
    )
    .unwrap();
    let error = error_of(&evaluation.run(&upstream, &["--arms", "retrieval"]));
    assert!(error.contains("data was "), "{error}");
    assert_eq!(upstream.received().len(), asked_before);
}

#[test]
fn more_requests_at_once_change_no_body_of_single_questions() {
    let sorted = |concurrency: &str| {
        let upstream = reader();
        let lines: Vec<_> = (0..30).map(|number| question(number, number % 3)).collect();
        let evaluation = Evaluation::of(&lines);
        evaluation.figures(
            &upstream,
            &[&ARMS[..], &["--concurrency", concurrency]].concat(),
        );
        let mut asked: Vec<_> = upstream.received().iter().map(asked).collect();
        asked.sort();
        asked
    };
    assert_eq!(sorted("1"), sorted("8"));
}
