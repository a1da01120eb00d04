//! The record of measurements (`benches/README.md`, `benches/results` and what `docs` has of it): every command that it gives parses at this
//! commit. Nothing is measured here.
//!
//! | command | checked |
//! | --- | --- |
//! | `foreword …`, `cargo xtask …` | by the program's own parser, with `--help` behind the arguments |
//! | `cargo bench … -- NAME WORDS` | the bench exists, and its source knows the words |
//! | `cargo test --test NAME FILTER` | the test exists, and has a function of that name |
//! | Python and shell scripts, `foreword rehearse` | the file exists, and its source knows the options |
//!
//! Words in capitals are placeholders, and brackets mark what may be left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use foreword_tests::artifacts;

#[test]
fn every_command_of_the_record_parses() {
    let repository = artifacts::repository();
    let mut files = sources(&repository.join("benches/results"), "md").unwrap();
    let others = ["benches/README.md", "docs/answers.md", "docs/ledger.md"];
    files.extend(others.map(|file| repository.join(file)));
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in files {
        for command in commands(&std::fs::read_to_string(&file).unwrap()) {
            match check(&command) {
                Ok(is_known) => checked += usize::from(is_known),
                Err(error) => wrong.push(format!("{}: `{command}`: {error:#}", file.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 90, "only {checked} commands were found");
}

#[test]
fn a_command_that_no_longer_parses_is_found() {
    for command in [
        "foreword serve --no-such-option",
        "foreword no-such-command",
        "foreword measure --parts no-such-part",
        "cargo xtask no-such-task",
        "cargo bench -p foreword-benches -- no_such_bench",
        "cargo bench -p foreword-benches -- tiers no-such-table",
        "cargo bench -p foreword-benches --bench tiers",
        "cargo bench --workspace -- tiers",
        "cargo test -p foreword-tests --test no_such_test",
        "cargo test -p foreword --test http no_such_function",
        "python3 benches/no_such_script.py",
        "FOREWORD_XQUAD=FILE python3 benches/hostile/hostile.py --no-such-option",
        "foreword rehearse MODULE --no-such-option LOG",
    ] {
        assert!(check(command).is_err(), "{command}");
    }
}

/// Returns the lines of fenced blocks, and all inline code.
fn commands(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut prose = String::new();
    let mut fenced = None::<String>;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            match fenced.take() {
                Some(block) => found.extend(block.lines().map(str::to_owned)),
                None => fenced = Some(String::new()),
            }
        } else if let Some(block) = &mut fenced {
            match line.strip_suffix('\\') {
                Some(begun) => block.push_str(begun),
                None => block.extend([line, "\n"]),
            }
        } else {
            prose.extend([line, "\n"]);
        }
    }
    // Inline code ends within its paragraph, so a stray mark spoils no more than that.
    for paragraph in prose.split("\n\n") {
        found.extend(paragraph.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    found
        .into_iter()
        .flat_map(|code| code.split("&&").map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Returns whether the command is of a kind that is checked.
fn check(command: &str) -> Result<bool> {
    let plain = command.replace("\\|", " ").replace(['[', ']', '|'], " ");
    let is_variable = |word: &&str| {
        word.split_once('=')
            .is_some_and(|(name, _)| is_capital(name))
    };
    let words: Vec<&str> = (plain.split_whitespace())
        .skip_while(|word| *word == "$" || is_variable(word))
        .take_while(|word| *word != "#")
        .filter(|word| !word.contains('…'))
        .map(|word| if word == "N" { "1" } else { word })
        .collect();
    let Some((program, arguments)) = words.split_first() else {
        return Ok(false);
    };
    // What stands behind `--` is another program's.
    let end = arguments.iter().position(|word| *word == "--");
    let (own, passed_on) = arguments.split_at(end.unwrap_or(arguments.len()));
    let script = words.iter().find(|word| word.ends_with(".py"));
    match (*program, own.first().copied()) {
        ("cargo", Some("bench")) => bench(own, passed_on)?,
        ("cargo", Some("test")) => test(own, passed_on)?,
        ("cargo", Some("xtask")) => {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            helps(Command::new(cargo).args(own))?;
        }
        ("foreword", Some("rehearse")) | ("target/debug/foreword-rehearse", _) => {
            options(Path::new("host/rehearse/src/run/mod.rs"), own)?;
        }
        ("foreword", _) => helps(Command::new(artifacts::host_binary("dev")?).args(own))?,
        (program, _) if program.ends_with(".sh") => options(Path::new(program), own)?,
        _ if script.is_some() => options(Path::new(script.unwrap_or(&"")), arguments)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn is_capital(word: &str) -> bool {
    !word.is_empty() && (word.bytes()).all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

/// Has the program parse its arguments and print its help.
fn helps(command: &mut Command) -> Result<()> {
    let output = command
        .arg("--help")
        .current_dir(artifacts::repository())
        .output()?;
    let [help, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(
        output.status.success() && help.contains("Usage: "),
        "{error}"
    );
    Ok(())
}

/// Checks that the file's source names the options.
fn options(file: &Path, words: &[&str]) -> Result<()> {
    let source = std::fs::read_to_string(artifacts::repository().join(file))
        .with_context(|| format!("no {}", file.display()))?;
    for word in words
        .iter()
        .filter(|word| word.starts_with("--") && word.len() > 2)
    {
        let name = word.split('=').next().unwrap_or(word);
        // A field of clap's arguments, or the option itself.
        let field = format!("    {}: ", name[2..].replace('-', "_"));
        let is_known = source.contains(name) || source.contains(&field);
        ensure!(is_known, "{} has no {name}", file.display());
    }
    Ok(())
}

/// Checks that the bench is one of the program's, and that its source names the tables, settings and options behind it.
fn bench(own: &[&str], passed_on: &[&str]) -> Result<()> {
    let program = value(own, "--bench").or_else(|| value(own, "-p"));
    let is_ours = matches!(program, Some("benches" | "foreword-benches"));
    ensure!(is_ours, "that runs other programs than the benches");
    let [_, name, words @ ..] = passed_on else {
        // It lists the benches.
        return Ok(());
    };
    let folder = artifacts::repository().join("benches/benches");
    let table = std::fs::read_to_string(folder.join("main.rs"))?;
    let is_listed = table.contains(&format!("\n    {name}: \""));
    ensure!(is_listed, "there is no bench {name}");
    let source = read(&folder, name)?;
    for word in words {
        let name = word.split('=').next().unwrap_or(word);
        let is_a_value = is_capital(name) || name.parse::<f64>().is_ok();
        let is_known = is_a_value || source.contains(&format!("\"{name}\""));
        ensure!(is_known, "the bench has no {name}");
    }
    Ok(())
}

/// Checks that the test is one, and that a function's or a module's name has what is filtered for.
fn test(own: &[&str], passed_on: &[&str]) -> Result<()> {
    let Some(name) = value(own, "--test") else {
        return Ok(());
    };
    let root = artifacts::repository();
    let mut folders = vec![root.join("tests/tests")];
    for parent in ["host", "wasm-module"] {
        let crates = std::fs::read_dir(root.join(parent))?;
        folders.extend(
            crates
                .map(|each| Ok(each?.path().join("tests")))
                .collect::<Result<Vec<_>>>()?,
        );
    }
    let Some(source) = folders.iter().find_map(|folder| read(folder, name).ok()) else {
        bail!("there is no test {name}");
    };
    let mut words = own.iter().skip(1).chain(passed_on);
    while let Some(word) = words.next() {
        match *word {
            "-p" | "--test" | "--features" | "--profile" => drop(words.next()),
            option if option.starts_with('-') => {}
            filter => {
                let name = filter.rsplit("::").next().unwrap_or(filter);
                ensure!(source.contains(name), "no test has {name} in its name");
            }
        }
    }
    Ok(())
}

/// Returns the word behind the option.
fn value<'w>(words: &[&'w str], option: &str) -> Option<&'w str> {
    words
        .iter()
        .skip_while(|word| **word != option)
        .nth(1)
        .copied()
}

/// Reads a target's source: its root, which is a file or a folder of this name, and the modules that the root names.
fn read(folder: &Path, name: &str) -> Result<String> {
    let file = folder.join(name).with_extension("rs");
    if !file.is_file() {
        return read_folder(&folder.join(name));
    }
    let mut source = std::fs::read_to_string(file)?;
    let modules = source
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let modules: Vec<String> = modules.map(str::to_owned).collect();
    for module in modules {
        // A module with a path of its own is a helper.
        let file = folder.join(&module).with_extension("rs");
        if file.is_file() {
            source += &std::fs::read_to_string(file)?;
        } else if let Ok(folder) = read_folder(&folder.join(&module)) {
            source += &folder;
        }
    }
    Ok(source)
}

/// Reads all sources of a folder.
fn read_folder(folder: &Path) -> Result<String> {
    let files =
        sources(folder, "rs").with_context(|| format!("there is no {}", folder.display()))?;
    let texts = files.iter().map(std::fs::read_to_string);
    Ok(texts.collect::<Result<_, _>>()?)
}

/// Returns the files of a folder that end so.
fn sources(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    Ok(files)
}
