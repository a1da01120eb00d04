//! A step is a named command that is printed, run and timed. If it fails, the error is the command line that repeats
//! it.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

/// A command with a name, which is printed, run and timed.
pub(crate) struct Step {
    name: String,
    /// The command line as a user would type it, in the repository's root.
    line: String,
    command: Command,
}

impl Step {
    /// Returns a step that runs a cargo command. Its arguments are separated by spaces; see also [`Step::args`].
    pub(crate) fn cargo(name: &str, root: &Path, arguments: &str) -> Self {
        Self::new(name, root, "cargo", cargo(), arguments)
    }

    /// Returns a step that runs a program on the path or with a full path, with arguments as in [`Step::cargo`].
    pub(crate) fn program(
        name: &str,
        root: &Path,
        program: impl AsRef<Path>,
        arguments: &str,
    ) -> Self {
        let program = program.as_ref();
        let shown = program.strip_prefix(root).unwrap_or(program);
        let shown = shown.display().to_string();
        Self::new(name, root, &shown, Command::new(program), arguments)
    }

    fn new(name: &str, root: &Path, shown: &str, mut command: Command, arguments: &str) -> Self {
        command.current_dir(root).stdin(Stdio::null());
        let step = Self {
            name: name.to_owned(),
            line: shown.to_owned(),
            command,
        };
        step.args(arguments.split_ascii_whitespace())
    }

    /// Adds arguments, which may contain spaces.
    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        for argument in arguments {
            self.command.arg(&argument);
            self.line.push(' ');
            self.line += &quoted(&argument.as_ref().to_string_lossy());
        }
        self
    }

    /// Returns the step's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sets an environment variable, which is also printed.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self.line = format!("{name}={} {}", quoted(value), self.line);
        self
    }

    /// Makes the compiler follow cargo's settings alone: these variables replace the flags in them.
    pub(crate) fn without_rustflags(mut self) -> Self {
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            self.command.env_remove(name);
        }
        self
    }

    /// Runs the command; its output goes to stderr.
    ///
    /// # Errors
    /// Returns an error when the command cannot be started or fails; it contains the line that repeats the command.
    pub(crate) fn run(mut self) -> Result<()> {
        eprintln!("▸ {}: {}", self.name, self.line);
        let started = Instant::now();
        let status = self
            .command
            .stdout(io::stderr())
            .status()
            .with_context(|| format!("step `{}` cannot be started: {}", self.name, self.line))?;
        if !status.success() {
            bail!(
                "step `{}` failed ({status}); repeat it with\n  {}",
                self.name,
                self.line
            );
        }
        eprintln!("✓ {} ({})", self.name, seconds(started.elapsed()));
        Ok(())
    }
}

/// Formats a duration: `0.4 s`, `12.0 s`, `3 min 05 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}

/// Quotes an argument for a POSIX shell.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@,+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_names_itself_and_the_line_that_repeats_it() {
        let step = Step::program("doomed", Path::new("/"), Path::new("sh"), "-c")
            .args(["exit 3"])
            .env("MARK", "a b");
        let error = step.run().unwrap_err().to_string();
        assert!(
            error.contains("`doomed`") && error.contains("exit status: 3"),
            "{error}"
        );
        assert!(error.ends_with("MARK='a b' sh -c 'exit 3'"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let step = Step::program(
            "missing",
            Path::new("/"),
            Path::new("no-such-program-here"),
            "",
        );
        assert!(format!("{:#}", step.run().unwrap_err()).contains("no-such-program-here"));
    }

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
    }
}
