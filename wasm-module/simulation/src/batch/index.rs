//! The index of a batch in memory: each line's position in the file and its documents, but not the line itself.
//!
//! A line takes 40 bytes, and 4 more for each of its documents; a distinct document takes 16, and 32 more while the
//! file is read. So a million requests of ten documents each take about 80 MB, however long their bodies are.

use super::line::{LineError, RequestLine};
use super::orderer::BatchOrderer;
use crate::lines::Lines;
use crate::{BadLine, Request, Retrieved};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::tree::Scope;
use fxhash::FxHashMap;
use std::io::BufRead;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The lines of a batch, in the order of the file.
#[derive(Debug, Default)]
pub struct BatchIndex {
    /// Hashes of the ids; 128 bits make collisions negligible.
    ids: Vec<u128>,
    /// Offset of each line in the file, and its length in bytes.
    offsets: Vec<u64>,
    lengths: Vec<u32>,
    /// For each line, the number of its prompt's beginning, see [`Self::group`]; numbered by first occurrence.
    groups: Vec<u32>,
    /// End of each line's documents in `documents`.
    ends: Vec<u32>,
    /// Documents in rank order, as indices into `corpus`.
    documents: Vec<u32>,
    corpus: Vec<Known>,
    /// Lines, in ascending order of their ids' hashes.
    by_id: Vec<u32>,
}

/// A distinct document of the batch.
#[derive(Clone, Copy, Debug)]
struct Known {
    fingerprint: Fingerprint,
    tokens: u32,
    /// Number of lines with the document.
    holders: u32,
}

/// A bad line of a batch or of its output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number}: {reason}")]
pub struct BatchError {
    /// Number of the line, from 1.
    pub number: u64,
    /// The reason why the line is bad.
    pub reason: String,
}

/// The limits on a batch, and its accepted routes.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits<'a> {
    /// The routes that a line may request.
    pub urls: &'a [&'a str],
    /// Most requests.
    pub requests: u32,
    /// Most bytes of a line.
    pub line_bytes: u64,
}

/// Numbers of documents and of prompts' beginnings, while a file is read.
#[derive(Default)]
struct Numbers {
    documents: FxHashMap<Fingerprint, u32>,
    groups: FxHashMap<u64, u32>,
}

/// Lines without an index entry, blank or bad. Because of them, a request's index differs from its line's number.
#[derive(Default)]
struct Passed {
    /// For each run of such lines, the number of requests before it, and the number of such lines up to its end.
    runs: Vec<(usize, u64)>,
}

impl Passed {
    fn push(&mut self, requests: usize) {
        let count = self.runs.last().map_or(0, |(_, count)| *count) + 1;
        match self.runs.last_mut() {
            Some(last) if last.0 == requests => last.1 = count,
            _ => self.runs.push((requests, count)),
        }
    }

    /// Returns the number of a request's line, from 1.
    fn number(&self, request: u32) -> u64 {
        let before = self.runs.partition_point(|(at, _)| *at <= request as usize);
        let before = before.checked_sub(1).and_then(|run| self.runs.get(run));
        u64::from(request) + before.map_or(0, |(_, count)| *count) + 1
    }
}

