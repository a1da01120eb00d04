//! The kernel that samples a token from each row of logits.

use super::super::device::{Argument, Device, Fault, Part, PartMut, Plain};
use super::{arguments, check, launch};
use crate::sampling::Draw;

arguments! {
    struct SampleRows { logits: u64, choices: u64, chosen: u64, vocabulary: u32, unused: u32 }
}

impl Plain for Draw {}

/// Samples a token from each row of `logits [rows][vocabulary]` by the row's parameters in `choices`, and writes
/// `chosen [rows][kind, token]`. Kind 0: `token` was chosen. Kind 1: the logit of `token` is NaN or plus infinity. Kind
/// 2: no token has a finite logit.
pub(in crate::backend::cuda) fn sample_rows(
    device: &mut dyn Device,
    logits: Part<'_, f32>,
    choices: Part<'_, Draw>,
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
