//! Matrix products: the project's kernel for few rows, the device's library for more.

use super::super::device::{
    Argument, Bf16, Device, Fault, Operands, Output, Part, PartMut, Product,
};
use super::{MATVEC_ROWS, address, arguments, check, check_multiple, launch};

arguments! {
    struct Matvec {
        weights: u64, weight_scales: u64, input: u64, input_scales: u64, output: u64, bias: u64,
        inputs: u32, outputs: u32, rows: u32, unused: u32,
    }
}

/// Checks that operands have the lengths and the alignment of a product of this shape.
#[track_caller]
fn check_operands(operands: &Operands<'_>, rows: usize, inputs: usize, outputs: usize) {
    let [weights, input] = match operands {
        Operands::Bf16 { weights, input } => {
            check_multiple("inputs", inputs, 8);
            [weights.len(), input.len()]
        }
        Operands::Fp8 { weights, input } => {
            check_multiple("inputs", inputs, 16);
            check_multiple("outputs", outputs, 16);
            check("scales of weights", weights.scales.len(), outputs);
            check("scales of input", input.scales.len(), rows);
            [weights.numbers.len(), input.numbers.len()]
        }
    };
    check("weights", weights, outputs * inputs);
    check("input", input, rows * inputs);
}

impl Matvec {
    /// Returns the argument for a product of these operands, `outputs` wide, whose output is at the address `output`.
    fn new(
        operands: &Operands<'_>,
        output: u64,
        rows: usize,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let [weights, input] = operands.addresses();
        let [weight_scales, input_scales] = operands.scales().unwrap_or_default();
        Self {
            weights,
            weight_scales,
            input,
            input_scales,
            output,
            bias: 0,
            inputs: inputs as u32,
            outputs: outputs as u32,
            rows: rows as u32,
            unused: 0,
        }
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
    check_operands(&product.operands, rows, inputs, outputs);
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
    let (address, [wide, narrow]) = match &product.output {
        Output::Bf16(output) => (
            output.address(),
            [
                ["matvec_bf16_1", "matvec_bf16_4"],
                ["matvec8_bf16_1", "matvec8_bf16_4"],
            ],
        ),
        Output::F32(output) => (
            output.address(),
            [
                ["matvec_f32_1", "matvec_f32_4"],
                ["matvec8_f32_1", "matvec8_f32_4"],
            ],
        ),
        Output::Add(output) => (
            output.address(),
            [
                ["matvec_add_1", "matvec_add_4"],
                ["matvec8_add_1", "matvec8_add_4"],
            ],
        ),
    };
    let kernels = match product.operands {
        Operands::Bf16 { .. } => wide,
        Operands::Fp8 { .. } => narrow,
    };
    let argument = Matvec::new(&product.operands, address, rows, inputs, outputs);
    // SAFETY: the shapes were checked above.
    unsafe { matvec(device, kernels, &argument, 4) }
}

/// Computes `output [rows, width] = silu(gate) * up`, where gate and up are the halves of the product of the operands,
/// whose weights are `[2 * width, inputs]`, plus `bias` if there is one. For at most [`MATVEC_ROWS`] rows.
pub(in crate::backend::cuda) fn multiply_gate(
    device: &mut dyn Device,
    operands: Operands<'_>,
    bias: Option<Part<'_, f32>>,
    output: PartMut<'_, Bf16>,
    rows: usize,
    inputs: usize,
    width: usize,
) -> Result<(), Fault> {
    assert!(
        rows <= MATVEC_ROWS,
        "{rows} rows are more than {MATVEC_ROWS}"
    );
    check_operands(&operands, rows, inputs, 2 * width);
    check("output", output.len(), rows * width);
    check("bias", bias.map_or(width * 2, |bias| bias.len()), width * 2);
    let kernels = match operands {
        Operands::Bf16 { .. } => ["matvec_gate_1", "matvec_gate_4"],
        Operands::Fp8 { .. } => ["matvec8_gate_1", "matvec8_gate_4"],
    };
    let argument = Matvec {
        bias: address(bias),
        ..Matvec::new(&operands, output.address(), rows, inputs, width)
    };
    // SAFETY: the shapes were checked above.
    unsafe { matvec(device, kernels, &argument, 2) }
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
