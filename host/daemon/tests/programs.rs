//! Tests that `foreword rehearse` and `foreword ext-proc` run the program next to `foreword`, or say how to build it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs the tests one at a time: a program written by one cannot run while the other's new child still has the file
/// open for writing.
fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of `foreword` in its own folder, without other programs.
fn alone() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("foreword");
    fs::copy(env!("CARGO_BIN_EXE_foreword"), &program).unwrap();
    (folder, program)
}

/// Subcommands and their programs.
const PROGRAMS: [(&str, &str); 2] = [
    ("rehearse", "foreword-rehearse"),
    ("ext-proc", "foreword-gateway"),
];

fn run(program: &PathBuf, subcommand: &str) -> Output {
    Command::new(program)
        .args([subcommand, "MODULE", "--config", "FILE", "--help", "LOG"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap()
}

#[test]
fn the_program_beside_it_gets_the_arguments_and_gives_the_exit_code() {
    let _turn = in_turn();
    for (subcommand, name) in PROGRAMS {
        let (folder, program) = alone();
        let beside = folder.path().join(name);
        fs::write(&beside, "#!/bin/sh\necho \"$@\"\nexit 3\n").unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        let output = run(&program, subcommand);
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, b"MODULE --config FILE --help LOG\n");
    }
}

#[test]
fn without_the_program_it_says_where_it_looked_and_how_to_build_it() {
    let _turn = in_turn();
    let (folder, program) = alone();
    for (subcommand, name) in PROGRAMS {
        let output = run(&program, subcommand);
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        let folder = folder.path().to_str().unwrap();
        for words in [folder, &format!("cargo build --release -p {name}")] {
            assert!(told.contains(words), "{told}");
        }
    }
}
