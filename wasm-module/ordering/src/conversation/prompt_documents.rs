//! The documents in a request's prompt so far, found by their blocks (documents' texts with their tags) and by their
//! labels (the names in tags).
//!
//! Documents are the same only if their blocks are: a fingerprint only selects the block to compare with. So no
//! collision, deliberate or not, can hide a document.

use super::passages::{Passages, opening_words};
use crate::body::NumberedBlock;
use crate::document::Fingerprint;
use fxhash::FxHashMap;

/// The documents in a request's prompt so far, to which location hints (references to an earlier copy) may refer.
#[derive(Debug, Default)]
pub(crate) struct PromptDocuments<'a> {
    /// For each document, the turn of the chat in which it first occurs, and its block (the document's text with its
    /// tags).
    blocks: FxHashMap<Fingerprint, (u32, &'a str)>,
    /// For each label (the name or id that the client gives a document), the document that has it; `None` if several
    /// documents have the label.
    labels: FxHashMap<&'a str, Option<Fingerprint>>,
    /// For each document that its client numbers, by a hash of its block without the number: the turn of its first
    /// occurrence, the question's number and the document's number or name there, and the block (the document with its
    /// tags).
    numbered: FxHashMap<Fingerprint, (u32, u32, String, NumberedBlock<'a>)>,
    /// For the number of a question and a name (a document's number or opening words): the document of that question
    /// that has the name; `None` if several documents of the question have it, as all chunks of an attached file do.
    names: FxHashMap<(u32, String), Option<NumberedBlock<'a>>>,
    /// Texts of passages (retrieved texts) that the client joined without separators, as Dify does.
    passages: Passages<'a>,
}

impl<'a> PromptDocuments<'a> {
    /// Adds a document that is sent in the chat's turn `turn`; `block` is its text with tags, or `None` if no location
    /// hint (reference to an earlier copy) of a later turn may refer to the document.
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

    /// Adds a document that its client numbers. It is sent in the chat's turn `turn` with question number `question`,
    /// as that question's document number `place`, counted from 1. It is named by its own number or, if the block has
    /// none, by `place`. If it is not `is_whole`, a location hint stands there instead, to which no hint of a later turn
    /// refers.
    pub(crate) fn add_numbered(
        &mut self,
        (turn, question, place): (u32, u32, usize),
        block: NumberedBlock<'a>,
        is_whole: bool,
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
        if is_whole {
            let known = self.numbered.entry(block.identity());
            known.or_insert((turn, question, number, block));
        }
    }

    /// Returns the text of a block of passages (retrieved texts joined by the client), in which each run of lines that
    /// a turn before `turn` has too is replaced by a location hint (a reference to that copy). `refer` makes the hint
    /// from a name for these lines. `None` if the block does not consist of such passages, or if no hint would be
    /// shorter.
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

    /// Returns the reference by which a later turn can point to an earlier copy of this document: the number of the
    /// earlier question that has it, and a name that is unique among that question's documents (the document's number
    /// there, or else its opening words). `None` if no turn before `turn` has the document, or no name is unique.
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

    /// Returns whether a turn before `turn` has a document with this fingerprint. Its text may still be another one;
    /// [`PromptDocuments::holds`] compares that too.
    pub(crate) fn may_hold(&self, turn: u32, fingerprint: Fingerprint) -> bool {
        self.blocks
            .get(&fingerprint)
            .is_some_and(|(shown, _)| *shown < turn)
    }

    /// Returns whether a turn before `turn` has a document with this fingerprint and exactly this block (text with
    /// tags).
    pub(crate) fn holds(&self, turn: u32, fingerprint: Fingerprint, block: &str) -> bool {
        self.blocks
            .get(&fingerprint)
            .is_some_and(|(shown, text)| *shown < turn && *text == block)
    }

    /// Returns whether the label (the name or id that the client gives a document) belongs to the document with this
    /// fingerprint and to no other one in the prompt so far.
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
