// The kernels' sources, for programs that compile or embed them: included by `build.rs` and by xtask.

/// Architectures that kernels are compiled for. Machine code (`sm`) runs on later devices of the same major version,
/// except `sm_90a`. Drivers compile PTX (`compute`) for devices of later major versions, such as Blackwell's 10 and 12.
const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90", "sm_90a", "compute_90"];

/// The file that includes all the others.
#[allow(dead_code, reason = "one of the two that include this file compiles")]
const ROOT: &str = "kernels.cu";

/// Returns the names and texts of the device's source files, sorted by name.
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

/// Returns FNV-1a over all names and texts: artifacts of other sources are not used.
fn hash(sources: &[(String, String)]) -> u64 {
    let bytes = sources.iter().flat_map(|(name, text)| name.bytes().chain([0]).chain(text.bytes()).chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the file name of a compiled module.
fn module_name(architecture: &str, hash: u64) -> String {
    let ending = if architecture.starts_with("compute") { "ptx" } else { "cubin" };
    format!("{architecture}-{hash:016x}.{ending}")
}
