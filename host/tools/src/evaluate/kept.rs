//! A file of results (likelihoods, judgements) that depend only on the request that asks for them; the request's hash
//! is the key.
//!
//! ```text
//!   bodies ──▶ those whose hash the file has not ──▶ workers ──▶ {"of": "9f…", …} a line
//! ```
//!
//! A resumed run sends only the requests that are left, and equal ones are sent once. A last line that a crash
//! truncated is dropped. Only its owner can read the file.

use anyhow::{Context, Result, bail};
use foreword_ordering::document::Fingerprint;
use foreword_report::files::{append_line, open_appended, whole_lines};
use fxhash::FxHashMap;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;

/// A file of results (likelihoods or judgements), each with the hash of its request as key, and the file's content in
/// memory.
pub(super) struct ResultFile<T> {
    file: File,
    known: FxHashMap<String, T>,
}

/// A line of a [`ResultFile`].
#[derive(Serialize, Deserialize)]
struct Line<T> {
    /// Hash of the request to which the result belongs, as [`key`] returns it.
    of: String,
    #[serde(flatten)]
    result: T,
}

/// Returns the key of a request in a [`ResultFile`]: its hash in hexadecimal digits.
pub(super) fn key(asked: &[u8]) -> String {
    format!("{:016x}", Fingerprint::of(&[asked]).0)
}

impl<T: Serialize + DeserializeOwned + Clone + Send> ResultFile<T> {
    /// Opens the file and reads its results; creates the file if it is missing.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used or is damaged.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = || format!("cannot use {}", path.display());
        let file = open_appended(path).with_context(failed)?;
        let text = whole_lines(&file).with_context(failed)?;
        let mut known = FxHashMap::default();
        for (line, number) in text.split_inclusive(|&byte| byte == b'\n').zip(1..) {
            let Ok(line) = serde_json::from_slice::<Line<T>>(line) else {
                bail!("{}:{number} is damaged", path.display());
            };
            known.insert(line.of, line.result);
        }
        Ok(Self { file, known })
    }

    /// Returns the stored result with this key; `None` if there is none.
    pub(super) fn get(&self, key: &str) -> Option<&T> {
        self.known.get(key)
    }

    /// Calls `ask` once for each key in `open` that has no stored result, `concurrency` of them at a time, and stores
    /// the results. If `ask` returns `None`, nothing is stored for the key.
    ///
    /// # Errors
    /// Returns an error of `ask` or of the file, after which no key is asked; results stored before stay in the file.
    pub(super) fn ask<Q: Send>(
        &mut self,
        mut open: Vec<(String, Q)>,
        concurrency: usize,
        bar: &ProgressBar,
        ask: impl Fn(&Q) -> Result<Option<T>> + Sync,
    ) -> Result<()> {
        open.retain(|(key, _)| !self.known.contains_key(key));
        open.sort_by(|one, other| one.0.cmp(&other.0));
        open.dedup_by(|one, other| one.0 == other.0);
        bar.set_length(open.len() as u64);
        let workers = ThreadPoolBuilder::new().num_threads(concurrency.max(1));
        let kept = Mutex::new(self);
        workers.build()?.install(|| {
            let open = open.into_par_iter().with_max_len(1);
            open.try_for_each(|(key, question)| {
                if let Some(result) = ask(&question)? {
                    kept.lock().keep(key, result)?;
                }
                bar.inc(1);
                Ok(())
            })
        })
    }

    fn keep(&mut self, of: String, result: T) -> Result<()> {
        let line = Line { of, result };
        let text = serde_json::to_string(&line)? + "\n";
        append_line(&self.file, text.as_bytes()).context("cannot write a result")?;
        self.known.insert(line.of, line.result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Length {
        bytes: Option<usize>,
    }

    #[test]
    fn what_the_file_has_is_not_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let bar = ProgressBar::hidden();
        let asked = Mutex::new(Vec::new());
        let ask = |words: &[&str]| {
            let open = words.iter().map(|word| (key(word.as_bytes()), *word));
            let mut kept = ResultFile::<Length>::open(&path).unwrap();
            let outcome = kept.ask(open.collect(), 2, &bar, |word| {
                asked.lock().push((*word).to_owned());
                match word.len() {
                    0 => Ok(None),
                    4 => bail!("four"),
                    bytes => Ok(Some(Length { bytes: Some(bytes) })),
                }
            });
            let of = |word: &str| kept.get(&key(word.as_bytes())).cloned();
            (outcome.is_ok(), words.iter().map(|word| of(word)).collect())
        };
        let length = |bytes| Some(Length { bytes: Some(bytes) });
        let found: (bool, Vec<_>) = ask(&["a", "ab", "a", ""]);
        assert_eq!(found, (true, vec![length(1), length(2), length(1), None]));
        assert_eq!(asked.lock().len(), 3);
        let found = ask(&["a", "abc", ""]);
        assert_eq!(found, (true, vec![length(1), length(3), None]));
        assert_eq!(asked.lock().len(), 5);
        assert!(!ask(&["four"]).0);
    }

    #[test]
    fn a_torn_line_is_dropped_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let line = "{\"of\":\"01\",\"bytes\":7}\n";
        std::fs::write(&path, format!("{line}{{\"of\"")).unwrap();
        let kept = ResultFile::<Length>::open(&path).unwrap();
        assert_eq!(kept.get("01"), Some(&Length { bytes: Some(7) }));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line);
        std::fs::write(&path, "x\n").unwrap();
        let error = ResultFile::<Length>::open(&path).err().unwrap().to_string();
        assert!(error.contains("kept.jsonl:1 is damaged"), "{error}");
    }
}
