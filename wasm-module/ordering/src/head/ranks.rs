//! Moves documents' numbers and scores out of their blocks into a sentence after the documents.
//!
//! ```text
//!   original      <source id="1" score="0.9">A</source> <source id="2" score="0.7">B</source>
//!   rebuilt       <source id="482137">A</source> <source id="118209">B</source>
//!                 Cite documents by these numbers: 482137 as 1, 118209 as 2.
//!                 Search results: 482137 score="0.9"; 118209 score="0.7".
//! ```
//!
//! So a document has the same bytes when another question finds it at another position with another score. Numbers are
//! replaced if a group's documents are numbered in order, from 0 or 1. Each becomes the document's **key**: six digits
//! derived from the rest of the block, valid wherever a number is expected. The result depends only on the message
//! itself, so a chat's earlier messages are replayed unchanged.

use super::config::RawHeadDocuments;
use super::report::{Change, ChangeKind};
use crate::body::edit::replaced;
use crate::body::{Group, GroupLayout, Parsed, Ranks, Role, Source};
use crate::hint::is_name;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The changes that remove numbers and scores from a group of adjacent documents. Ranges are of the client's body.
#[derive(Debug, Default)]
pub(super) struct Unranked<'a> {
    /// Ranges of the body and the text that replaces each, sorted.
    pub(super) edits: Vec<(Range<usize>, Cow<'a, str>)>,
    /// The sentences to write after the documents, escaped as in a JSON string. They say by which of the client's
    /// numbers to cite each document, and give each document's scores.
    pub(super) words: String,
    /// Number of documents whose number is replaced by one derived from the text.
    pub(super) numbered: u32,
    /// Number of scores, ranks and distances that move after the documents.
    pub(super) scored: u32,
    pub(super) changes: Vec<Change>,
}

/// A document of a group, with the number and scores that the client wrote into it.
struct Ranked<'a> {
    start: usize,
    block: &'a str,
    label: &'a str,
    ranks: Ranks<'a>,
    /// The number, derived from the rest of the document's block (with its tags), that replaces the client's number;
    /// `None` if the numbers of the group's documents are not replaced.
    key: Option<String>,
}

/// Returns the changes that replace numbers in a group of documents and move scores behind it, in a message with this
/// role; `None` if there are none. `max_bytes` limits the sentences that are written behind the documents. O(documents
/// · (opening tag + first lines)), and O(bytes) if the documents are numbered.
pub(super) fn unranked<'a>(
    wanted: RawHeadDocuments,
    max_bytes: usize,
    parsed: &Parsed<'a>,
    role: Role,
    group: &Group<'a>,
) -> Option<Unranked<'a>> {
    // Neither a tool's result nor a group without a place for the sentences is changed.
    let GroupLayout::Slots {
        all_filled: false, ..
    } = group.place
    else {
        return None;
    };
    if !matches!(role, Role::User | Role::System) || group.hint.is_none() {
        return None;
    }
    // Most documents have neither numbers nor scores.
    if !group.found.iter().any(|found| Ranks::of(found).is_some()) {
        return None;
    }
    let documents = group.found.iter().map(|found| {
        let Source::Whole(block) = found.source else {
            return None;
        };
        let ranks = Ranks::of(found);
        Some(Ranked {
            start: crate::body::offset_in(parsed.text, block),
            block,
            label: found.label,
            ranks: ranks.unwrap_or_default(),
            key: None,
        })
    });
    let mut documents: Vec<Ranked<'a>> = documents.collect::<Option<_>>()?;
    let mut made = Unranked::default();
    let is_numbered = wanted.numbers && are_numbered(&documents) && number(&mut documents);
    let cites = is_numbered.then(|| citations(&documents));
    let cites = cites.filter(|words| words.len() <= max_bytes);
    if cites.is_none() {
        (documents.iter_mut()).for_each(|document| document.key = None);
    }
    let room = max_bytes - cites.as_ref().map_or(0, String::len);
    let scores = wanted.scores.then(|| scores(&documents)).flatten();
    let scores = scores.filter(|words| words.len() <= room);
    for document in &documents {
        if let Some(key) = &document.key {
            for range in &document.ranks.numbers {
                made.edit(document, range, key.clone().into(), ChangeKind::Number);
            }
            made.numbered += 1;
        }
        for (cut, _) in document.ranks.scores.iter().filter(|_| scores.is_some()) {
            made.edit(document, cut, "".into(), ChangeKind::Score);
            made.scored += 1;
        }
    }
    crate::sort::sort_by_key(&mut made.edits, |(range, _)| range.start);
    let words = [cites, scores].into_iter().flatten();
    made.words = words.collect::<Vec<_>>().join(r"\n");
    (!made.edits.is_empty()).then_some(made)
}

