//! Tests the program `foreword ingest`: it converts a folder to an index, and reports errors.

use foreword_retrieval::Collection;
use foreword_retrieval::index::IvfOptions;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A folder of texts, and the path of its index.
struct Corpus {
    folder: TempDir,
}

impl Corpus {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("texts")).unwrap();
        let corpus = Self { folder };
        corpus.write("plain.txt", "The garage closes at ten.");
        corpus.write(
            "guide.md",
            "# Coffee\n\nThe machine is cleaned on Fridays.\n\n# Visa\n\nThree weeks.",
        );
        corpus.write("lines.jsonl", "{\"id\": \"one\", \"title\": \"T\", \"text\": \"Leave is announced ahead.\", \"metadata\": {\"year\": 1}}\n{\"text\": \"A bare line.\"}\n");
        corpus.write("picture.png", "not a text");
        corpus
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.texts().join(name), text).unwrap();
    }

    fn texts(&self) -> PathBuf {
        self.folder.path().join("texts")
    }

    fn index(&self) -> PathBuf {
        self.folder.path().join("corpus.index")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foreword"));
        command
            .args(["ingest", "--index"])
            .args([self.index(), self.texts()])
            .args(more);
        command
    }

    fn ingest(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_folder_becomes_an_index_and_the_next_run_does_what_has_changed() {
    for kind in ["flat", "ivf", "hnsw"] {
        let corpus = Corpus::new();
        let (code, out, error) = corpus.ingest(&["--kind", kind]);
        assert_eq!(code, Some(0), "{error}");
        assert!(
            out.ends_with(
                "5 documents (5 new or changed, 0 unchanged, 0 deleted, 0 without words)\n"
            ),
            "{out}"
        );
        let first = fs::read(corpus.index()).unwrap();

        let (_, out, _) = corpus.ingest(&[]);
        assert!(
            out.ends_with("(0 new or changed, 5 unchanged, 0 deleted, 0 without words)\n"),
            "{out}"
        );
        fs::remove_file(corpus.texts().join("plain.txt")).unwrap();
        corpus.write(
            "guide.md",
            "# Coffee\n\nThe machine is cleaned on Mondays.\n\n# Visa\n\nThree weeks.",
        );
        corpus.write("empty.txt", "--- ...");
        let (_, out, _) = corpus.ingest(&[]);
        assert!(
            out.contains(" 4 documents (1 new or changed, 3 unchanged, "),
            "{out}"
        );
        assert_ne!(fs::read(corpus.index()).unwrap(), first);
        assert_eq!(names(corpus.folder.path()), ["corpus.index", "texts"]);
    }
}

#[test]
fn the_index_has_the_settings_that_were_asked_for() {
    let corpus = Corpus::new();
    for (arguments, expected) in [
        (
            &["--ivf-probes", "2"][..],
            "are for an ivf index, and this one is hnsw",
        ),
        (
            &["--kind", "flat", "--hnsw-ef", "9"],
            "are for an hnsw index, and this one is flat",
        ),
        (
            &["--kind", "ivf", "--ivf-clusters", "2", "--ivf-probes", "3"],
            "there are 2 clusters",
        ),
    ] {
        let (code, _, error) = corpus.ingest(arguments);
        assert_eq!(code, Some(1));
        assert!(error.contains(expected), "{error}");
        assert!(!corpus.index().exists());
    }
    let settings = ["--kind", "ivf", "--ivf-clusters", "3", "--ivf-probes", "2"];
    let (code, _, error) = corpus.ingest(&settings);
    assert_eq!(code, Some(0), "{error}");
    let options = || {
        Collection::open(&corpus.index())
            .unwrap()
            .index()
            .ivf_options()
    };
    let (clusters, probes) = (3, 2);
    assert_eq!(options(), Some(IvfOptions { clusters, probes }));
    // A later run keeps the settings, whether or not it names them, and refuses others.
    corpus.write("more.txt", "Another text, on something else.");
    assert_eq!(corpus.ingest(&[]).0, Some(0));
    assert_eq!(corpus.ingest(&settings).0, Some(0));
    assert_eq!(options(), Some(IvfOptions { clusters, probes }));
    let (code, _, error) = corpus.ingest(&["--ivf-probes", "1"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("was made with other settings"), "{error}");
}

#[test]
fn a_bad_file_is_named_with_its_line_and_the_index_stays_as_it_was() {
    let corpus = Corpus::new();
    corpus.ingest(&[]);
    let before = fs::read(corpus.index()).unwrap();
    for (name, text, expected) in [
        (
            "bad.jsonl",
            "{\"text\": \"fine\"}\n{\"text\": 7}\n",
            "bad.jsonl, line 2: ",
        ),
        ("bad.jsonl", "no JSON", "bad.jsonl, line 1: "),
        (
            "bad.jsonl",
            "{\"id\": \"one\", \"text\": \"again\"}",
            "the id \"one\" stands in ",
        ),
    ] {
        corpus.write(name, text);
        let (code, out, error) = corpus.ingest(&[]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{error}");
        assert!(
            error.starts_with("error: ") && error.contains(expected),
            "{error}"
        );
        assert_eq!(fs::read(corpus.index()).unwrap(), before);
    }
}

#[test]
fn what_cannot_be_an_index_or_a_folder_is_an_error_in_words() {
    let corpus = Corpus::new();
    fs::write(corpus.index(), "somebody else's file").unwrap();
    let (code, _, error) = corpus.ingest(&[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("corpus.index"), "{error}");
    assert_eq!(fs::read(corpus.index()).unwrap(), b"somebody else's file");
    fs::remove_file(corpus.index()).unwrap();

    corpus.ingest(&["--embedder", "hashing:32"]);
    let (code, _, error) = corpus.ingest(&["--embedder", "hashing:64"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("made with the embedder"), "{error}");

    let empty = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(["ingest", "--index"])
        .args([empty.path().join("new.index"), empty.path().to_owned()])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("holds no .txt, .md or .jsonl file"));
    assert!(names(empty.path()).is_empty());
}

#[test]
fn a_folder_without_texts_empties_an_index_only_when_told_to() {
    let corpus = Corpus::new();
    corpus.ingest(&[]);
    let before = fs::read(corpus.index()).unwrap();
    fs::remove_dir_all(corpus.texts()).unwrap();
    fs::create_dir(corpus.texts()).unwrap();
    for text in [None, Some("--- ...")] {
        if let Some(text) = text {
            corpus.write("empty.txt", text);
        }
        let (code, out, error) = corpus.ingest(&[]);
        assert_eq!((code, out.as_str()), (Some(1), ""));
        let expected = format!("{} holds no .txt", corpus.texts().display());
        assert!(
            error.contains(&expected) && error.contains("has 5 documents; --allow-empty"),
            "{error}"
        );
        assert_eq!(fs::read(corpus.index()).unwrap(), before);
    }
    fs::remove_file(corpus.texts().join("empty.txt")).unwrap();
    for deleted in [5, 0] {
        let (code, out, error) = corpus.ingest(&["--allow-empty"]);
        assert_eq!(code, Some(0), "{error}");
        let expected = format!(" 0 documents (0 new or changed, 0 unchanged, {deleted} deleted");
        assert!(out.contains(&expected), "{out}");
    }
}

#[test]
fn a_run_that_is_killed_leaves_the_index_as_it_was_and_the_next_one_finishes() {
    let corpus = Corpus::new();
    corpus.ingest(&[]);
    let before = fs::read(corpus.index()).unwrap();
    let lines =
        (0..5_000).map(|line| format!("{{\"text\": \"Line {line} says {}.\"}}\n", line * 7));
    corpus.write("more.jsonl", &lines.collect::<String>());
    let mut killed = 0;
    for polls in [0, 1_000, 20_000] {
        let mut run = corpus.command(&[]).stdout(Stdio::null()).spawn().unwrap();
        let done = (0..polls).find_map(|_| run.try_wait().unwrap());
        if done.is_some() {
            break;
        }
        run.kill().unwrap();
        if !run.wait().unwrap().success() {
            killed += 1;
            assert_eq!(fs::read(corpus.index()).unwrap(), before);
        }
    }
    assert!(killed > 0);
    let (code, out, error) = corpus.ingest(&[]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains(" 5005 documents "), "{out}");
}
