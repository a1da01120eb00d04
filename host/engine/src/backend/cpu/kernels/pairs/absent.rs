//! The twin of `amx.rs` and of `avx512.rs` for other architectures, with machines that no CPU has.

use super::Checked;
use super::tiles::Emulated;

/// Proof of AMX, which does not exist on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Amx {}

/// Proof of AVX512-BF16, which does not exist on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Avx512Bf16 {}

impl Amx {
    pub(super) fn detect() -> Result<Option<Self>, String> {
        Ok(None)
    }

    pub(super) fn unit(self) -> Emulated {
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
}

/// # Safety
/// Cannot be called: there is no [`Avx512Bf16`] value.
pub(super) unsafe fn multiply(_: Checked<'_>) {}