impl BatchIndex {
    /// Reads a batch. `wrong` gets every bad line, and `progress` the bytes read so far; both decide whether reading
    /// continues. Blank lines are ignored. Without an orderer, no documents are found.
    ///
    /// # Errors
    /// Returns the reader's error.
    pub fn read(
        reader: impl BufRead,
        limits: BatchLimits<'_>,
        mut orderer: Option<&mut BatchOrderer>,
        mut wrong: impl FnMut(BatchError) -> bool,
        mut progress: impl FnMut(u64) -> bool,
    ) -> std::io::Result<Self> {
        let mut index = Self::default();
        let mut numbers = Numbers::default();
        let mut passed = Passed::default();
        let mut told = 0;
        let mut lines = Lines::within(reader, limits.line_bytes);
        loop {
            let offset = lines.bytes();
            if offset - told >= PROGRESS {
                told = offset;
                if !progress(told) {
                    return Ok(index);
                }
            }
            let number = lines.number() + 1;
            let Some(line) = lines.next()? else { break };
            let error = match line {
                Err(BadLine::TooLong { limit }) => Some(LineError::too_long(limit)),
                Err(_) => Some(LineError::too_long(0)),
                Ok(line) if line.trim_ascii().is_empty() => {
                    passed.push(index.len());
                    continue;
                }
                Ok(line) => match RequestLine::parse(line, limits.urls) {
                    Err(error) => Some(error),
                    Ok(_) if index.len() >= limits.requests as usize => {
                        let limit = limits.requests;
                        let reason = format!("the batch has more than {limit} requests");
                        wrong(BatchError { number, reason });
                        return Ok(index);
                    }
                    Ok(request) => {
                        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX);
                        let orderer = orderer.as_deref_mut();
                        index.push(offset, bytes, &request, orderer, &mut numbers);
                        None
                    }
                },
            };
            if let Some(error) = error {
                passed.push(index.len());
                let reason = error.to_string();
                if !wrong(BatchError { number, reason }) {
                    return Ok(index);
                }
            }
        }
        drop(numbers);
        index.sort();
        for pair in index.by_id.windows(2) {
            let [first, second] = *pair else { continue };
            if index.id(first) == index.id(second) {
                let first = passed.number(first);
                let twice = BatchError {
                    number: passed.number(second),
                    reason: format!("`custom_id` is that of line {first} too"),
                };
                if !wrong(twice) {
                    break;
                }
            }
        }
        Ok(index)
    }

    fn push(
        &mut self,
        offset: u64,
        bytes: u32,
        request: &RequestLine<'_>,
        orderer: Option<&mut BatchOrderer>,
        numbers: &mut Numbers,
    ) {
        let found = orderer.and_then(|orderer| orderer.find(request.body.as_bytes()));
        let mut head = Xxh3::new();
        match &found {
            Some(found) => {
                head.update(found.model.as_bytes());
                head.update(&found.scope.0.to_le_bytes());
                for (document, _) in &found.leading {
                    head.update(&document.0.to_le_bytes());
                }
            }
            None => {
                for part in request.head() {
                    head.update(&(part.len() as u64).to_le_bytes());
                    head.update(part.as_bytes());
                }
            }
        }
        let next = numbers.groups.len() as u32;
        let group = *numbers.groups.entry(head.digest()).or_insert(next);
        for (fingerprint, tokens) in found.into_iter().flat_map(|found| found.documents) {
            let next = self.corpus.len() as u32;
            let document = *numbers.documents.entry(fingerprint).or_insert(next);
            if document == next {
                self.corpus.push(Known {
                    fingerprint,
                    tokens,
                    holders: 0,
                });
            }
            if let Some(known) = self.corpus.get_mut(document as usize) {
                known.holders += 1;
            }
            self.documents.push(document);
        }
        self.ids.push(xxh3_128(request.custom_id.as_bytes()));
        self.offsets.push(offset);
        self.lengths.push(bytes);
        self.groups.push(group);
        self.ends.push(self.documents.len() as u32);
    }

    /// Ends reading: shrinks the lists, and sorts the ids for lookups.
    fn sort(&mut self) {
        self.ids.shrink_to_fit();
        self.offsets.shrink_to_fit();
        self.lengths.shrink_to_fit();
        self.groups.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.documents.shrink_to_fit();
        self.corpus.shrink_to_fit();
        let mut by_id: Vec<u32> = (0..self.len() as u32).collect();
        by_id.sort_unstable_by_key(|&line| (self.id(line), line));
        self.by_id = by_id;
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there is no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the number of distinct documents.
    #[must_use]
    pub fn distinct_documents(&self) -> usize {
        self.corpus.len()
    }

    /// Returns a line's offset in the file and its length in bytes; `None` if there is no such line.
    #[must_use]
    pub fn place(&self, line: u32) -> Option<(u64, u32)> {
        let at = line as usize;
        Some((*self.offsets.get(at)?, *self.lengths.get(at)?))
    }

    /// Returns the line with this id; `None` if there is none.
    #[must_use]
    pub fn find(&self, custom_id: &str) -> Option<u32> {
        let id = xxh3_128(custom_id.as_bytes());
        let at = self.by_id.partition_point(|&line| self.id(line) < id);
        let line = *self.by_id.get(at)?;
        (self.id(line) == id).then_some(line)
    }

    /// Returns the bytes of memory used.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        fn of<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        let lines = of(&self.ids) + of(&self.offsets) + of(&self.lengths);
        let lines = lines + of(&self.groups) + of(&self.ends) + of(&self.by_id);
        lines + of(&self.documents) + of(&self.corpus)
    }

    fn id(&self, line: u32) -> u128 {
        self.ids.get(line as usize).copied().unwrap_or_default()
    }

    /// Returns the number of a line's prompt beginning: model, text before the documents, leading favoured documents.
    pub(super) fn group(&self, line: u32) -> u32 {
        self.groups.get(line as usize).copied().unwrap_or_default()
    }

    /// Returns a line's documents as indices, best first.
    pub(super) fn numbers(&self, line: u32) -> &[u32] {
        let at = line as usize;
        let end = |at: usize| self.ends.get(at).copied().unwrap_or_default() as usize;
        let start = at.checked_sub(1).map_or(0, end);
        self.documents.get(start..end(at)).unwrap_or_default()
    }

    pub(super) fn fingerprint(&self, number: u32) -> Fingerprint {
        let known = self.corpus.get(number as usize);
        known.map_or(Fingerprint(0), |known| known.fingerprint)
    }

    pub(super) fn tokens(&self, number: u32) -> u32 {
        let known = self.corpus.get(number as usize);
        known.map_or(0, |known| known.tokens)
    }

    /// Returns the number of lines with a document.
    pub(super) fn holders(&self, number: u32) -> u32 {
        let known = self.corpus.get(number as usize);
        known.map_or(0, |known| known.holders)
    }

    /// Returns a line as a request for the planner; its scope is its group.
    pub(super) fn request(&self, line: u32) -> Request {
        let documents = self.numbers(line).iter().map(|&number| Retrieved {
            label: String::new(),
            fingerprint: self.fingerprint(number),
            tokens: self.tokens(number),
        });
        Request {
            is_ranked: true,
            scope: Scope(u64::from(self.group(line))),
            documents: documents.collect(),
        }
    }
}

