//! Tests of the figures of answers that are known beforehand.

use super::{Evaluation, arm, error_of, question, reader};
use serde_json::{Value, json};

/// Returns ninety questions, a third of them with the right document at each rank.
fn thirds() -> Evaluation {
    let lines: Vec<_> = (0..90).map(|number| question(number, number % 3)).collect();
    Evaluation::of(&lines)
}

#[test]
fn a_model_that_reads_the_first_document_only_is_found_out() {
    let upstream = reader();
    let evaluation = thirds();
    let arguments = [
        "--arms",
        "retrieval,reversed",
        "--positions",
        "--concurrency",
        "3",
    ];
    let figures = evaluation.figures(&upstream, &arguments);
    assert_eq!(figures["questions"], 90);
    let exact = |name: &str| {
        arm(&figures, name)["exact_match"]["value"]
            .as_f64()
            .unwrap()
    };
    let difference = |name: &str| &arm(&figures, name)["difference"]["exact_match"];
    assert_eq!([exact("retrieval"), exact("reversed")], [33.3333, 33.3333]);
    assert_eq!(
        [exact("first"), exact("middle"), exact("last")],
        [100.0, 0.0, 0.0]
    );
    assert_eq!(difference("first")["value"], 66.6667);
    assert_eq!(difference("first")["verdict"], "better");
    assert_eq!(difference("middle")["verdict"], "worse");
    // As good overall, but not on the same questions.
    assert_eq!(difference("reversed")["value"], 0.0);
    assert_eq!(difference("reversed")["verdict"], "not enough questions");
    for name in ["retrieval", "last"] {
        let arm = arm(&figures, name);
        assert_eq!(
            (&arm["questions"], &arm["reused"]),
            (&json!(90), &json!(30.0))
        );
        assert_eq!(arm["prompt_tokens"], 9_000);
        assert!(arm["ttft_ms"]["median"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(upstream.received().len(), 90 * 5);
    let page = std::fs::read_to_string(evaluation.path("report.html")).unwrap();
    assert!(page.contains("66.7") && !page.contains("X17"));
    let written = std::fs::read_to_string(evaluation.path("figures.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), figures);
}

#[test]
fn a_table_is_printed_unless_json_is_asked_for() {
    let upstream = reader();
    let evaluation = Evaluation::of(&[question(1, 0), question(2, 2)]);
    let arguments = ["--arms", "retrieval,random"];
    let output = evaluation.run(&upstream, &arguments);
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(table.starts_with("2 questions of data.jsonl, asked of m; 0 left out\n"));
    assert!(
        table.contains("\nretrieval                      2       50.0 %"),
        "{table}"
    );
    assert_eq!(
        error_of(&output),
        "written: run/figures.json\nwritten: run/report.html\n"
    );
    // The answers are scored again without a request.
    let received = upstream.received().len();
    assert_eq!(evaluation.run(&upstream, &arguments).stdout, output.stdout);
    assert_eq!(upstream.received().len(), received);
}

#[test]
fn squad_files_are_asked_with_their_best_paragraphs() {
    let upstream = reader();
    let paragraph = |number: usize| {
        json!({
            "context": format!("The code of thing{number} is X{number}."),
            "qas": [{
                "id": format!("q{number}"),
                "question": format!("What is the code of thing{number}?"),
                "answers": [{"text": format!("X{number}"), "answer_start": 0}],
            }],
        })
    };
    let paragraphs: Vec<_> = (0..12).map(paragraph).collect();
    let squad = json!({"version": "1.1", "data": [{"title": "Things", "paragraphs": paragraphs}]});
    let evaluation = Evaluation::of_file("squad.json", &squad.to_string());
    let arguments = ["--arms", "retrieval,last", "--documents", "4"];
    let figures = evaluation.figures(&upstream, &arguments);
    // BM25 puts the paragraph with the question's rarest word first, and the model reads it.
    assert_eq!(arm(&figures, "retrieval")["exact_match"]["value"], 100.0);
    assert_eq!(arm(&figures, "last")["exact_match"]["value"], 0.0);
    assert_eq!(arm(&figures, "last")["documents"], 48);
}
