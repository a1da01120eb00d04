//! Tests of `examples/datasets.py`, which writes published data sets as lines that `foreword evaluate` asks.
//!
//! `tests/datasets` holds a small file of each format beside the lines that it becomes.

use super::{Evaluation, arm, error_of, reader};
use foreword_tests::artifacts::repository;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the script in `folder`, for two documents a question and passages of at most five words.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let output = Command::new("python3")
        .arg(repository().join("examples/datasets.py"))
        .args(["--documents", "2", "--chunk-words", "5"])
        .args(arguments)
        .env("PYTHONIOENCODING", "utf-8")
        .current_dir(folder)
        .output();
    output.expect("python3 runs")
}

fn told(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    error_of(&output)
}

/// A format, its files and the lines that they become, as paths under `tests/datasets`.
const SAMPLES: [(&[&str], &str); 12] = [
    (
        &["hotpotqa", "hotpotqa/questions.json"],
        "hotpotqa/questions.lines.jsonl",
    ),
    (
        &[
            "multihop-rag",
            "multihop-rag/questions.json",
            "multihop-rag/corpus.json",
        ],
        "multihop-rag/questions.lines.jsonl",
    ),
    (
        &["qasper", "qasper/papers.json"],
        "qasper/papers.lines.jsonl",
    ),
    (
        &[
            "narrativeqa",
            "narrativeqa/qaps.csv",
            "narrativeqa/summaries.csv",
        ],
        "narrativeqa/summaries.lines.jsonl",
    ),
    (
        &["narrativeqa", "narrativeqa/qaps.csv", "narrativeqa/stories"],
        "narrativeqa/stories.lines.jsonl",
    ),
    (
        &["mt-rag", "mt-rag/conversations.json"],
        "mt-rag/conversations.lines.jsonl",
    ),
    (
        &["mt-rag", "mt-rag/tasks.jsonl"],
        "mt-rag/tasks.lines.jsonl",
    ),
    (&["nq", "nq/pages.jsonl"], "nq/pages.lines.jsonl"),
    (&["nq", "nq/contexts.json"], "nq/contexts.lines.jsonl"),
    (
        &["mmlu", "mmlu/ships.csv", "mmlu/wiki.tsv"],
        "mmlu/ships.lines.jsonl",
    ),
    (
        &["pubmedqa", "pubmedqa/abstracts.json"],
        "pubmedqa/abstracts.lines.jsonl",
    ),
    (
        &["xquad-chats", "xquad-chats/articles.json"],
        "xquad-chats/articles.lines.jsonl",
    ),
];

#[test]
fn each_format_becomes_lines() {
    let folder = repository().join("tests/datasets");
    for (arguments, expected) in SAMPLES {
        let output = run(&folder, arguments);
        assert!(output.status.success(), "{}", error_of(&output));
        let lines = String::from_utf8(output.stdout).unwrap();
        let expected = std::fs::read_to_string(folder.join(expected)).unwrap();
        assert_eq!(lines, expected, "{arguments:?}");
    }
    let output = run(&folder, SAMPLES[0].0);
    assert_eq!(
        error_of(&output),
        "1 questions without an answer or a document left out\n"
    );
}

