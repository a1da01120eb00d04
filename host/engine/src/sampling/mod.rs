//! Sampling: from a row of logits to a token.
//!
//! ```text
//!   logits ─penalties─▶ ─constraint─▶ ─temperature, top-k, top-p, min-p─▶ token
//!      └──────────────────── logprobs: of the model's own row ──────────────┘
//! ```
//!
//! This module owns the arithmetic of sampling and knows neither the model nor the request. A choice is a pure function
//! of the logits, the [`Sampling`], the token's position and the tokens before it. There is no random generator with a
//! state, so a sequence that is preempted and computed again, or batched differently, gets the same tokens. The state
//! of a [`Sampler`] (counts, the grammar's position) follows from those tokens and stays with its sequence while it
//! waits.

mod constraint;
mod logprobs;
mod penalties;
mod sampler;

pub use constraint::Constraint;
pub use logprobs::Logprobs;
pub use sampler::{NextToken, Sampler};

use crate::TokenId;
use foreword_ordering::random::Random;
use penalties::Penalties;

/// The parameters by which tokens are sampled. Their ranges are checked by [`Sampling::new`] and
/// [`SamplingFields::sampling`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature by which logits are divided; 0 always takes the most likely token.
    temperature: f32,
    /// Top-p: sum of probabilities of the likeliest tokens that are considered, above 0 and at most 1.
    top_p: f32,
    /// Top-k: maximum number of most likely tokens to consider; 0 for no limit.
    top_k: u32,
    /// Min-p: minimum probability of a token as a fraction of the most likely token's, 0 to 1; 0 for no limit.
    min_p: f32,
    penalties: Penalties,
    seed: u64,
}

/// The parameters of sampling that a request or a checkpoint's `generation_config.json` states; `None` for those that it
/// leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingFields {
    /// Temperature, 0 to 2.
    pub temperature: Option<f32>,
    /// Top-p, above 0 to 1.
    pub top_p: Option<f32>,
    /// Top-k; 0 for no limit.
    pub top_k: Option<u32>,
    /// Min-p, 0 to 1: excludes tokens less likely than this times the most likely one.
    pub min_p: Option<f32>,
    /// OpenAI's frequency penalty, -2 to 2: subtracted from a logit for each time that the token was generated.
    pub frequency_penalty: Option<f32>,
    /// OpenAI's presence penalty, -2 to 2: subtracted once from a logit if the token was generated.
    pub presence_penalty: Option<f32>,
    /// Hugging Face's and vLLM's repetition penalty, above 0 to 2: before the other penalties, divides positive logits
    /// and multiplies negative ones of all tokens in the prompt or the answer.
    pub repetition_penalty: Option<f32>,
}

impl SamplingFields {
    /// Returns these parameters, completed by those of `defaults`.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.or(defaults.top_k),
            min_p: self.min_p.or(defaults.min_p),
            frequency_penalty: self.frequency_penalty.or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.or(defaults.presence_penalty),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
        }
    }

    /// Returns sampling with these parameters, and for the others OpenAI's defaults: temperature 1, no limits and no
    /// penalties. Equal seeds give equal choices.
    ///
    /// # Errors
    /// Returns [`OutOfRange`] for the first parameter out of its range.
    pub fn sampling(self, seed: u64) -> Result<Sampling, OutOfRange> {
        let sampling = Sampling::new(
            self.temperature.unwrap_or(1.0),
            self.top_p.unwrap_or(1.0),
            self.top_k.unwrap_or(0),
            seed,
        )?;
        let min_p = self.min_p.unwrap_or(0.0);
        let within = (0.0..=1.0).contains(&min_p);
        OutOfRange::check("min_p", min_p, within, "within 0 to 1")?;
        let penalties = Penalties::new(
            self.frequency_penalty.unwrap_or(0.0),
            self.presence_penalty.unwrap_or(0.0),
            self.repetition_penalty.unwrap_or(1.0),
        )?;
        Ok(Sampling {
            min_p,
            penalties,
            ..sampling
        })
    }
}

