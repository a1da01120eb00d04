// What belongs to the kernels, for whoever compiles or embeds them: included by `build.rs` and by xtask.

/// What kernels are compiled for: each runs on later devices of the same major version, but for `sm_90a`.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_90a"];

/// The file that holds all the others.
#[allow(dead_code, reason = "one of the two that include this file compiles")]
const ROOT: &str = "kernels.cu";

/// Names and texts of what is compiled for a device, by name.
fn sources(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|end| end == "cu" || end == "cuh");
        if let Some(name) = path.file_name().and_then(|name| name.to_str())
            && is_source
            && !name.starts_with("emulator")
        {
            sources.push((name.to_owned(), fs::read_to_string(&path)?));
        }
    }
    sources.sort();
    Ok(sources)
}

/// FNV-1a over all of it: an artifact of other sources is not used.
fn hash(sources: &[(String, String)]) -> u64 {
    let bytes = sources.iter().flat_map(|(name, text)| name.bytes().chain([0]).chain(text.bytes()).chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The file of a compiled module.
fn cubin_name(architecture: &str, hash: u64) -> String {
    format!("{architecture}-{hash:016x}.cubin")
}
