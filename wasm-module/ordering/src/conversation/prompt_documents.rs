//! The documents in a request's prompt so far, found by their blocks (documents with their tags) and by their labels.
//!
//! Documents are the same only if their blocks are: a fingerprint only selects the block to compare with. So no
//! collision, deliberate or not, can hide a document.

use super::passages::{Passages, opening_words};
use crate::body::NumberedBlock;
use crate::document::Fingerprint;
use fxhash::FxHashMap;

/// The documents in a request's prompt so far, to which location hints may refer.
#[derive(Debug, Default)]
pub(crate) struct PromptDocuments<'a> {
    /// For each document, the turn in which it first occurs, and its block (the document with its tags).
    blocks: FxHashMap<Fingerprint, (u32, &'a str)>,
    /// For each label, the document that has it; `None` if several documents have the label.
    labels: FxHashMap<&'a str, Option<Fingerprint>>,
    /// For each document that its client numbers, by a hash of its block without the number: the turn, the question's
    /// number and the document's name at its first occurrence, and its block.
    numbered: FxHashMap<Fingerprint, (u32, u32, String, NumberedBlock<'a>)>,
    /// For each question and name (number or opening words), the numbered document that the name means there; `None` if
    /// several documents of the question have the name, as all chunks of an attached file do.
    names: FxHashMap<(u32, String), Option<NumberedBlock<'a>>>,
    /// Passages that the client joined without separators (Dify).
    passages: Passages<'a>,
}

impl<'a> PromptDocuments<'a> {
    /// Adds a document that is sent in `turn`; `block` is `None` if location hints of later turns must not refer to the
    /// document.
    pub(crate) fn add(
        &mut self,
        turn: u32,
        fingerprint: Fingerprint,
        label: &'a str,
        block: Option<&'a str>,
    ) {
        if let Some(block) = block {
            self.blocks.entry(fingerprint).or_insert((turn, block));
        }
        self.labels
            .entry(label)
            .and_modify(|named| {
                if *named != Some(fingerprint) {
                    *named = None;
                }
            })
            .or_insert(Some(fingerprint));
    }

    /// Adds a document, numbered by its client, that is sent in `turn` with question number `question` of the chat, as
    /// the document number `place` of the question, counted from 1. It is named by its own number or, without one, by
    /// `place`.
    pub(crate) fn add_numbered(
        &mut self,
        turn: u32,
        question: u32,
        place: usize,
        block: NumberedBlock<'a>,
    ) {
        if let Some(text) = block.passages() {
            self.passages.add(turn, question, text);
        }
        let number = match block.number() {
            "" => format!("document {place}"),
            number => number.to_owned(),
        };
        for name in [Some(number.clone()), opening_words(block.words())] {
            let Some(name) = name else { continue };
            let named = self.names.entry((question, name));
            let named = named.or_insert_with(|| Some(block.clone()));
            if named.as_ref().is_some_and(|known| !known.is(&block)) {
                *named = None;
            }
        }
        let known = self.numbered.entry(block.identity());
        known.or_insert((turn, question, number, block));
    }

    /// Returns a block of passages joined by the client, in which each run of passages that an earlier turn has is
    /// replaced by a location hint. `refer` makes the hint from a name for these passages. `None` if the block does not
    /// consist of such passages or would not be shorter.
    pub(crate) fn without_known(
        &self,
        turn: u32,
        block: &NumberedBlock<'_>,
        refer: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        let words = self
            .passages
            .without_known(turn, block.passages()?, refer)?;
        block.with_words(&words)
    }

    /// Returns the number of the earlier question that has the document, and a name that is unique among its documents:
    /// the document's number, or else its opening words. `None` if no turn before `turn` has the document, or no name
    /// is unique.
    pub(crate) fn place_of(&self, turn: u32, block: &NumberedBlock<'_>) -> Option<(u32, String)> {
        let (shown, question, number, known) = self.numbered.get(&block.identity())?;
        if *shown >= turn || !known.is(block) {
            return None;
        }
        let names = [Some(number.clone()), opening_words(known.words())];
        let name = names.into_iter().flatten().find(|name| {
            let named = self.names.get(&(*question, name.clone()));
            named.is_some_and(Option::is_some)
        })?;
        Some((*question, name))
    }

    /// Returns whether a turn before `turn` has a document with this fingerprint; [`PromptDocuments::holds`] also
    /// compares the blocks.
    pub(crate) fn may_hold(&self, turn: u32, fingerprint: Fingerprint) -> bool {
        self.blocks
            .get(&fingerprint)
            .is_some_and(|(shown, _)| *shown < turn)
    }

    /// Returns whether a turn before `turn` has a document with this fingerprint and exactly this block.
    pub(crate) fn holds(&self, turn: u32, fingerprint: Fingerprint, block: &str) -> bool {
        self.blocks
            .get(&fingerprint)
            .is_some_and(|(shown, text)| *shown < turn && *text == block)
    }

    /// Returns whether the label belongs to the document with this fingerprint and to no other one in the prompt so
    /// far.
    pub(crate) fn names(&self, label: &str, fingerprint: Fingerprint) -> bool {
        self.labels.get(label) == Some(&Some(fingerprint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Fingerprint = Fingerprint(1);
    const B: Fingerprint = Fingerprint(2);

    #[test]
    fn a_document_stands_in_an_earlier_turn_with_its_very_bytes() {
        let mut shown = PromptDocuments::default();
        shown.add(1, A, "a", Some("text"));
        assert!(shown.holds(2, A, "text") && shown.may_hold(2, A));
        assert!(!shown.holds(1, A, "text") && !shown.may_hold(1, A));
        assert!(!shown.holds(2, A, "another text of the same fingerprint"));
        assert!(!shown.holds(2, B, "text"));
    }

    #[test]
    fn the_first_place_counts() {
        let mut shown = PromptDocuments::default();
        shown.add(0, A, "a", Some("text"));
        shown.add(1, A, "a", Some("text"));
        assert!(shown.holds(1, A, "text"));
    }

    #[test]
    fn a_label_of_two_documents_names_neither() {
        let mut shown = PromptDocuments::default();
        shown.add(0, A, "1", Some("x"));
        assert!(shown.names("1", A) && !shown.names("1", B) && !shown.names("2", A));
        shown.add(0, A, "1", Some("x"));
        assert!(shown.names("1", A));
        shown.add(1, B, "1", None);
        assert!(!shown.names("1", A) && !shown.names("1", B));
        shown.add(2, A, "1", Some("x"));
        assert!(!shown.names("1", A));
    }
}
