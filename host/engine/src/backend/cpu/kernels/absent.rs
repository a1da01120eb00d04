//! The twin of `x86.rs` for other architectures: instruction sets that no CPU has.

use super::{Checked, Loop, Scalar};

/// Never a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx512 {}

/// Never a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx2 {}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        None
    }
}

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        None
    }
}

/// # Safety
/// Never called: there is no [`Avx512`].
pub(super) unsafe fn multiply_avx512<E: Scalar>(_: Checked<'_, E>) {}

/// # Safety
/// Never called: there is no [`Avx2`].
pub(super) unsafe fn multiply_avx2<E: Scalar>(_: Checked<'_, E>) {}

/// # Safety
/// Never called: there is no [`Avx512`].
pub(super) unsafe fn widen_avx512<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// # Safety
/// Never called: there is no [`Avx2`].
pub(super) unsafe fn widen_avx2<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// # Safety
/// Never called: there is no [`Avx512`].
pub(super) unsafe fn run_avx512(_: impl Loop) {}

/// # Safety
/// Never called: there is no [`Avx2`].
pub(super) unsafe fn run_avx2(_: impl Loop) {}
