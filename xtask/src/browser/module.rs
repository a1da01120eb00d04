//! The module and the JavaScript around it, for bundlers and for plain pages.

use std::path::Path;

use anyhow::Result;

use super::fresh;
use crate::step::Step;
use crate::workspace::Workspace;

const TARGET: &str = "wasm32-unknown-unknown";
const PROFILE: &str = "browser";

/// Builds into `folder`: `bundler/` and `web/`.
pub(super) fn build(workspace: &Workspace, folder: &Path) -> Result<()> {
    let arguments = [
        "build",
        "--locked",
        "--profile",
        PROFILE,
        "--target",
        TARGET,
        "--package",
        "foreword-browser",
    ];
    Step::cargo("browser module", workspace.root(), &arguments).run()?;
    fresh(folder)?;
    let module = workspace.artifacts_for(TARGET, PROFILE);
    let module = module.join("foreword_browser.wasm");
    let (module, folder) = (module.to_string_lossy(), folder.to_string_lossy());
    let arguments = [
        "run",
        "--locked",
        "--quiet",
        "--package",
        "bindgen",
        "--",
        &*module,
        &*folder,
    ];
    Step::cargo("browser glue", workspace.root(), &arguments).run()
}
