//! One target under libFuzzer, or, built without it, run on files.
//!
//! ```text
//!   FOREWORD_FUZZ=bodies foreword-fuzz CORPUS [-OPTION=…]…    with the feature `libfuzzer`: see `cargo xtask fuzz`
//!   FOREWORD_FUZZ=bodies foreword-fuzz FILE…                  without: what a finding does, in an ordinary build
//! ```

#![cfg_attr(feature = "libfuzzer", no_main)]

use foreword_fuzz::{TARGETS, Target};

/// The target that the environment names.
fn target() -> Target {
    let name = std::env::var("FOREWORD_FUZZ").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!(
            "FOREWORD_FUZZ is {name:?}, it must be one of {}",
            names.join(", ")
        )
    })
}

#[cfg(feature = "libfuzzer")]
mod under_libfuzzer {
    use super::{Target, target};
    use libfuzzer_sys::fuzz_target;
    use std::path::Path;
    use std::sync::OnceLock;

    static TARGET: OnceLock<Target> = OnceLock::new();

    /// Puts the target's seeds into the corpus, the first folder among the arguments, before libFuzzer reads it.
    fn begin() {
        let target = TARGET.get_or_init(target);
        let mut arguments = std::env::args().skip(1);
        let Some(corpus) = arguments.find(|argument| Path::new(argument).is_dir()) else {
            return;
        };
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&corpus).join(format!("seed-{number:03}"));
            std::fs::write(&path, seed)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    fuzz_target!(init: begin(), |bytes: &[u8]| {
        (TARGET.get_or_init(target).run)(bytes);
    });
}

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::io::Result<()> {
    let target = target();
    for path in std::env::args().skip(1) {
        (target.run)(&std::fs::read(&path)?);
        println!("{path}: {} takes it", target.name);
    }
    Ok(())
}
