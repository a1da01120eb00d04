//! Subcommands that are separate programs, as in git and cargo, because of their size: `rehearse` contains a
//! WebAssembly compiler, and `ext-proc` all of Envoy's protobuf messages.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// A subcommand that is a separate program, installed next to this one.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    subcommand: &'static str,
    name: &'static str,
}

/// The program of `foreword rehearse`.
pub(crate) const REHEARSE: Program = Program {
    subcommand: "rehearse",
    name: "foreword-rehearse",
};

/// The program of `foreword ext-proc`.
pub(crate) const EXT_PROC: Program = Program {
    subcommand: "ext-proc",
    name: "foreword-gateway",
};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// What the subcommand's own program is given, as it stands
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

impl Program {
    /// Replaces this process by the program. Returns only if that fails.
    pub(crate) fn run(self, arguments: Arguments) -> ExitCode {
        let Self { subcommand, name } = self;
        let (program, looked) = self.path();
        let error = Command::new(&program).args(arguments.arguments).exec();
        eprintln!("error: cannot run {}: {error}", program.display());
        if error.kind() == std::io::ErrorKind::NotFound {
            eprintln!(
                "`foreword {subcommand}` is a program of its own, looked for {looked}on the path; in Foreword's repository\n  cargo build --release -p {name}\nbuilds it"
            );
        }
        ExitCode::FAILURE
    }

    /// Returns the path of the program next to this one, or its name alone if it is not there. The text names the
    /// folder that was searched, for an error.
    fn path(self) -> (PathBuf, String) {
        let folder = std::env::current_exe();
        let folder = folder.ok().and_then(|path| Some(path.parent()?.to_owned()));
        match folder {
            Some(folder) if folder.join(self.name).is_file() => {
                (folder.join(self.name), String::new())
            }
            Some(folder) => (
                PathBuf::from(self.name),
                format!("in {} and ", folder.display()),
            ),
            None => (PathBuf::from(self.name), String::new()),
        }
    }
}
