//! The number formats in which the CPU backend multiplies matrices, and how it chooses one.

/// The number format in which weights of a bf16 model, or packed ones, are multiplied. Weights of other types, and all
/// arithmetic outside products, use f32.
///
/// Rounding activations to bf16 costs accuracy: logits deviate by one or two percent of their standard deviation, where
/// f32 deviates by less than a hundredth of one percent. Models with bf16 weights were trained with that rounding.
/// Rounding activations to 8 bits, for packed weights, costs about five percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Chooses [`Precision::Bf16`] where the CPU's bf16 instructions are faster than f32: AMX, or AVX512-BF16 on AMD.
    /// Elsewhere weights are multiplied in f32, and on x86-64 CPUs with AVX2 packed weights stay packed.
    #[default]
    Auto,
    /// Multiplies in f32: widens weights to f32, packed ones after rounding them to bf16.
    F32,
    /// Keeps packed weights packed on every CPU, and rounds activations to 8 bits for products with them. Multiplies
    /// other weights as [`Precision::Auto`] does.
    Packed,
    /// Rounds activations to bf16 for products with weights, summed in f32; refused on CPUs without bf16 instructions.
    /// Attention is as exact as in f32: KV state is f32, or with AMX two bf16 for each number. Packed weights are
    /// unpacked to bf16.
    Bf16,
    /// Like [`Precision::Bf16`], and also rounds in attention: KV state is bf16, which takes half the memory and less
    /// time. Logits deviate 1.5 times as much.
    Bf16Kv,
}
