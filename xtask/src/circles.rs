//! The step `circles`: checks that no files of a crate use each other in a circle.
//!
//! ```text
//!   src/**/*.rs ─▶ source: uses, paths, definitions ─▶ graph: file ─▶ files whose items it names ─▶ circles
//! ```
//!
//! A name counts as a use of the file that defines it, through all re-exports; a re-export by itself is no use. Tests
//! are excluded, and so are a file's uses of the `mod.rs` of its own folders: these declare what the files inside
//! share, and combine them. Macro expansions and method calls are not analysed.

mod graph;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, output};
use graph::Graph;
use source::Source;

/// A module's path within its crate; that of `lib.rs` is empty.
type Module = Vec<String>;

/// Returns an error that names the files if files of a crate use each other in a circle.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut list = Command::new("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .arg("*.rs")
        .current_dir(root);
    let listed = output(&mut list)?;
    let mut crates: BTreeMap<&str, BTreeMap<Module, Source>> = BTreeMap::new();
    // A library comes before the program of its package, which has another root.
    for path in listed.lines() {
        let Some((package, file)) = path.split_once("/src/") else {
            continue;
        };
        let Some(module) = module(file).filter(|_| root.join(path).is_file()) else {
            continue;
        };
        let source = read(&root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let sources = crates.entry(package).or_default();
        sources.entry(module).or_insert(source);
    }
    let mut told = String::new();
    for (package, sources) in crates {
        let graph = Graph::of(&sources);
        for circle in graph.circles() {
            told += &format!("\n{package}:");
            for (from, to, name) in graph.edges_within(&circle) {
                let shown = |module: &[String]| format!("crate::{}", module.join("::"));
                told += &format!("\n  {} uses {} ({name})", shown(from), shown(to));
            }
        }
    }
    ensure!(told.is_empty(), "files use each other in a circle:{told}");
    Ok(())
}

/// Returns the module of a file below `src`; `None` for tests.
fn module(file: &str) -> Option<Module> {
    let mut parts: Module = file
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    if parts.iter().any(|part| part == "tests") {
        return None;
    }
    let names_folder = |last: &mut String| ["mod", "lib", "main"].contains(&last.as_str());
    parts.pop_if(names_folder);
    Some(parts)
}

fn read(path: &Path) -> Result<Source> {
    Source::parse(&fs::read_to_string(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|(file, text)| {
            let module = module(file).unwrap();
            (module, Source::parse(text).unwrap())
        });
        let sources = sources.collect();
        let graph = Graph::of(&sources);
        let circles = graph.circles().into_iter();
        circles
            .map(|circle| {
                let names = circle.iter().map(|module| module.join("::"));
                names.collect::<Vec<_>>().join(" ")
            })
            .collect()
    }

    #[test]
    fn files_that_name_each_others_items_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::{One, Two as Other}; pub struct A;"),
            ("b.rs", "pub struct One; fn f() { vec![super::c::g()]; }"),
            ("c.rs", "use super::a; pub fn g() -> a::A { todo!() }"),
        ];
        assert_eq!(circles(&files), ["a b c"]);
        assert_eq!(circles(&files[..3]), [""; 0]);
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it() {
        let circle = [
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a/mod.rs", "mod inner; pub use inner::*;"),
            ("a/inner.rs", "pub struct A; use crate::b::B;"),
            ("b.rs", "pub struct B; fn f(a: crate::A) {}"),
        ];
        assert_eq!(circles(&circle), ["a::inner b"]);
        let mut chain = circle;
        chain[3].1 = "pub struct B; use crate::a; fn f(c: a::C) {}";
        chain[1].1 = "mod inner; pub use inner::A; pub struct C;";
        assert_eq!(circles(&chain), [""; 0]);
    }

    #[test]
    fn what_a_folders_file_declares_is_its_parts_too_and_tests_use_anything() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod part; pub struct A(part::Part);"),
            (
                "a/part.rs",
                "pub struct Part; use super::A; use crate::b::B;",
            ),
            (
                "b.rs",
                "pub struct B; #[cfg(test)] use crate::a::A; #[cfg(test)] mod tests { use crate::a::Part; } #[cfg(all(test, unix))] fn f() { crate::a::part::g() }",
            ),
            ("b/tests.rs", "use crate::a::A;"),
        ];
        let files = files.into_iter().filter(|(file, _)| module(file).is_some());
        let mut files: Vec<_> = files.collect();
        assert_eq!(circles(&files), [""; 0]);
        // The folder's own file may use the files that use it.
        files[3].1 = "pub struct B; use crate::a::A;";
        assert_eq!(circles(&files), ["a a::part b"]);
    }
}
