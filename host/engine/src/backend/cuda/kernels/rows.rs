//! Kernels for the work on tokens between two matrix products: embedding, norms, selecting rows, the gate, and
//! quantising rows to FP8.

use super::super::device::{Argument, Bf16, Device, Fault, Part, PartMut};
use super::{address, arguments, check, check_multiple, launch};

arguments! {
    struct EmbedRows { table: u64, tokens: u64, residual: u64, hidden: u32, unused: u32 }
    struct NormRows { residual: u64, bias: u64, weights: u64, output: u64, hidden: u32, eps: f32 }
    struct KeepRows { from: u64, to: u64, rows: u64, hidden: u32, unused: u32 }
    struct GateRows { sums: u64, bias: u64, output: u64, width: u32, unused: u32 }
    struct QuantiseRows { input: u64, numbers: u64, scales: u64, width: u32, unused: u32 }
}

/// Sets `residual [rows, hidden]` to the embeddings of `tokens`: their rows of `table [vocabulary, hidden]`. The caller
/// has checked that all tokens belong to the vocabulary.
pub(in crate::backend::cuda) fn embed_rows(
    device: &mut dyn Device,
    table: Part<'_, Bf16>,
    tokens: Part<'_, u32>,
    residual: PartMut<'_, f32>,
    hidden: usize,
) -> Result<(), Fault> {
    let rows = tokens.len();
    check_multiple("hidden", hidden, 8);
    check("residual", residual.len(), rows * hidden);
    let argument = EmbedRows {
        table: table.address(),
        tokens: tokens.address(),
        residual: residual.address(),
        hidden: hidden as u32,
        unused: 0,
    };
    // SAFETY: as many rows of `residual` are written as there are tokens; the planner has checked the tokens.
    unsafe { launch(device, "embed_rows", [rows, 1, 1], 256, 0, &argument) }
}

/// Adds `bias`, if there is one, to each row of `residual [rows, hidden]`, and writes the rows' RMS norms to `output`.
pub(in crate::backend::cuda) fn norm_rows(
    device: &mut dyn Device,
    residual: PartMut<'_, f32>,
    bias: Option<Part<'_, f32>>,
    weights: Part<'_, f32>,
    output: PartMut<'_, Bf16>,
    rows: usize,
    eps: f32,
) -> Result<(), Fault> {
    let hidden = weights.len();
    check_multiple("hidden", hidden, 4);
    check("residual", residual.len(), rows * hidden);
    check("output", output.len(), rows * hidden);
    check("bias", bias.map_or(hidden, |bias| bias.len()), hidden);
    let argument = NormRows {
        residual: residual.address(),
        bias: address(bias),
        weights: weights.address(),
        output: output.address(),
        hidden: hidden as u32,
        eps,
    };
    // SAFETY: both buffers have `rows` rows of `hidden` values, weights and bias have one; a warp's sum is 4 bytes.
    unsafe { launch(device, "norm_rows", [rows, 1, 1], 256, 32, &argument) }
}

/// Copies the rows of `from [.., hidden]` whose indices are `rows` to `to [rows, hidden]`, in that order. The caller
/// has checked that `from` has these rows.
pub(in crate::backend::cuda) fn keep_rows(
    device: &mut dyn Device,
    from: Part<'_, f32>,
    rows: Part<'_, u32>,
    to: PartMut<'_, f32>,
    hidden: usize,
) -> Result<(), Fault> {
    check_multiple("hidden", hidden, 4);
    check("to", to.len(), rows.len() * hidden);
    let argument = KeepRows {
        from: from.address(),
        to: to.address(),
        rows: rows.address(),
        hidden: hidden as u32,
        unused: 0,
    };
    // SAFETY: as many rows of `to` are written as are chosen; the planner chooses rows of the step.
    unsafe { launch(device, "keep_rows", [rows.len(), 1, 1], 256, 0, &argument) }
}

/// Computes `output [rows, width] = silu(gate) * up`, where gate and up are the halves of `sums [rows, 2 * width]`,
/// plus `bias [2 * width]` if there is one.
pub(in crate::backend::cuda) fn gate_rows(
    device: &mut dyn Device,
    sums: Part<'_, Bf16>,
    bias: Option<Part<'_, f32>>,
    output: PartMut<'_, Bf16>,
    rows: usize,
    width: usize,
) -> Result<(), Fault> {
    check_multiple("width", width, 8);
    check("sums", sums.len(), rows * width * 2);
    check("output", output.len(), rows * width);
    check("bias", bias.map_or(width * 2, |bias| bias.len()), width * 2);
    // A grid's y dimension is smaller than the number of rows that a step may have.
    const ROWS: usize = 1 << 15;
    for first in (0..rows).step_by(ROWS) {
        let argument = GateRows {
            sums: sums.address() + (first * width * 2 * size_of::<Bf16>()) as u64,
            bias: address(bias),
            output: output.address() + (first * width * size_of::<Bf16>()) as u64,
            width: width as u32,
            unused: 0,
        };
        let grid = [width.div_ceil(256 * 8), ROWS.min(rows - first), 1];
        // SAFETY: the buffers have the rows from `first` on.
        unsafe { launch(device, "gate_rows", grid, 256, 0, &argument)? };
    }
    Ok(())
}

/// Quantises the rows of `input [rows, width]` to FP8 (E4M3): each row's scale is its largest absolute value divided by
/// 448, or 1 for a row of zeroes, and its numbers are the values divided by the scale, rounded to nearest even. A row
/// with an infinity or a NaN becomes NaN, its scale included.
pub(in crate::backend::cuda) fn quantise_rows(
    device: &mut dyn Device,
    input: Part<'_, Bf16>,
    numbers: PartMut<'_, u8>,
    scales: PartMut<'_, f32>,
    rows: usize,
    width: usize,
) -> Result<(), Fault> {
    check_multiple("width", width, 8);
    check("input", input.len(), rows * width);
    check("numbers", numbers.len(), rows * width);
    check("scales", scales.len(), rows);
    let argument = QuantiseRows {
        input: input.address(),
        numbers: numbers.address(),
        scales: scales.address(),
        width: width as u32,
        unused: 0,
    };
    // SAFETY: input and numbers have `rows` rows of `width` values; a warp's largest value is 4 bytes.
    unsafe { launch(device, "quantise_rows", [rows, 1, 1], 256, 32, &argument) }
}
