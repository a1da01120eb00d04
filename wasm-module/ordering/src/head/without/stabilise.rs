//! Stabilising in a build without the feature: nothing is known, and nothing is done.

use crate::body::Parsed;
use crate::head::config::Head;
use crate::head::decision::{Decision, Form};

/// What is known of the heads of one tenant and model: nothing.
#[derive(Debug, Default)]
pub(crate) struct Heads {}

impl Heads {
    pub(crate) fn decide<'a>(&mut self, _: &Head, _: &Parsed<'a>) -> Decision<'a> {
        Decision::default()
    }

    pub(crate) fn take_told(&mut self) -> Vec<Form> {
        Vec::new()
    }

    pub(crate) fn learn(&mut self, _: &Form) {}
}
