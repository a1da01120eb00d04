//! What a reading of somebody else's bytes may cost, asserted by count: time is no assertion.

#[path = "../../wasm-module/ordering/tests/hostile/mod.rs"]
mod shapes;

pub use shapes::requests;
pub(crate) use shapes::{BODIES, DECISIONS, TEXTS, body, numbered};

use foreword_ordering::path::{Locator, SentPath};
use foreword_ordering::work::{Work, counted};
use foreword_ordering::{Config, parse, question, salted};

/// Asserts that every reading of a body looks at its bytes a bounded number of times.
pub(crate) fn is_linear(config: &Config, body: &[u8]) {
    let within = |what: &str, work: Work, bytes: usize| {
        if let Err(work) = work.within(bytes) {
            panic!("{what} of {bytes} bytes took {work:?}");
        }
    };
    let (parsed, work) = counted(|| parse(body, config));
    within("reading", work, body.len());
    if let Ok(parsed) = parsed {
        let asked = counted(|| (parsed.place_of_retrieval(), question(&parsed).is_ok()));
        within("the question", asked.1, body.len());
    }
    let (_, work) = counted(|| salted(body, "ours"));
    within("a salt", work, body.len());
}

/// Asserts the same of the search for a path's documents in a prompt.
pub(crate) fn is_located_linearly(config: &Config, path: &SentPath, body: &[u8], prompt: &str) {
    let locator = Locator::new(config.clone());
    let (_, work) = counted(|| locator.locate(path, body, prompt).is_ok());
    let bytes = body.len() + prompt.len();
    assert_eq!(work.within(bytes), Ok(()), "locating in {bytes} bytes");
}
