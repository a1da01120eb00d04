//! Produces the JavaScript, the types and the final module from cargo's build of `foreword-browser`.
//!
//! ```text
//! bindgen MODULE.wasm FOLDER      FOLDER/bundler   `import` of the module, as bundlers understand it
//!                                 FOLDER/web       `fetch` of the module, for a plain <script type="module">
//! ```
//!
//! wasm-bindgen's tool must have exactly the version of its macro. The lockfile ensures that, because both are
//! dependencies of this workspace. This is a separate program because only browser builds need it.
//!
//! wasm-bindgen names a module's imported functions with 16 digits of a hash, which does not compress. They get short
//! names here, in the module and in its JavaScript: half a percent of what a page loads.

use anyhow::{Context, Result, bail};
use std::fs;
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
        // A page finds the module next to its JavaScript.
        .omit_default_module_path(false)
        .remove_name_section(true)
        .remove_producers_section(true);
    let failed = || format!("{} into {}", module.display(), folder.display());
    let mut output = target(&mut bindgen)?
        .generate_output()
        .with_context(failed)?;
    // Only tools that rewrite the module read it.
    let _ = output.wasm_mut().customs.remove_raw("target_features");
    let mut hashed: Vec<(String, String)> = Vec::new();
    for import in output.wasm_mut().imports.iter_mut() {
        if has_hash(&import.name) {
            let name = format!("${}", hashed.len());
            let long = std::mem::replace(&mut import.name, name.clone());
            hashed.push((long, name));
        }
    }
    output.emit(folder).with_context(failed)?;
    for script in ["foreword.js", "foreword_bg.js"] {
        let script = folder.join(script);
        if script.is_file() {
            let text = fs::read_to_string(&script).with_context(failed)?;
            fs::write(&script, renamed(text, &hashed)).with_context(failed)?;
        }
    }
    Ok(())
}

/// Returns whether a name ends with a hash of its function.
fn has_hash(name: &str) -> bool {
    let hash = name.rsplit('_').next().unwrap_or_default();
    name.starts_with("__wb")
        && hash.len() == 16
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a script with these names replaced. Each name ends with a hash, so none is part of another.
fn renamed(script: String, names: &[(String, String)]) -> String {
    (names.iter()).fold(script, |script, (long, short)| script.replace(long, short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_hash_are_replaced_and_others_stay() {
        assert!(has_hash("__wbg_new_5e360d2ff7b9e1c3"));
        assert!(!has_hash("__wbindgen_externrefs"));
        assert!(!has_hash("__wbg_orderer_free"));
        let names = [("__wbg_new_5e360d2ff7b9e1c3".to_owned(), "$0".to_owned())];
        let script = "__wbg_new_5e360d2ff7b9e1c3: function() {}, __wbg_new: 1";
        assert_eq!(
            renamed(script.into(), &names),
            "$0: function() {}, __wbg_new: 1"
        );
    }
}
