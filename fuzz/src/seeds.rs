//! Inputs that several targets begin with: the golden bodies, of every format one or more.

use std::path::Path;

/// The requests of every golden case, in their order.
pub(crate) fn golden() -> Vec<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wasm-module/ordering/tests/golden");
    let files =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    files.sort();
    let mut cases: Vec<(String, Vec<Vec<u8>>)> = Vec::new();
    for path in files {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some((case, number)) = name
            .strip_suffix(".in.json")
            .and_then(|name| name.rsplit_once('.'))
        else {
            continue;
        };
        let body = std::fs::read(&path).unwrap_or_default();
        match cases.last_mut() {
            Some((last, requests)) if last == case && number != "1" => requests.push(body),
            _ => cases.push((case.to_owned(), vec![body])),
        }
    }
    cases.into_iter().map(|(_, requests)| requests).collect()
}