/// Bytes between two calls of `progress`, which take some milliseconds.
const PROGRESS: u64 = 1 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::batch::line::URLS;
    use crate::{BatchOrder, workloads};

    pub(crate) fn line(id: &str, documents: &[u64]) -> String {
        let documents: Vec<String> = documents
            .iter()
            .map(|document| format!(r#"{{"id":"d{document}","text":"text of {document}"}}"#))
            .collect();
        format!(
            "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"Why {id}?\"}}],\"documents\":[{}]}}}}\n",
            documents.join(",")
        )
    }

    pub(crate) const LIMITS: BatchLimits<'static> = BatchLimits {
        urls: &URLS,
        requests: 1_000_000,
        line_bytes: 1_000,
    };

    pub(crate) fn read(text: &str, limits: BatchLimits<'_>) -> (BatchIndex, Vec<String>) {
        let mut orderer = BatchOrderer::new(&crate::placing_freely(), BatchOrder::Plan).unwrap();
        let mut errors = Vec::new();
        let wrong = |error: BatchError| {
            errors.push(error.to_string());
            true
        };
        let index = BatchIndex::read(text.as_bytes(), limits, Some(&mut orderer), wrong, |_| true);
        (index.unwrap(), errors)
    }

    #[test]
    fn lines_are_found_by_their_ids_where_they_stand() {
        let text = [line("a", &[1, 2]), "\n".into(), line("b", &[2])].concat();
        let (index, errors) = read(&text, LIMITS);
        assert_eq!(errors, [""; 0]);
        assert_eq!((index.len(), index.distinct_documents()), (2, 2));
        let found = index.find("b").unwrap();
        let (offset, bytes) = index.place(found).unwrap();
        let (start, end) = (offset as usize, offset as usize + bytes as usize);
        assert_eq!(&text[start..end], line("b", &[2]));
        assert_eq!((index.find("c"), index.place(2)), (None, None));
    }

    #[test]
    fn every_wrong_line_is_named_and_so_is_the_first_of_two_with_one_id() {
        let text = [
            line("a", &[1]),
            "\n\n{}\n{}\n".into(),
            line("b", &[1]),
            line("a", &[2]),
        ]
        .concat();
        let (_, errors) = read(&text, LIMITS);
        assert_eq!(
            errors,
            [
                "line 4: `custom_id` must be a string that is not empty",
                "line 5: `custom_id` must be a string that is not empty",
                "line 7: `custom_id` is that of line 1 too",
            ]
        );
        let few = BatchLimits {
            requests: 1,
            ..LIMITS
        };
        let (_, errors) = read(&[line("a", &[]), line("b", &[])].concat(), few);
        assert_eq!(errors, ["line 2: the batch has more than 1 requests"]);
        let short = BatchLimits {
            line_bytes: line("a", &[]).len() as u64,
            ..LIMITS
        };
        let (index, errors) = read(&[line("a", &[]), line("b", &[1])].concat(), short);
        let limit = short.line_bytes;
        assert_eq!(
            errors,
            [format!("line 2: the line has more than {limit} bytes")]
        );
        assert_eq!(index.len(), 1);
    }

    #[test]
    fn reading_ends_when_nobody_waits_for_it() {
        let lines: String = (0..30_000).map(|id| line(&id.to_string(), &[])).collect();
        let mut seen = Vec::new();
        let progress = |bytes| {
            seen.push(bytes);
            seen.len() < 2
        };
        let index = BatchIndex::read(lines.as_bytes(), LIMITS, None, |_| true, progress).unwrap();
        assert!((PROGRESS..PROGRESS + 1_000).contains(&seen[0]));
        assert_eq!(seen.len(), 2);
        assert!(index.len() < 30_000);
    }

    #[test]
    fn a_line_takes_40_bytes_and_4_for_each_document() {
        let trace = workloads::zipf_topics(1, 3_000, 5_000, 10);
        let number = |at: usize| trace[at].documents.iter().map(|d| d.fingerprint.0);
        let text: String = (0..trace.len())
            .map(|at| line(&at.to_string(), &number(at).collect::<Vec<_>>()))
            .collect();
        let (index, errors) = read(&text, LIMITS);
        assert!(errors.is_empty());
        let documents: usize = trace.iter().map(|request| request.documents.len()).sum();
        let expected = 40 * trace.len() + 4 * documents + 16 * index.distinct_documents();
        assert_eq!(index.bytes(), expected);
    }
}
