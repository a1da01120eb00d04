//! Contexts that wander in a build without the head: they do.

use crate::body::{Chain, Parsed};
use crate::config::Config;
use crate::conversation::memory::Bounds;
use crate::head::decision::{Claim, ContextMessage, Decision};
use crate::head::report::Change;
use std::marker::PhantomData;

/// What messages were sent like: nothing is known.
#[derive(Debug)]
pub(crate) struct ContextMemory;

impl ContextMemory {
    pub(crate) fn new(_: Bounds) -> Self {
        Self
    }

    pub(crate) fn len(&self) -> usize {
        0
    }

    pub(crate) fn bytes(&self) -> u64 {
        0
    }

    pub(crate) fn record(&mut self, _: ContextMessage) {}

    pub(crate) fn contest(&mut self, _: u128) {}

    pub(crate) fn claim(&mut self, _: u128, _: Chain) {}
}

/// Questions that were sent without contexts: none is remembered.
#[derive(Debug, Default)]
pub(crate) struct BareQuestions(());

impl BareQuestions {
    pub(crate) fn add(&mut self, _: u128, _: u128) {}

    pub(crate) fn may_hold(&self, _: u128, _: u128) -> bool {
        false
    }
}

/// How a body is read on: as it came.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) claims: Vec<Claim>,
    pub(crate) doubtful: u32,
    pub(crate) moved: u32,
    pub(crate) numbered: u32,
    pub(crate) scored: u32,
    body: PhantomData<&'a str>,
}

/// What is to be known of a request's newest message.
#[derive(Debug)]
#[allow(dead_code, reason = "its twin makes all of them")]
pub(crate) enum Newest {
    Known,
    Contexts(ContextMessage),
    Bare([Option<u128>; 2]),
}

/// Nothing is planned.
pub(crate) fn plan<'a>(
    _: &Config,
    _: &Parsed<'a>,
    _: &Decision<'a>,
    _: Option<&ContextMemory>,
) -> Option<Plan<'a>> {
    None
}

impl Plan<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }

    pub(crate) fn body(&self, _: &str) -> String {
        String::new()
    }

    pub(crate) fn is_whole(&self, _: &Parsed<'_>) -> bool {
        true
    }

    pub(crate) fn shift(&self, _: &mut Decision<'_>) {}

    pub(crate) fn newest(&self, _: &Config, _: &Parsed<'_>) -> Newest {
        Newest::Known
    }
}
