//! What the benches share.

pub mod embedded;
pub mod scenarios;
pub mod simulated;
pub mod variant;
pub mod xquad;

use foreword_simulation::workload;

/// The documents' numbers in a trace of [Zipf topics](workload::zipf_topics).
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Vec<Vec<u64>> {
    workload::zipf_topics(seed, requests, documents, k)
        .iter()
        .map(|request| request.documents.iter().map(|d| d.fingerprint.0).collect())
        .collect()
}

/// A thousand chat requests of about 16 KB, each with 15 tagged documents before its question, from 5,000 documents by
/// Zipf's law.
#[must_use]
pub fn chats() -> Vec<String> {
    const DOCUMENTS: usize = 15;
    const TEXT_BYTES: usize = 16_000 / DOCUMENTS - 40;
    const WORDS: &str =
        "retrieved text of a plausible length, with some punctuation and a number like 42. ";
    let lists = zipf_topics(1, 1_000, 5_000, DOCUMENTS);
    let chat = |list: &Vec<u64>| {
        let documents: String = (list.iter())
            .map(|document| {
                let mut text = format!("{document}: ");
                text.extend(WORDS.chars().cycle().take(TEXT_BYTES - text.len()));
                format!(r#"<document id=\"{document}\">{text}</document>\n"#)
            })
            .collect();
        format!(
            r#"{{"model": "m", "messages": [{{"role": "system", "content": "Answer briefly."}}, {{"role": "user", "content": "{documents}What does it say?"}}], "max_tokens": 64, "stream": false}}"#
        )
    };
    lists.iter().map(chat).collect()
}

/// Which of a bench's tables its command line asks for: those that it names, or all where it names none.
#[derive(Debug)]
pub struct Tables(Vec<String>);

impl Tables {
    /// Returns the tables named in this process's arguments. Arguments that begin with `-` are Cargo's, which passes
    /// `--bench`.
    pub fn asked_for() -> Self {
        let words = std::env::args().skip(1);
        Self(words.filter(|word| !word.starts_with('-')).collect())
    }

    /// Returns whether the table `name` is to be printed: it is named, or none is.
    pub fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|table| table == name)
    }
}

/// The number that a bench's command line gives as `name=…`, if it does.
///
/// # Panics
/// What it gives is no such number.
pub fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let mut words = std::env::args();
    let value =
        words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))?;
    let number = value.parse().ok();
    Some(number.unwrap_or_else(|| panic!("{name}={value} is no number")))
}
