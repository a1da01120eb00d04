//! The kernel that samples a token from each row of logits.

use super::super::device::{Argument, Device, Fault, Part, PartMut, Plain};
use super::{arguments, check, launch};
use crate::sampling::Draw;

arguments! {
    struct SampleRows { logits: u64, choices: u64, chosen: u64, vocabulary: u32, unused: u32 }
}

/// The parameters of one choice of a token, as the kernel reads them; see [`Draw`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct SamplingParameters {
    /// The point at which the token is selected, as a fraction, in `[0, 1)`, of the sum of the weights of all tokens
    /// that top-k, top-p and min-p leave.
    pub(in crate::backend::cuda) point: f64,
    /// Temperature by which logits are divided; 0 always takes the most likely token.
    pub(in crate::backend::cuda) temperature: f32,
    pub(in crate::backend::cuda) top_p: f32,
    /// Maximum number of most likely tokens to consider; 0 for no limit.
    pub(in crate::backend::cuda) top_k: u32,
    pub(in crate::backend::cuda) min_p: f32,
}

impl Plain for SamplingParameters {}

impl SamplingParameters {
    pub(in crate::backend::cuda) fn of(draw: &Draw) -> Self {
        Self {
            point: draw.point,
            temperature: draw.temperature,
            top_p: draw.top_p,
            top_k: draw.top_k,
            min_p: draw.min_p,
        }
    }
}

/// Samples a token from each row of `logits [rows][vocabulary]` by the row's parameters in `choices`, and writes
/// `chosen [rows][kind, token]`. Kind 0: `token` was chosen. Kind 1: the logit of `token` is NaN or plus infinity. Kind
/// 2: no token has a finite logit.
pub(in crate::backend::cuda) fn sample_rows(
    device: &mut dyn Device,
    logits: Part<'_, f32>,
    choices: Part<'_, SamplingParameters>,
    chosen: PartMut<'_, u32>,
    vocabulary: usize,
) -> Result<(), Fault> {
    let rows = choices.len();
    assert!(vocabulary < 1 << 24, "a vocabulary of {vocabulary} tokens");
    check("logits", logits.len(), rows * vocabulary);
    check("chosen", chosen.len(), rows * 2);
    let argument = SampleRows {
        logits: logits.address(),
        choices: choices.address(),
        chosen: chosen.address(),
        vocabulary: vocabulary as u32,
        unused: 0,
    };
    // Each warp's best token, sum and bad token, the search's state, four histograms in two words a bin, and the list.
    let shared = (32 + 32 + 1) * 8 + (2 + 32 + 2 * 4 * 264 + 8192) * 4;
    // SAFETY: all buffers have a row for each choice.
    unsafe { launch(device, "sample_rows", [rows, 1, 1], 1024, shared, &argument) }
}
