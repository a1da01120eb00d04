//! What the benches share.

pub mod simulated;
pub mod xquad;

use foreword_ordering::simulation::workload;

/// The documents' numbers in a trace of [Zipf topics](workload::zipf_topics).
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Vec<Vec<u64>> {
    workload::zipf_topics(seed, requests, documents, k)
        .iter()
        .map(|request| request.documents.iter().map(|d| d.fingerprint.0).collect())
        .collect()
}

/// Which of a bench's tables its command line asks for: those that it names, or all where it names none.
#[derive(Debug)]
pub struct Tables(Vec<String>);

impl Tables {
    /// Of this process. What begins with `-` is Cargo's, which passes `--bench`.
    pub fn asked_for() -> Self {
        let words = std::env::args().skip(1);
        Self(words.filter(|word| !word.starts_with('-')).collect())
    }

    /// Whether the table of that name is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|table| table == name)
    }
}
