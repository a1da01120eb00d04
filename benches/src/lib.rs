//! What the benches share.

pub mod embedded;
pub mod scenarios;
pub mod simulated;
pub mod variant;
#[path = "../../wasm-module/simulation/tests/support/workloads.rs"]
pub mod workloads;
pub mod xquad;

use std::str::FromStr;

use anyhow::{Result, ensure};
use foreword_ordering::policy::Place;
use serde_json::{Value, json};

/// The documents' numbers in a trace of [Zipf topics](workloads::zipf_topics).
#[must_use]
pub fn zipf_topics(seed: u64, requests: usize, documents: u64, k: usize) -> Vec<Vec<u64>> {
    workloads::zipf_topics(seed, requests, documents, k)
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

/// The command line of a bench: `cargo bench -p foreword-benches -- NAME [WORDS…]`.
#[derive(Debug)]
pub struct Arguments {
    /// Whether the bench is to measure. `cargo bench` passes `--bench`, and `cargo test` does not; without it, one small
    /// round shows that a bench runs.
    pub benching: bool,
    /// The first word, which names the bench.
    pub name: Option<String>,
    /// The words behind the name.
    pub words: Vec<String>,
}

impl Arguments {
    /// Reads a program's arguments, without its path. Cargo's `--bench` is no word, wherever it stands.
    pub fn of(arguments: impl Iterator<Item = String>) -> Self {
        let (cargos, words): (Vec<_>, Vec<_>) = arguments.partition(|word| word == "--bench");
        let mut words = words.into_iter();
        Self {
            benching: !cargos.is_empty(),
            name: words.next(),
            words: words.collect(),
        }
    }

    /// Returns an error if a bound does not hold. One small round without `--bench` proves no bound.
    ///
    /// # Errors
    /// Returns an error if the bench measures and `holds` is false.
    pub fn require(&self, holds: bool) -> Result<()> {
        ensure!(holds || !self.benching, "what must hold does not");
        Ok(())
    }

    /// Returns whether `word` is one of the words.
    #[must_use]
    pub fn says(&self, word: &str) -> bool {
        self.words.iter().any(|given| given == word)
    }

    /// Returns whether the table `name` is to be printed: it is named, or all words are settings, `name=VALUE`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.says(name) || self.words.iter().all(|word| word.contains('='))
    }

    /// Returns the value of a setting, `name=VALUE`, or of an option: the word behind it.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        let mut words = self.words.iter().enumerate();
        words.find_map(|(at, word)| match word.strip_prefix(name)? {
            "" => self.words.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    }

    /// Returns the gateway's `ordering.rank` whose place is the [value](Self::value) of the setting `name` (`free`, `last`,
    /// `first` or `ends`); without it `auto`, as shipped.
    #[must_use]
    pub fn rank(&self, name: &str) -> Value {
        let place = self.value(name).unwrap_or("auto");
        let documents = Place::by_name(place).map_or(1, Place::least_documents);
        json!({"place": place, "documents": documents})
    }

    /// Returns the [value](Self::value) of `name` as a number.
    ///
    /// # Panics
    /// Panics if it is no such number.
    #[must_use]
    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        let value = self.value(name)?;
        let number = value.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{name} takes a number, not {value:?}")))
    }
}

/// Returns the bytes of memory that this process holds, where the system says so (Linux).
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    Some(process_status("VmRSS:")? * 1024)
}

/// Returns a number of this process from `/proc/self/status`: `Threads:`, or one in KiB such as `VmRSS:`. `None` where
/// the system has no such file or line.
#[must_use]
pub fn process_status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &str) -> Arguments {
        Arguments::of(words.split(' ').map(str::to_owned))
    }

    #[test]
    fn arguments_are_a_name_tables_settings_and_options() {
        let given_all = given("tiers times k=8 --rounds 3 --bench");
        assert!(given_all.benching);
        assert_eq!(given_all.name.as_deref(), Some("tiers"));
        assert!(given_all.has("times") && !given_all.has("first"));
        assert_eq!(given_all.number("k"), Some(8));
        assert_eq!(given_all.number("--rounds"), Some(3));
        assert_eq!(given_all.value("--round"), None);

        let no_table = given("tiers k=8");
        assert!(!no_table.benching && no_table.has("times"));
    }
}
