//! Builds the module and its JavaScript, for bundlers and for plain pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::build;
use crate::step::Step;
use crate::workspace::{Workspace, empty_folder};

const TARGET: &str = "wasm32-unknown-unknown";
const PACKAGE: &str = "foreword-browser";
const PROFILE: &str = "wasm-small";

/// Builds `bundler/` and `web/` in `folder`.
pub(super) fn build(workspace: &Workspace, folder: &Path) -> Result<()> {
    let module = build::module(workspace, "browser module", PACKAGE, TARGET, PROFILE)?;
    empty_folder(folder)?;
    let bindgen = "run --locked --quiet --package bindgen --";
    Step::cargo("browser glue", workspace.root(), bindgen)
        .args([&*module, folder])
        .run()?;
    for script in ["bundler/foreword_bg.js", "web/foreword.js"] {
        let script = folder.join(script);
        let text =
            fs::read_to_string(&script).with_context(|| format!("reading {}", script.display()))?;
        fs::write(&script, without_docs(&text))
            .with_context(|| format!("writing {}", script.display()))?;
    }
    Ok(())
}

/// Removes documentation (which is also in the types), other comment lines, blank lines and indentation from
/// JavaScript: a quarter of what a page would load. The glue code has no multi-line strings.
fn without_docs(text: &str) -> String {
    let mut lines = Vec::new();
    let mut is_doc = false;
    for line in text.lines().map(str::trim) {
        is_doc |= line.starts_with("/**");
        if !is_doc && !line.is_empty() && !line.starts_with("//") {
            lines.push(line);
        }
        is_doc &= !line.ends_with("*/");
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_goes_and_code_stays() {
        let text = "/** One line. */\nlet a = 1;\n\n  // Why.\n  /**\n   * Some.\n   */\n  let b = a ** 2; // stays\n";
        assert_eq!(without_docs(text), "let a = 1;\nlet b = a ** 2; // stays\n");
    }
}
