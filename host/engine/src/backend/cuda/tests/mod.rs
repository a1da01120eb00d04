//! Kernels and backend against plain arithmetic and against the CPU backend, on every device there is: the emulator, and a
//! real one where the machine has it. The bodies are the same.

pub(super) mod emulated;
#[allow(dead_code, reason = "greedy answers are the tests' of whole hosts")]
#[path = "../../../../tests/support/fixtures.rs"]
mod fixtures;
mod mistakes;
mod models;
mod operations;
mod transformers;

use super::device::Device;
use super::driver::Driver;
use emulated::Emulated;

/// The devices that tests run on; prints which are missing, and why.
fn devices() -> Vec<Box<dyn Device>> {
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    if let Some(emulated) = Emulated::new() {
        devices.push(Box::new(emulated));
    }
    match Driver::open(0) {
        Ok(device) => devices.push(Box::new(device)),
        Err(error) => eprintln!("SKIPPED on a device: {error}"),
    }
    devices
}

/// Random numbers with a seed.
pub(super) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Within -1 and 1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// Values that bf16 holds exactly.
    fn narrow(&mut self, count: usize) -> Vec<half::bf16> {
        (0..count)
            .map(|_| half::bf16::from_f32(self.value()))
            .collect()
    }

    /// `0..count` in random order.
    fn shuffled(&mut self, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}