/// The error for a sampling parameter that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, not {range}")]
pub struct OutOfRange {
    /// The parameter's name in a request, such as `top_p`.
    pub name: &'static str,
    /// The value of the parameter that was refused.
    pub value: f32,
    /// The values that the parameter may have, in words.
    pub range: &'static str,
}

impl OutOfRange {
    /// Returns `value` if `within` is true, otherwise an error with the parameter's name, its value and the allowed
    /// range.
    fn check(
        name: &'static str,
        value: f32,
        within: bool,
        range: &'static str,
    ) -> Result<f32, Self> {
        within.then_some(value).ok_or(Self { name, value, range })
    }
}

/// The reason that no token could be chosen from a row of logits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A logit is NaN or plus infinity: the model overflowed, or its weights are damaged.
    #[error("the model's logit for token {token} is not a number or infinite")]
    NotFinite {
        /// The first token whose logit is NaN or plus infinity.
        token: TokenId,
    },
    /// Every logit is minus infinity, or there are no logits.
    #[error("the model's logits exclude all {tokens} tokens")]
    NothingLeft {
        /// Number of tokens in the vocabulary, to which the logits belong.
        tokens: u32,
    },
    /// The parser of the answer's grammar failed, normally because finding the allowed tokens exceeds the bound on the
    /// work for one token.
    #[error("the answer's grammar failed: {reason}")]
    Constraint {
        /// The parser's own message, which contains nothing of the answer.
        reason: String,
    },
}

impl Default for Sampling {
    fn default() -> Self {
        Self::greedy()
    }
}

