//! Matrix products: the project's kernel for few rows, the device's library for more.

use super::super::device::{Argument, Bf16, Device, Fault, Output, Part, PartMut, Product};
use super::{MATVEC_ROWS, address, arguments, check, check_multiple, launch};

arguments! {
    struct Matvec {
        weights: u64, input: u64, output: u64, bias: u64, inputs: u32, outputs: u32, rows: u32, unused: u32,
    }
}

/// Queues a matrix product: of at most [`MATVEC_ROWS`] rows by the kernel [`matvec`], of more by the device's library.
pub(in crate::backend::cuda) fn multiply(
    device: &mut dyn Device,
    product: &Product<'_>,
) -> Result<(), Fault> {
    let Product {
        rows,
        inputs,
        outputs,
        ..
    } = *product;
    check_multiple("inputs", inputs, 8);
    check("weights", product.weights.len(), outputs * inputs);
    check("input", product.input.len(), rows * inputs);
    let output = match &product.output {
        Output::Bf16(output) => output.len(),
        Output::F32(output) | Output::Add(output) => output.len(),
    };
    check("output", output, rows * outputs);
    if rows == 0 {
        return Ok(());
    }
    if rows > MATVEC_ROWS {
        return device.multiply(product);
    }
    let (one, four, address) = match &product.output {
        Output::Bf16(output) => ("matvec_bf16_1", "matvec_bf16_4", output.address()),
        Output::F32(output) => ("matvec_f32_1", "matvec_f32_4", output.address()),
        Output::Add(output) => ("matvec_add_1", "matvec_add_4", output.address()),
    };
    let argument = Matvec {
        weights: product.weights.address(),
        input: product.input.address(),
        output: address,
        bias: 0,
        inputs: inputs as u32,
        outputs: outputs as u32,
        rows: rows as u32,
        unused: 0,
    };
    // SAFETY: the shapes were checked above.
    unsafe { matvec(device, [one, four], &argument, 4) }
}

/// Computes `output [rows, width] = silu(gate) * up`, where gate and up are the halves of the product of `input` with
/// `weights [2 * width, inputs]`, plus `bias` if there is one. For at most [`MATVEC_ROWS`] rows.
#[expect(clippy::too_many_arguments, reason = "what the kernel takes")]
pub(in crate::backend::cuda) fn multiply_gate(
    device: &mut dyn Device,
    weights: Part<'_, Bf16>,
    bias: Option<Part<'_, f32>>,
    input: Part<'_, Bf16>,
    output: PartMut<'_, Bf16>,
    rows: usize,
    inputs: usize,
    width: usize,
) -> Result<(), Fault> {
    assert!(
        rows <= MATVEC_ROWS,
        "{rows} rows are more than {MATVEC_ROWS}"
    );
    check_multiple("inputs", inputs, 8);
    check("weights", weights.len(), 2 * width * inputs);
    check("input", input.len(), rows * inputs);
    check("output", output.len(), rows * width);
    check("bias", bias.map_or(width * 2, |bias| bias.len()), width * 2);
    let argument = Matvec {
        weights: weights.address(),
        input: input.address(),
        output: output.address(),
        bias: address(bias),
        inputs: inputs as u32,
        outputs: width as u32,
        rows: rows as u32,
        unused: 0,
    };
    // SAFETY: the shapes were checked above.
    unsafe { matvec(device, ["matvec_gate_1", "matvec_gate_4"], &argument, 2) }
}

/// Launches a kernel that multiplies up to four rows by a matrix: the kernel `one` for one row, `four` for more. Each
/// thread block computes `columns` outputs.
///
/// # Safety
/// The memory that `argument` names must have the shapes that it states.
unsafe fn matvec(
    device: &mut dyn Device,
    [one, four]: [&'static str; 2],
    argument: &Matvec,
    columns: usize,
) -> Result<(), Fault> {
    let (kernel, rows) = if argument.rows == 1 {
        (one, 1)
    } else {
        (four, 4)
    };
    let grid = [(argument.outputs as usize).div_ceil(columns), 1, 1];
    // SAFETY: the caller's promise; shared memory holds four columns of each row from each of four warps.
    unsafe {
        launch(
            device,
            kernel,
            grid,
            128,
            rows * 4 * 4 * size_of::<f32>(),
            argument,
        )
    }
}