#[test]
fn a_corpus_is_read_in_each_form() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("q.csv", "Which hen is white?,a,b,c,d,A\n");
    for (name, text) in [
        (
            "c.json",
            r#"[{"title": "Fox", "body": "A red fox.", "url": "u1", "category": "x"}, {"title": "Hen", "body": "A white hen.", "url": "u2"}]"#,
        ),
        (
            "c.jsonl",
            "{\"_id\": \"u1\", \"title\": \"Fox\", \"text\": \"A red fox.\"}\n\n{\"_id\": \"u2\", \"text\": \"A white hen.\"}\n",
        ),
        (
            "c.tsv",
            "id\ttext\ttitle\nu1\tA \"red\" fox.\tFox\nu2\tA white hen.\tHen\n",
        ),
    ] {
        write(name, text);
        let output = run(at, &["mmlu", "q.csv", name]);
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(line["documents"][0]["id"], "u2", "{name}");
        assert_eq!(line["documents"].as_array().unwrap().len(), 1, "{name}");
    }
    for (name, text, words) in [
        ("c.txt", "", "must end in .json, .jsonl or .tsv"),
        ("d.json", "[]", "is empty"),
        ("d.json", r#"[{"title": "x"}]"#, "entry 1: it has no text"),
        ("d.jsonl", "{\n", "line 1"),
        ("d.tsv", "id\tbody\n", "no column 'text', only id, body"),
    ] {
        write(name, text);
        let error = told(at, &["mmlu", "q.csv", name]);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    let answers = "document_id,question,answer1,answer2\n";
    write("c.jsonl", r#"{"text": "A ferry."}"#);
    for (format, text, words) in [
        (
            "hotpotqa",
            r#"[{"_id": "a", "question": "q"}]"#,
            "is not of the format hotpotqa: KeyError('context')",
        ),
        ("qasper", r#"{"p": {"qas": []}}"#, "KeyError('full_text')"),
        ("multihop-rag", "nonsense", "Expecting value"),
        (
            "narrativeqa",
            "document_id\n",
            "no column 'question', only document_id",
        ),
        (
            "narrativeqa",
            &format!("{answers}x,\"q\n"),
            "unexpected end of data",
        ),
        (
            "nq",
            "{}",
            "line 1: it has neither `document_text` nor `document_tokens`",
        ),
        ("mmlu", "q,a,b,c,A\n", "row 1 has 5 columns"),
        (
            "mmlu",
            "q,a,b,c,d,E\n",
            "row 1: 'E' is not one of A, B, C, D",
        ),
        (
            "pubmedqa",
            r#"{"7": {"QUESTION": "q", "CONTEXTS": ["x"], "final_decision": "perhaps"}}"#,
            "abstract 7: 'perhaps' is not one of yes, no, maybe",
        ),
        (
            "mt-rag",
            r#"{"conversation_id": "c", "task_id": "t", "turn": "x", "input": [], "targets": []}"#,
            "line 1: `turn` is no number",
        ),
    ] {
        write("data", text);
        let corpus: &[&str] = match format {
            "mmlu" | "multihop-rag" => &["c.jsonl"],
            "narrativeqa" => &["."],
            _ => &[],
        };
        let error = told(at, &[&[format, "data"], corpus].concat());
        assert!(error.contains(words), "{format}: {error}");
    }
    write("data", &format!("{answers}0025,q,a,\n"));
    let error = told(at, &["narrativeqa", "data", "."]);
    assert!(error.contains("row 2: there is no story '0025'"), "{error}");
    for format in ["multihop-rag", "narrativeqa", "mmlu"] {
        let error = told(at, &[format, "data"]);
        assert!(error.contains("CORPUS must"), "{error}");
    }
}

#[test]
fn the_lines_are_asked() {
    let upstream = reader();
    let file = serde_json::json!([{
        "_id": "5a8b", "question": "What is the code of the ferry?", "answer": "X7", "type": "bridge", "level": "easy",
        "supporting_facts": [["Ferry", 0]],
        "context": [["Ferry", ["The code of the ferry is X7"]], ["Train", ["The code of the train is X8"]]],
    }]);
    let evaluation = Evaluation::of_file("data.jsonl", "");
    let at = evaluation.folder.path();
    std::fs::write(at.join("hotpot.json"), file.to_string()).unwrap();
    let lines = run(at, &["hotpotqa", "hotpot.json"]).stdout;
    std::fs::write(at.join("data.jsonl"), lines).unwrap();
    let figures = evaluation.figures(&upstream, &["--arms", "retrieval,reversed"]);
    assert_eq!(arm(&figures, "retrieval")["exact_match"]["value"], 100.0);
    assert_eq!(arm(&figures, "reversed")["exact_match"]["value"], 0.0);
    assert!(
        arm(&figures, "retrieval")["prefill_tokens_per_s"]
            .as_f64()
            .unwrap()
            > 0.0
    );

    let table = Evaluation::of_file("mmlu.csv", "What?,a,b,c,d,A\n");
    let output = table.run(&upstream, &[]);
    assert!(error_of(&output).contains("or --format must name one of both"));
}