impl Sampling {
    /// Returns sampling that always takes the most likely token; among equals the one with the lower id.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            penalties: Penalties::default(),
            seed: 0,
        }
    }

    /// Returns sampling with OpenAI's ranges: `temperature` 0 to 2 (0 always takes the most likely token), `top_p`
    /// above 0 to 1, `top_k` any number (0 for no limit). Equal seeds give equal choices.
    ///
    /// # Errors
    /// Returns [`OutOfRange`] for the first parameter out of its range.
    pub fn new(temperature: f32, top_p: f32, top_k: u32, seed: u64) -> Result<Self, OutOfRange> {
        let within = (0.0..=2.0).contains(&temperature);
        OutOfRange::check("temperature", temperature, within, "within 0 to 2")?;
        let within = top_p > 0.0 && top_p <= 1.0;
        OutOfRange::check("top_p", top_p, within, "above 0 and at most 1")?;
        Ok(Self {
            temperature,
            top_p,
            top_k,
            min_p: 0.0,
            penalties: Penalties::default(),
            seed,
        })
    }

    /// Returns the sampling for answer number `index` of several answers to one prompt: the seed differs, except for
    /// index 0.
    #[must_use]
    pub fn for_choice(self, index: u32) -> Self {
        let seed = match index {
            0 => self.seed,
            _ => chance(self.seed, index).bits(),
        };
        Self { seed, ..self }
    }

    /// Chooses the token at `position` of its sequence from `logits`, one for each token of the vocabulary. Penalties
    /// and grammar must already have been applied to the logits.
    ///
    /// Applies top-k, then top-p to what is left, then min-p (the order of Hugging Face). Among equals the lower id is
    /// the likelier. Costs `O(vocabulary)`, plus sorting of as many tokens as top-k or top-p keep.
    ///
    /// # Errors
    /// Returns a [`SamplingError`] when the logits allow no choice.
    pub fn choose(&self, logits: &[f32], position: u32) -> Result<TokenId, SamplingError> {
        let best = most_likely(logits)?;
        if self.temperature == 0.0 || self.top_k == 1 {
            return Ok(best);
        }
        // Relative to the best, so that a low temperature cannot overflow.
        let top = logits[best as usize];
        let temperature = f64::from(self.temperature);
        let weight = |logit: f32| (f64::from(logit - top) / temperature).exp();
        let point = chance(self.seed, position).unit();
        if self.top_k == 0 && self.top_p == 1.0 && self.min_p == 0.0 {
            let total = logits.iter().map(|&logit| weight(logit)).sum::<f64>();
            return Ok(pick(
                logits
                    .iter()
                    .enumerate()
                    .map(|(id, &l)| (id as TokenId, weight(l))),
                point * total,
            )
            .unwrap_or(best));
        }
        let kept = self.keep(logits, weight);
        let total = kept.iter().map(|&(_, weight)| weight).sum::<f64>();
        Ok(pick(kept.into_iter(), point * total).unwrap_or(best))
    }

    /// Returns the parameters that, together with the logits, determine the token at `position` of a sequence, for a
    /// device that samples as [`Sampling::choose`] does. Penalties are not included.
    pub fn draw(&self, position: u32) -> Draw {
        Draw {
            point: chance(self.seed, position).unit(),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
        }
    }

    /// Returns the tokens that top-k, top-p and min-p leave to choose from, likeliest first, each with its weight: the
    /// result of `weight` for its logit.
    fn keep(&self, logits: &[f32], weight: impl Fn(f32) -> f64) -> Vec<(TokenId, f64)> {
        let mut ranked: Vec<(TokenId, f32)> = logits
            .iter()
            .enumerate()
            .map(|(id, &l)| (id as TokenId, l))
            .collect();
        let order =
            |a: &(TokenId, f32), b: &(TokenId, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = if self.top_k == 0 {
            ranked.len()
        } else {
            ranked.len().min(self.top_k as usize)
        };
        if k < ranked.len() {
            ranked.select_nth_unstable_by(k - 1, order);
            ranked.truncate(k);
        }
        // Top-p usually keeps few tokens of many, so a growing head is sorted instead of the whole vocabulary. The sum
        // is taken in the order of ids, so it does not depend on the partial sorting.
        ranked.sort_unstable_by_key(|&(id, _)| id);
        let needed =
            f64::from(self.top_p) * ranked.iter().map(|&(_, logit)| weight(logit)).sum::<f64>();
        let mut head = SORTED_HEAD.min(k);
        loop {
            if head < ranked.len() {
                ranked.select_nth_unstable_by(head - 1, order);
            }
            ranked[..head].sort_unstable_by(order);
            let mut kept = Vec::with_capacity(head);
            let mut sum = 0.0;
            for &(id, logit) in &ranked[..head] {
                let weight = weight(logit);
                // The best token's weight is 1.
                if weight < f64::from(self.min_p) {
                    return kept;
                }
                kept.push((id, weight));
                sum += weight;
                if sum >= needed && self.top_p < 1.0 {
                    return kept;
                }
            }
            if head == k {
                return kept;
            }
            head = head.saturating_mul(8).min(k);
        }
    }
}

/// The parameters of one choice of a token, as [`Sampling`] defines them. Together with the logits they determine the
/// token. CUDA's kernel reads them as they are laid out here.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The random point at which the token is selected, as a fraction, in `[0, 1)`, of the sum of the weights of all
    /// tokens that top-k, top-p and min-p leave.
    pub point: f64,
    /// Temperature by which logits are divided; 0 always takes the most likely token.
    pub temperature: f32,
    /// Top-p: sum of probabilities of the likeliest tokens that are considered, above 0 and at most 1.
    pub top_p: f32,
    /// Top-k: maximum number of most likely tokens to consider; 0 for no limit.
    pub top_k: u32,
    /// Min-p: minimum probability of a token as a fraction of the most likely token's, 0 to 1; 0 for no limit.
    pub min_p: f32,
}

/// Number of most likely tokens that are sorted at first to find where top-p ends; more are sorted if they do not
/// suffice.
const SORTED_HEAD: usize = 128;

