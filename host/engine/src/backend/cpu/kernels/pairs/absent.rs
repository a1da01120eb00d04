//! Stands in for `amx.rs` and `avx512.rs` on other architectures than x86-64, with instructions that no CPU of these
//! has.

use super::Checked;
pub(in super::super::super) use super::tiles::Emulated as TileRegisters;

/// Stands for the proof that the CPU has AMX, of which no value exists on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Amx {}

/// Stands for the proof that the CPU has AVX512-BF16, of which no value exists on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Avx512Bf16 {}

impl Amx {
    pub(super) fn detect() -> Result<Option<Self>, String> {
        Ok(None)
    }

    pub(super) fn unit(self) -> TileRegisters {
        match self {}
    }
}

impl Avx512Bf16 {
    pub(super) fn detect() -> Option<Self> {
        None
    }

    pub(super) fn is_faster_than_f32(self) -> bool {
        match self {}
    }

    pub(super) fn multiply(self, _: Checked<'_>) {
        match self {}
    }
}
