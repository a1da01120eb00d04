//! Numbered documents in a build without the head: none is known as that.

use super::tags::Span;
use super::text::Text;
use crate::document::Fingerprint;

/// There is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {}

/// There is none.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "there is none to be read")]
pub(crate) struct NumberedBlock<'a> {
    pub(super) whole: &'a str,
    pub(super) numbered: Numbered,
}

impl Numbered {
    pub(super) fn all(_: &Text<'_>, spans: &[Span]) -> Vec<Option<Self>> {
        vec![None; spans.len()]
    }
}

impl NumberedBlock<'_> {
    pub(crate) fn name(&self) -> String {
        match self.numbered {}
    }

    pub(crate) fn identity(&self) -> Fingerprint {
        match self.numbered {}
    }

    pub(crate) fn is(&self, _: &NumberedBlock<'_>) -> bool {
        match self.numbered {}
    }

    pub(crate) fn words(&self) -> &'static str {
        match self.numbered {}
    }

    pub(crate) fn passages(&self) -> Option<&'static str> {
        match self.numbered {}
    }

    pub(crate) fn with_words(&self, _: &str) -> Option<String> {
        match self.numbered {}
    }
}