/// Returns the token with the highest logit, the lowest id among equals. Returns an error if a logit is NaN or plus
/// infinity, or all are minus infinity.
fn most_likely(logits: &[f32]) -> Result<TokenId, SamplingError> {
    let mut best = (f32::NEG_INFINITY, None);
    for (id, &logit) in logits.iter().enumerate() {
        // The comparison is false for NaN too.
        let usable = logit < f32::INFINITY;
        if !usable {
            return Err(SamplingError::NotFinite {
                token: id as TokenId,
            });
        }
        if logit > best.0 {
            best = (logit, Some(id as TokenId));
        }
    }
    best.1.ok_or(SamplingError::NothingLeft {
        tokens: logits.len() as u32,
    })
}

/// Returns the token at which the running sum of `weights` exceeds `point`. If rounding carries `point` past the total,
/// returns the last token of non-zero weight; `None` if there is none.
fn pick(weights: impl Iterator<Item = (TokenId, f64)>, point: f64) -> Option<TokenId> {
    let mut sum = 0.0;
    let mut last = None;
    for (id, weight) in weights.filter(|&(_, weight)| weight > 0.0) {
        sum += weight;
        last = Some(id);
        if point < sum {
            break;
        }
    }
    last
}

/// Returns a random generator whose numbers depend on the seed and the position alone.
fn chance(seed: u64, position: u32) -> Random {
    Random::new(Random::new(seed).bits() ^ u64::from(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_p: f32, top_k: u32) -> Sampling {
        Sampling::new(temperature, top_p, top_k, 7).unwrap()
    }

    /// Returns how often each token is chosen over many positions.
    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let rounds = 20_000;
        let mut shares = vec![0.0; logits.len()];
        for position in 0..rounds {
            shares[sampling.choose(logits, position).unwrap() as usize] += 1.0 / f64::from(rounds);
        }
        shares
    }

    fn assert_near(shares: &[f64], expected: &[f64]) {
        assert_eq!(shares.len(), expected.len());
        for (share, expected) in shares.iter().zip(expected) {
            assert!(
                (share - expected).abs() < 0.015 && (*expected > 0.0 || *share == 0.0),
                "{shares:?} {expected}"
            );
        }
    }

    /// Returns logits with these probabilities.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() + 3.0).collect()
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (temperature, top_p, word) in [
            (-0.1, 1.0, "temperature is -0.1"),
            (2.5, 1.0, "temperature is 2.5"),
            (f32::NAN, 1.0, "temperature is NaN"),
            (1.0, 0.0, "top_p is 0"),
            (1.0, 1.5, "top_p is 1.5"),
            (1.0, f32::NAN, "top_p is NaN"),
        ] {
            let error = Sampling::new(temperature, top_p, 0, 0).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let fields = SamplingFields {
            min_p: Some(1.5),
            ..SamplingFields::default()
        };
        let error = fields.sampling(0).unwrap_err();
        assert!(error.to_string().contains("min_p is 1.5"), "{error}");
        assert!(
            Sampling::new(0.0, 1.0, 0, 0).is_ok()
                && Sampling::new(2.0, 1e-9, u32::MAX, u64::MAX).is_ok()
        );
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        assert_eq!(Sampling::greedy().choose(&[1.0, 5.0, 5.0, -2.0], 0), Ok(1));
        assert_eq!(
            sampling(0.0, 0.5, 3).choose(&[1.0, 5.0, 5.0, -2.0], 9),
            Ok(1)
        );
        assert_eq!(
            sampling(2.0, 1.0, 1).choose(&[1.0, 5.0, 5.0, -2.0], 9),
            Ok(1)
        );
    }

    #[test]
    fn rows_that_are_no_distribution_are_errors() {
        for sampling in [
            Sampling::greedy(),
            sampling(1.0, 0.9, 0),
            sampling(1.0, 1.0, 0),
        ] {
            let not_finite = |token| Err(SamplingError::NotFinite { token });
            assert_eq!(sampling.choose(&[0.0, f32::NAN, 1.0], 0), not_finite(1));
            assert_eq!(
                sampling.choose(&[0.0, 1.0, f32::INFINITY], 0),
                not_finite(2)
            );
            assert_eq!(
                sampling.choose(&[f32::NEG_INFINITY; 3], 0),
                Err(SamplingError::NothingLeft { tokens: 3 })
            );
            assert_eq!(
                sampling.choose(&[], 0),
                Err(SamplingError::NothingLeft { tokens: 0 })
            );
            assert_eq!(
                sampling.choose(&[f32::NEG_INFINITY, 0.5], 0),
                Ok(1),
                "a masked token"
            );
        }
    }

    #[test]
    fn shares_follow_the_temperature() {
        let row = logits(&[0.5, 0.3, 0.2]);
        assert_near(&shares(&sampling(1.0, 1.0, 0), &row), &[0.5, 0.3, 0.2]);
        let square = 0.25 + 0.09 + 0.04;
        assert_near(
            &shares(&sampling(0.5, 1.0, 0), &row),
            &[0.25 / square, 0.09 / square, 0.04 / square],
        );
        assert_near(&shares(&sampling(1e-30, 1.0, 0), &row), &[1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        let row = logits(&[0.1, 0.4, 0.2, 0.3]);
        assert_near(
            &shares(&sampling(1.0, 1.0, 2), &row),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        assert_near(
            &shares(&sampling(1.0, 0.69, 0), &row),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        assert_near(
            &shares(&sampling(1.0, 0.71, 0), &row),
            &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0],
        );
        assert_near(
            &shares(&sampling(1.0, 1e-6, 0), &row),
            &[0.0, 1.0, 0.0, 0.0],
        );
        // Top-p applies to what top-k kept: 4/7 is below 0.6, so both tokens stay.
        assert_near(
            &shares(&sampling(1.0, 0.6, 2), &row),
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        let min_p = Sampling {
            min_p: 0.6,
            ..sampling(1.0, 1.0, 0)
        };
        assert_near(&shares(&min_p, &row), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        assert_near(
            &shares(&sampling(1.0, 1.0, 2), &[0.0; 4]),
            &[0.5, 0.5, 0.0, 0.0],
        );
    }

    #[test]
    fn a_cut_beyond_the_first_sorted_head_is_found() {
        // A flat row: 90 % of the weight are 90 % of the tokens, the lowest ids among equals.
        let row = vec![0.0; 20 * SORTED_HEAD];
        let kept = sampling(1.0, 0.9, 0).keep(&row, |_| 1.0);
        let ids: Vec<TokenId> = kept.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, (0..18 * SORTED_HEAD as TokenId).collect::<Vec<_>>());
    }

    #[test]
    fn seed_and_position_alone_decide() {
        let row = vec![0.0; 1000];
        let choose = |seed, position| {
            Sampling::new(1.0, 1.0, 0, seed)
                .unwrap()
                .choose(&row, position)
                .unwrap()
        };
        assert_eq!(choose(3, 5), choose(3, 5));
        assert_ne!(choose(3, 5), choose(3, 6));
        assert_ne!(choose(3, 5), choose(4, 5));
        let choice = |index| {
            let sampling = Sampling::new(1.0, 1.0, 0, 3).unwrap();
            sampling.for_choice(index).choose(&row, 5).unwrap()
        };
        assert_eq!(choice(0), choose(3, 5));
        assert!(choice(1) != choice(0) && choice(2) != choice(1));
        let distinct: std::collections::HashSet<_> = (0..200).map(|seed| choose(seed, 0)).collect();
        assert!(
            distinct.len() > 150,
            "neighbouring seeds are independent: {}",
            distinct.len()
        );
    }
}
