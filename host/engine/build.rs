//! Embeds the kernels that `cargo xtask kernels` has compiled from exactly these sources. Without them, the host
//! compiles the kernels when it first uses a device.

use std::path::{Path, PathBuf};
use std::{env, fs};

include!("kernels/sources.rs");

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where we are"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    let folder = root.join("kernels");
    let mut text = String::from("pub(super) const SOURCES: &[(&str, &str)] = &[\n");
    let sources = sources(&folder).expect("the kernels can be read");
    for (name, _) in &sources {
        let path = folder.join(name);
        text += &format!("    ({name:?}, include_str!({path:?})),\n");
    }
    let hash = hash(&sources);
    text += &format!("];\npub(super) const HASH: u64 = {hash:#018x};\n");
    text += "pub(super) const MODULES: &[(&str, &[u8])] = &[\n";
    for architecture in ARCHITECTURES {
        let path = folder.join("built").join(module_name(architecture, hash));
        if path.is_file() {
            text += &format!("    ({architecture:?}, include_bytes!({path:?})),\n");
        }
    }
    text += "];\n";
    fs::write(out.join("kernels.rs"), text).expect("cargo's folder can be written");
}
