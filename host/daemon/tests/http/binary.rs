//! The binary: its arguments, its output, its exit codes.

use std::process::{Command, Output};

fn foreword(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(arguments)
        .output()
        .expect("the binary runs")
}

#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = foreword(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(error.contains(word), "{word} is missing in {error}");
    }
}

#[test]
fn the_version_is_told() {
    let output = foreword(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("foreword {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn bad_arguments_exit_with_2() {
    refused(&["serve"], 2, &["--model"]);
    refused(
        &["serve", "--model", "x", "--page-tokens", "17"],
        2,
        &["--page-tokens", "17", "multiple of 16"],
    );
    refused(
        &["serve", "--model", "x", "--max-running", "0"],
        2,
        &["--max-running", "1..=4096"],
    );
    refused(
        &[
            "serve",
            "--model",
            "x",
            "--kv-tokens",
            "16",
            "--page-tokens",
            "32",
        ],
        2,
        &["--kv-tokens 16 is less than one page: --page-tokens is 32"],
    );
}

#[test]
fn a_folder_without_a_checkpoint_exits_with_1_and_the_chain_of_causes() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    refused(
        &["serve", "--model", path, "--listen", "127.0.0.1:0"],
        1,
        &["cannot load the model in", path, "config.json"],
    );
}

#[test]
fn a_taken_address_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(
        &["serve", "--model", "x", "--listen", &address],
        1,
        &["cannot listen on", &address],
    );
}

#[test]
fn a_missing_file_of_keys_exits_with_1() {
    refused(
        &[
            "serve",
            "--model",
            "x",
            "--listen",
            "127.0.0.1:0",
            "--api-key-file",
            "no/such/file",
        ],
        1,
        &["cannot read the API keys in no/such/file"],
    );
}
