//! The check that an answer does not depend on the content of the cache.
//!
//! The replay keeps some of its requests: the body that the filter sent on, and the answer that came while part of the
//! prompt was cached. Here the same bytes are sent to the host again under a `cache_salt` of their own, which shares no
//! KV state with anything, so the whole prompt is computed. At temperature 0 the answers must be equal; a wrongly
//! reused page would show.

use std::ops::AddAssign;

use anyhow::{Context, Result, ensure};

use super::client::{Answer, Client};
use super::interrupt::Interrupt;
use super::stack::Stack;

/// A request of the replay that found part of its prompt in the cache.
pub(super) struct Warm {
    /// The body as the host received it.
    pub(super) body: Vec<u8>,
    pub(super) answer: Answer,
}

/// Number of answers compared, and number of those with the same bytes warm and cold.
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

/// Sends each request again with a cold cache.
///
/// # Errors
/// Returns an error when a request fails, or when the comparison would be meaningless: the cold request was not cold,
/// or the prompts differ.
pub(super) fn compare(stack: &Stack, warm: &[Warm], interrupt: &Interrupt) -> Result<Comparison> {
    let client = Client::new(stack.host_completions_url());
    let mut comparison = Comparison::default();
    for (index, Warm { body, answer }) in warm.iter().enumerate() {
        interrupt.check()?;
        let cold = client.ask(&salted(body, index)?)?;
        ensure!(
            cold.cached_tokens == 0,
            "a request with a salt of its own found {} cached tokens",
            cold.cached_tokens
        );
        ensure!(
            cold.prompt_tokens == answer.prompt_tokens,
            "the filter sent a prompt of {} tokens, the core by itself one of {}",
            answer.prompt_tokens,
            cold.prompt_tokens
        );
        comparison.checked += 1;
        comparison.equal += usize::from(cold.text == answer.text);
    }
    Ok(comparison)
}

/// Returns the body with one more field at its front; not a byte of the rest changes.
fn salted(body: &[u8], index: usize) -> Result<Vec<u8>> {
    let rest = body
        .strip_prefix(b"{")
        .context("the body is no JSON object")?;
    Ok([
        format!(r#"{{"cache_salt":"cold-{index}","#).as_bytes(),
        rest,
    ]
    .concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_added_and_the_rest_stays() {
        assert_eq!(
            salted(br#"{"model":"m"}"#, 3).unwrap(),
            br#"{"cache_salt":"cold-3","model":"m"}"#
        );
        assert!(salted(b"[]", 0).is_err());
    }
}
