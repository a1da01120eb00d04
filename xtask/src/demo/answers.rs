//! The check that an answer does not depend on what the cache held.
//!
//! A sampled request is sent three times in a row through the same gateway: once to settle its order (its whole
//! path is now the tree's best match), once warm, and once with a `cache_salt` of its own, which shares no KV state
//! and so is computed from nothing. Same prompt length, same policy state, temperature 0: the answers must be equal.

use std::ops::AddAssign;

use anyhow::{Result, ensure};

use super::client::Client;
use super::figures::Arm;
use super::interrupt::Interrupt;
use super::replay::Question;
use super::stack::Stack;

/// How many sampled answers were compared, and how many were the same bytes warm and cold.
#[derive(Clone, Copy, Default)]
pub(super) struct Comparison {
    pub(super) checked: usize,
    pub(super) equal: usize,
}

impl AddAssign for Comparison {
    fn add_assign(&mut self, other: Self) {
        self.checked += other.checked;
        self.equal += other.equal;
    }
}

/// Compares each question's warm and cold answers.
///
/// # Errors
/// A request fails, or the comparison would mean nothing: the warm one was not warm or the cold one not cold.
pub(super) fn compare<'a>(
    stack: &Stack,
    arm: Arm,
    questions: impl Iterator<Item = &'a Question>,
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let client = Client::new(stack.completions_url());
    let mut comparison = Comparison::default();
    for (index, question) in questions.enumerate() {
        interrupt.check()?;
        let shared = question.body(stack.model(), None)?;
        client.ask(&shared)?;
        let warm = client.ask(&shared)?;
        let salt = format!("cold-{}-{index}", arm.key());
        let cold = client.ask(&question.body(stack.model(), Some(&salt))?)?;
        ensure!(
            warm.cached_tokens > 0,
            "a repeated request found nothing in the cache"
        );
        ensure!(
            cold.cached_tokens == 0,
            "salt {salt} found {} cached tokens of another",
            cold.cached_tokens
        );
        ensure!(
            warm.prompt_tokens == cold.prompt_tokens,
            "the same request made prompts of {} and {} tokens",
            warm.prompt_tokens,
            cold.prompt_tokens
        );
        comparison.checked += 1;
        comparison.equal += usize::from(warm.text == cold.text);
    }
    Ok(comparison)
}
