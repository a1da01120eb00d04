//! Stands in for `x86.rs` on other architectures, with instruction sets that no CPU of these has.

use super::{Checked, Loop, Scalar};

/// Stands for the proof that the CPU has AVX-512, of which no value exists on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Avx512 {}

/// Stands for the proof that the CPU has AVX2, of which no value exists on this architecture.
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

/// Stands for the AVX-512 kernel of matrix products on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn multiply_avx512<E: Scalar>(_: Checked<'_, E>) {}

/// Stands for the AVX2 kernel of matrix products on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn multiply_avx2<E: Scalar>(_: Checked<'_, E>) {}

/// Stands for the AVX-512 conversion to f32 on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn widen_avx512<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// Stands for the AVX2 conversion to f32 on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn widen_avx2<E: Scalar>(_: &[E], _: &mut [f32]) {}

/// Stands for running a loop compiled for AVX-512 on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx512`] value.
pub(super) unsafe fn run_avx512(_: impl Loop) {}

/// Stands for running a loop compiled for AVX2 on architectures without it.
///
/// # Safety
/// Cannot be called: there is no [`Avx2`] value.
pub(super) unsafe fn run_avx2(_: impl Loop) {}
