//! Inputs that several targets begin with: the golden bodies, of every format one or more.

use std::path::Path;

/// The requests of every golden case, in their order.
pub(crate) fn golden() -> Vec<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wasm-module/ordering/tests/golden");
    let cases =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut cases: Vec<_> = cases.filter_map(|case| Some(case.ok()?.path())).collect();
    cases.sort();
    let requests = |case: &Path| {
        let bodies =
            (1..).map_while(|number| std::fs::read(case.join(format!("{number}.in.json"))).ok());
        bodies.collect()
    };
    cases.iter().map(|case| requests(case)).collect()
}
