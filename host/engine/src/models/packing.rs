//! Formats of quantised weights: blocks of integers with scales, as GGUF files store them (llama.cpp, `ggml-quants.c`).

use half::f16;

/// A format in which GGUF files store quantised weights: a matrix row is blocks of integers with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Blocks of 32 integers of 4 bits, with a scale.
    Q4_0,
    /// Blocks of 32 integers of 4 bits, with a scale and an offset.
    Q4_1,
    /// Blocks of 32 integers of 5 bits, with a scale.
    Q5_0,
    /// Blocks of 32 integers of 5 bits, with a scale and an offset.
    Q5_1,
    /// Blocks of 32 integers of 8 bits, with a scale.
    Q8_0,
    /// Blocks of 256 integers of 4 bits, with a scale and an offset for every 32.
    Q4K,
    /// Blocks of 256 integers of 5 bits, with a scale and an offset for every 32.
    Q5K,
    /// Blocks of 256 integers of 6 bits, with a scale for every 16.
    Q6K,
}

impl Packing {
    /// Returns the number of weights in a block, and the block's size in bytes.
    pub(crate) const fn block(self) -> (usize, usize) {
        match self {
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Returns the byte offset, within a block, of the block's scale, an f16. In formats with offsets, an f16 for the
    /// offset or offsets follows it.
    pub(crate) const fn scale(self) -> usize {
        match self {
            Self::Q6K => 208,
            _ => 0,
        }
    }

    /// Returns the number of f16 numbers from the byte offset [`Packing::scale`] on: 2 in formats with offsets, 1 in
    /// the others.
    pub(crate) const fn f16s(self) -> usize {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => 2,
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Q6K => 1,
        }
    }

    /// Returns the 6-bit scale and the 6-bit offset of group `group` (32 numbers) in a block of [`Packing::Q4K`] or
    /// [`Packing::Q5K`].
    pub(crate) fn group_scales(block: &[u8], group: usize) -> [u8; 2] {
        let byte = |at: usize| block.get(at).copied().unwrap_or_default();
        if group < 4 {
            return [byte(4 + group) & 63, byte(8 + group) & 63];
        }
        let both = byte(8 + group);
        [
            both & 15 | byte(group) >> 6 << 4,
            both >> 4 | byte(4 + group) >> 6 << 4,
        ]
    }

    /// Returns the integer, 0 to 31, of the number with index `at` in a block; the format must be one of 5 bits.
    pub(crate) fn five_bits(self, block: &[u8], at: usize) -> u8 {
        let byte = |at: usize| block.get(at).copied().unwrap_or_default();
        // The byte with the fifth bit, the byte with the other four, whether these are its upper half, and the place of
        // the fifth bit.
        let (fifth, low, upper, bit) = if self == Self::Q5K {
            let (group, within) = (at / 32, at % 32);
            let low = byte(48 + group / 2 * 32 + within);
            (byte(16 + within), low, group % 2 == 1, group)
        } else {
            let scales = if self == Self::Q5_0 { 2 } else { 4 };
            let low = byte(scales + 4 + at % 16);
            (byte(scales + at / 8), low, at >= 16, at % 8)
        };
        let low = if upper { low >> 4 } else { low & 15 };
        low | (fifth >> bit & 1) << 4
    }

    /// Returns the integer, -32 to 31, of the number with index `at` in a block of [`Packing::Q6K`].
    pub(crate) fn q6k_integer(block: &[u8], at: usize) -> i8 {
        let byte = |at: usize| block.get(at).copied().unwrap_or_default();
        let (part, quarter, l) = (at / 128, at % 128 / 32, at % 32);
        let low = byte(part * 64 + l + quarter % 2 * 32);
        let low = if quarter < 2 { low & 15 } else { low >> 4 };
        let high = byte(128 + part * 32 + l) >> (2 * quarter) & 3;
        (low | high << 4).cast_signed() - 32
    }

    /// Converts the numbers of one block to f32 and writes them to the beginning of `values`.
    pub(crate) fn unpack(self, block: &[u8], values: &mut [f32; 256]) {
        let byte = |at: usize| block.get(at).copied().unwrap_or_default();
        let half = |at: usize| f16::from_le_bytes([byte(at), byte(at + 1)]).to_f32();
        let signed = |at: usize| f32::from(byte(at).cast_signed());
        let low = |at: usize| f32::from(byte(at) & 15);
        let high = |at: usize| f32::from(byte(at) >> 4);
        let scale = half(self.scale());
        match self {
            Self::Q4_0 => {
                for at in 0..16 {
                    values[at] = scale * (low(2 + at) - 8.0);
                    values[at + 16] = scale * (high(2 + at) - 8.0);
                }
            }
            Self::Q4_1 => {
                let offset = half(2);
                for at in 0..16 {
                    values[at] = scale * low(4 + at) + offset;
                    values[at + 16] = scale * high(4 + at) + offset;
                }
            }
            Self::Q5_0 | Self::Q5_1 => {
                let offset = match self {
                    Self::Q5_0 => -16.0 * scale,
                    _ => half(2),
                };
                for (at, value) in values.iter_mut().take(32).enumerate() {
                    *value = scale * f32::from(self.five_bits(block, at)) + offset;
                }
            }
            Self::Q8_0 => {
                for (at, value) in values.iter_mut().take(32).enumerate() {
                    *value = scale * signed(2 + at);
                }
            }
            Self::Q4K | Self::Q5K => {
                let offsets = half(2);
                for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    let [own, offset] = Self::group_scales(block, group).map(f32::from);
                    let (own, offset) = (scale * own, offsets * offset);
                    for (within, value) in values.iter_mut().enumerate() {
                        let place = 16 + group / 2 * 32 + within;
                        let number = match self {
                            Self::Q5K => f32::from(self.five_bits(block, group * 32 + within)),
                            _ if group % 2 == 0 => low(place),
                            _ => high(place),
                        };
                        *value = own * number - offset;
                    }
                }
            }
            Self::Q6K => {
                for (at, value) in values.iter_mut().enumerate() {
                    let own = scale * signed(192 + at / 16);
                    *value = own * f32::from(Self::q6k_integer(block, at));
                }
            }
        }
    }
}
