//! Whole bodies, in and out, byte for byte: what models are told is read in a diff before it changes.
//!
//! `tests/golden/NAME/N.in.json` is the Nth request of one client, `NAME/N.out.json` what is sent for it,
//! `NAME/config.json` the configuration (absent: the defaults). `UPDATE_GOLDEN=1 cargo test -p foreword-ordering --test
//! ordering golden` writes the outputs anew.

use foreword_ordering::{Config, Orderer, Tenant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[test]
fn bodies_become_what_the_golden_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    let cases = cases(&folder);
    assert!(cases.len() >= 6, "{} holds the cases", folder.display());
    for (name, requests) in cases {
        let config = folder.join(&name).join("config.json");
        let config = std::fs::read(config).unwrap_or_default();
        let mut orderer = Orderer::new(Config::from_json(&config).unwrap());
        for (number, request) in (1..).zip(requests) {
            assert_eq!(
                request,
                folder.join(&name).join(format!("{number}.in.json")),
                "requests are numbered from 1, without gaps"
            );
            let body = std::fs::read(&request).unwrap();
            let sent = orderer
                .rewrite(Tenant::default(), &body)
                .unwrap()
                .body
                .unwrap_or(body);
            let path = folder.join(&name).join(format!("{number}.out.json"));
            if update {
                std::fs::write(&path, &sent).unwrap();
            }
            let expected = std::fs::read(&path).unwrap_or_default();
            if sent != expected {
                let sent = String::from_utf8_lossy(&sent);
                wrong.push(format!("{} should be:\n{sent}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The requests of every case, in their order.
fn cases(folder: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut cases: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for case in std::fs::read_dir(folder).unwrap() {
        let case = case.unwrap().path();
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        let files = std::fs::read_dir(case).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let requests = files.filter(|file| file.to_string_lossy().ends_with(".in.json"));
        cases.insert(name, requests.collect());
    }
    for requests in cases.values_mut() {
        requests.sort();
    }
    cases
}
