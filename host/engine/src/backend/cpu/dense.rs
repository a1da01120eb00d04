//! Single matrix products for models that are not decoders, such as embedding models: the backend's packed weights and
//! kernels with an interface of plain slices.
//!
//! This module knows nothing of what is computed. Products are f32, whatever type the weights are stored in. The result
//! of a row depends on that row alone, as everywhere in the backend.

use super::kernels::Kernels;
use super::left_operand::Tiles;
use super::matrix::{Panels, Sums};
use super::precision::Precision;
use crate::models::{CheckpointError, Tensors};
use rayon::prelude::*;

/// A linear layer `x · Wᵀ + b`: its weights `[outputs, inputs]`, laid out for the CPU's kernels, and its bias
/// `[outputs]`.
pub struct Dense {
    panels: Panels,
    kernels: Kernels,
    inputs: usize,
    bias: Vec<f32>,
}

/// Scratch memory of [`Dense::apply`], reused from one call to the next.
#[derive(Default)]
pub struct Workspace {
    tiles: Tiles,
    sums: Sums,
}

impl Dense {
    /// Loads the layer whose tensors are called `NAME.weight`, `[outputs, inputs]`, and `NAME.bias`, `[outputs]`.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when one of them is missing or has another shape or type.
    pub fn load(
        tensors: &Tensors,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, CheckpointError> {
        let weights = tensors.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = tensors.values(&format!("{name}.bias"), &[outputs])?;
        let detected = Kernels::detect(Precision::F32);
        let (kernels, _) = detected.expect("f32 products need no special instructions");
        Ok(Self {
            panels: Panels::pack(&[&weights], kernels),
            kernels,
            inputs,
            bias,
        })
    }

    /// Applies the layer to every row of `input` `[rows, inputs]` and writes `output` `[rows, outputs]`. Runs in
    /// parallel on the thread pool that it is called in.
    ///
    /// # Panics
    /// Panics when the lengths are not whole rows, or not the same number of rows.
    pub fn apply(&self, input: &[f32], output: &mut [f32], workspace: &mut Workspace) {
        let (inputs, outputs) = (self.inputs, self.bias.len());
        let rows = input.len() / inputs;
        assert_eq!(input.len(), rows * inputs, "whole rows of the input");
        assert_eq!(output.len(), rows * outputs, "a row of output for each");
        if rows == 0 {
            return;
        }
        let Workspace { tiles, sums } = workspace;
        tiles.shape(rows, inputs, self.panels.form());
        let tile_rows = tiles.tile_rows();
        let rows_of_tiles = input.par_chunks(tile_rows * inputs);
        (tiles.par_tiles().zip(rows_of_tiles)).for_each(|(mut tile, rows)| {
            for (number, row) in rows.chunks_exact(inputs).enumerate() {
                tile.write(number, 0, row);
            }
        });
        self.panels.multiply(self.kernels, tiles, sums);
        let sums = &*sums;
        (output.par_chunks_mut(outputs).enumerate()).for_each(|(row, output)| {
            sums.read(row, 0, 0, output);
            for (value, bias) in output.iter_mut().zip(&self.bias) {
                *value += bias;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn a_layer_is_the_textbooks_product() {
        let (inputs, outputs) = (150, 70);
        let value = |at: usize| (at * 37 % 101) as f32 / 50.0 - 1.0;
        let weights: Vec<f32> = (0..inputs * outputs).map(value).collect();
        let bias: Vec<f32> = (0..outputs).map(value).collect();
        let folder = tempfile::tempdir().unwrap();
        let (w, b) = (bytes(&weights), bytes(&bias));
        let tensors = [
            (
                "l.weight",
                TensorView::new(Dtype::F32, vec![outputs, inputs], &w).unwrap(),
            ),
            (
                "l.bias",
                TensorView::new(Dtype::F32, vec![outputs], &b).unwrap(),
            ),
        ];
        let file = folder.path().join("model.safetensors");
        safetensors::serialize_to_file(tensors, None, &file).unwrap();
        let tensors = Tensors::open(folder.path()).unwrap();
        let layer = Dense::load(&tensors, "l", inputs, outputs).unwrap();
        let mut workspace = Workspace::default();
        for rows in [0, 1, 13, 40] {
            let input: Vec<f32> = (0..rows * inputs).map(|at| value(at + 5)).collect();
            let mut output = vec![f32::NAN; rows * outputs];
            layer.apply(&input, &mut output, &mut workspace);
            for (row, output) in input.chunks(inputs).zip(output.chunks(outputs)) {
                for (out, found) in output.iter().enumerate() {
                    let weights = &weights[out * inputs..][..inputs];
                    let exact: f64 = (row.iter().zip(weights))
                        .map(|(a, b)| f64::from(*a) * f64::from(*b))
                        .sum();
                    assert!((exact + f64::from(bias[out]) - f64::from(*found)).abs() < 1e-4);
                }
            }
        }
        let missing = Dense::load(&tensors, "m", inputs, outputs).err().unwrap();
        assert!(
            missing.to_string().contains("m.weight is missing"),
            "{missing}"
        );
        let wrong = Dense::load(&tensors, "l", inputs, 71).err().unwrap();
        assert!(
            wrong.to_string().contains("[70, 150], expected [71, 150]"),
            "{wrong}"
        );
    }
}