impl<'a> Unranked<'a> {
    fn edit(
        &mut self,
        document: &Ranked<'_>,
        range: &Range<usize>,
        with: Cow<'a, str>,
        kind: ChangeKind,
    ) {
        let range = document.start + range.start..document.start + range.end;
        self.changes.push(Change::new(kind, "", range.clone()));
        self.edits.push((range, with));
    }

    /// Returns the text of a range of the body with the changes inside this range applied.
    pub(super) fn written(&self, body: &str, range: Range<usize>) -> String {
        let (start, end) = (range.start, range.end);
        let within = (self.edits.iter()).filter(|(edit, _)| start <= edit.start && edit.end <= end);
        let edits = within.map(|(edit, with)| (edit.clone(), &**with));
        replaced(body, range.clone(), edits)
    }
}

/// Returns whether the client numbers all documents consecutively from 0 or 1.
fn are_numbered(documents: &[Ranked<'_>]) -> bool {
    let numbers = (documents.iter()).map(|document| document.ranks.number.parse::<usize>().ok());
    let numbers: Option<Vec<usize>> = numbers.collect();
    numbers.is_some_and(|numbers| {
        let first = numbers.first().copied().unwrap_or(usize::MAX);
        first <= 1 && numbers.into_iter().eq(first..first + documents.len())
    })
}

/// Sets `key` of each document to the number derived from its text; returns false if two different documents would have
/// the same one.
fn number(documents: &mut [Ranked<'_>]) -> bool {
    let mut keys: Vec<(u64, String)> = Vec::with_capacity(documents.len());
    for document in documents.iter_mut() {
        let rest = apart_from_ranks(document);
        let hash = xxh3_64_with_seed(rest.as_bytes(), 23);
        let key = KEYS.start + hash % (KEYS.end - KEYS.start);
        document.key = Some(key.to_string());
        keys.push((key, rest));
    }
    crate::sort::sort_by_key(&mut keys, |(key, _)| *key);
    keys.windows(2).all(|pair| match pair {
        // The same document twice has the same key.
        [(key, one), (next, other)] => key != next || one == other,
        _ => true,
    })
}

/// Returns a document's block (the document with its tags) without the number and the scores that the client wrote into
/// it.
fn apart_from_ranks(document: &Ranked<'_>) -> String {
    let ranks = &document.ranks;
    let mut gone: Vec<Range<usize>> = ranks.numbers.to_vec();
    gone.extend(ranks.scores.iter().map(|(cut, _)| cut.clone()));
    crate::sort::sort_by_key(&mut gone, |range| range.start);
    let gone = gone.into_iter().map(|range| (range, ""));
    replaced(document.block, 0..document.block.len(), gone)
}

/// Returns the sentence that says by which original number to cite the document with each new number.
fn citations(documents: &[Ranked<'_>]) -> String {
    let mut words = String::from("Cite documents by these numbers: ");
    for (at, document) in documents.iter().enumerate() {
        let separator = if at > 0 { ", " } else { "" };
        let key = document.key.as_deref().unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(words, "{separator}{key} as {}", document.ranks.number);
    }
    words.push('.');
    words
}

/// Returns the sentence with the scores of all documents, which is written behind them; `None` if there are none, or if
/// a document with a score has no name that is safe to quote.
fn scores(documents: &[Ranked<'_>]) -> Option<String> {
    let mut words = String::from("Search results: ");
    let mut count = 0;
    for document in documents {
        let label = document.key.as_deref().unwrap_or(document.label);
        for (nth, (_, score)) in document.ranks.scores.iter().enumerate() {
            if nth == 0 {
                if !is_name(label, ";") {
                    return None;
                }
                words.push_str(if count > 0 { "; " } else { "" });
                words.push_str(label);
            }
            words.push_str(if nth > 0 { ", " } else { " " });
            words.push_str(score);
            count += 1;
        }
    }
    words.push('.');
    (count > 0).then_some(words)
}

/// Range of the numbers that replace clients' numbers: six digits, more than a client's number or a year has.
const KEYS: Range<u64> = 100_000..1_000_000;
