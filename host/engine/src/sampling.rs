//! From a row of logits to a token.

/// How tokens are chosen. Built valid by [`Sampling::new`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {}

impl Sampling {
    /// The most likely token; ties go to the lower id.
    pub fn greedy() -> Self {
        todo!()
    }

    /// Samples with OpenAI's meaning of the values; temperature 0 is greedy. `top_k` 0 means no limit.
    ///
    /// # Errors
    /// A sentence that names the value and its range.
    pub fn new(temperature: f32, top_p: f32, top_k: u32, seed: u64) -> Result<Self, String> {
        let _ = (temperature, top_p, top_k, seed);
        todo!()
    }
}
