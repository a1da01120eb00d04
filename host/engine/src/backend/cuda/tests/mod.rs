//! Tests of kernels and backend against plain arithmetic and against the CPU backend, on every device there is: the
//! emulator, and a real one where the machine has it. The same tests run once more through a stand-in for CUDA's
//! driver.

pub(super) mod emulated;
#[allow(dead_code, reason = "greedy answers are the tests' of whole hosts")]
#[path = "../../../../tests/support/fixtures.rs"]
mod fixtures;
mod fp8;
mod mistakes;
mod models;
mod operations;
mod standin;
mod steps;
mod transformers;

use super::device::Device;
use super::driver::Driver;
use emulated::Emulated;

/// Returns the devices that tests run on, each without the warpgroup kernels and, where it has them, with them. Prints
/// which devices are missing, and why. With `FOREWORD_TEST_DEVICE=cuda` they are those of the machine, which must have
/// one.
fn devices() -> Vec<Box<dyn Device>> {
    if standin::is_loaded() {
        return vec![Box::new(Driver::open(0).unwrap())];
    }
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    let cuda_alone = std::env::var_os("FOREWORD_TEST_DEVICE").is_some_and(|name| name == "cuda");
    for warpgroups in [false, true] {
        if !cuda_alone && let Some(emulated) = Emulated::new(warpgroups) {
            devices.push(Box::new(emulated));
        }
    }
    match Driver::open(0) {
        Ok(device) => {
            if device.has_warpgroups() {
                let again = Driver::open(0).expect("it was opened before");
                devices.push(Box::new(again.without_warpgroups()));
            }
            devices.push(Box::new(device));
        }
        Err(error) if cuda_alone => panic!("there is no device: {error}"),
        Err(error) => eprintln!("SKIPPED on a device: {error}"),
    }
    devices
}

/// Returns whether a device is the emulator, itself or behind the stand-in driver, and therefore slow.
fn is_emulated(device: &dyn Device) -> bool {
    device.name().starts_with("emulator")
}

/// A seeded source of random numbers for kernels.
pub(super) struct Random(foreword_ordering::random::Random);

impl Random {
    fn new(seed: u64) -> Self {
        Self(foreword_ordering::random::Random::new(seed))
    }

    fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Returns an index below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit as u64) as usize
    }

    /// Returns a value between -1 and 1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// Returns values that bf16 represents exactly.
    fn narrow(&mut self, count: usize) -> Vec<half::bf16> {
        (0..count)
            .map(|_| half::bf16::from_f32(self.value()))
            .collect()
    }

    /// Returns `0..count` in random order.
    fn shuffled(&mut self, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count as u32).collect();
        self.0.shuffle(&mut all);
        all
    }
}
