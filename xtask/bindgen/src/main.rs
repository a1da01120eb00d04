//! Writes the JavaScript, the types and the final module for cargo's build of `foreword-browser`.
//!
//! ```text
//! bindgen MODULE.wasm FOLDER      FOLDER/bundler   `import` of the module, as bundlers understand it
//!                                 FOLDER/web       `fetch` of the module, for a plain <script type="module">
//! ```
//!
//! wasm-bindgen's tool must have exactly the version of its macro. The lockfile ensures that, because both are
//! dependencies of this workspace. This is a separate program because only builds for the browser need it.

use anyhow::{Context, Result, bail};
use std::path::Path;
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [module, folder] = arguments.as_slice() else {
        bail!("usage: bindgen MODULE.wasm FOLDER");
    };
    let folder = Path::new(folder);
    write(module.as_ref(), &folder.join("bundler"), |bindgen| {
        bindgen.bundler(true)
    })?;
    write(module.as_ref(), &folder.join("web"), |bindgen| {
        bindgen.web(true)
    })
}

fn write(
    module: &Path,
    folder: &Path,
    target: impl Fn(&mut Bindgen) -> Result<&mut Bindgen>,
) -> Result<()> {
    let mut bindgen = Bindgen::new();
    bindgen
        .input_path(module)
        .out_name("foreword")
        .typescript(true)
        // A page finds the module beside its JavaScript.
        .omit_default_module_path(false)
        .remove_name_section(true)
        .remove_producers_section(true);
    target(&mut bindgen)?
        .generate(folder)
        .with_context(|| format!("{} into {}", module.display(), folder.display()))
}
