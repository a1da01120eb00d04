//! `foreword rehearse`: runs the program `foreword-rehearse`, as git and cargo run theirs.
//!
//! It is a program of its own because it holds a compiler for WebAssembly, which no server needs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "foreword-rehearse";

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// What `foreword-rehearse` is given, as it stands
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Takes this process's place; comes back only where that fails.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let (program, looked) = program();
    let error = Command::new(&program).args(arguments.arguments).exec();
    eprintln!("error: cannot run {}: {error}", program.display());
    if error.kind() == std::io::ErrorKind::NotFound {
        eprintln!(
            "`foreword rehearse` is a program of its own, looked for {looked}on the path; in Foreword's repository\n  cargo build --release -p foreword-rehearse\nbuilds it"
        );
    }
    ExitCode::FAILURE
}

/// The program beside this one, else the one on the path; and in words, where it was looked for before the path.
fn program() -> (PathBuf, String) {
    let folder = std::env::current_exe();
    let folder = folder.ok().and_then(|path| Some(path.parent()?.to_owned()));
    match folder {
        Some(folder) if folder.join(PROGRAM).is_file() => (folder.join(PROGRAM), String::new()),
        Some(folder) => (
            PathBuf::from(PROGRAM),
            format!("in {} and ", folder.display()),
        ),
        None => (PathBuf::from(PROGRAM), String::new()),
    }
}
