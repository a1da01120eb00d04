//! Tests that the emulator finds mistakes: kernels with one mistake each.

use super::emulated::Emulated;
use crate::backend::cuda::device::Array;

#[repr(C)]
struct Mistake {
    values: u64,
    count: u32,
    unused: u32,
}

/// Returns the error message for a kernel of 64 threads on a buffer of `floats` floats and `shared` bytes of shared
/// memory.
fn said_of(kernel: &str, floats: usize, shared: u32) -> Option<String> {
    said_of_threads(kernel, 64, floats, shared)
}

fn said_of_threads(kernel: &str, threads: u32, floats: usize, shared: u32) -> Option<String> {
    let mut device = Emulated::new(true)?;
    let values = Array::<f32>::of(&mut device, &vec![3.0; floats]).unwrap();
    let argument = Mistake {
        values: values.all().address(),
        count: 64,
        unused: 0,
    };
    let raw = (std::ptr::from_ref(&argument).cast(), size_of::<Mistake>());
    let mut runs = [false, true].map(|backwards| {
        let outcome = device.launch_once(kernel, [1, 1, 1], threads, shared, raw, backwards);
        let mut after = vec![0.0; floats];
        values.read(&mut device, 0, &mut after).unwrap();
        match outcome {
            Ok(_) => format!("{after:?}"),
            Err(fault) => fault.to_string(),
        }
    });
    if runs[0] == runs[1] {
        return Some(std::mem::take(&mut runs[0]));
    }
    // The format of `launch_twice`.
    Some(format!(
        "the order of threads counts: {}",
        runs.join(" or ")
    ))
}

#[test]
fn an_access_beyond_a_buffer_is_named() {
    if let Some(said) = said_of("mistake_beyond_a_buffer", 60, 16) {
        assert!(
            said.contains("mistake_beyond_a_buffer, block (0, 0, 0), thread 60"),
            "{said}"
        );
        assert!(
            said.contains("touched byte 0 behind a buffer of 240 bytes"),
            "{said}"
        );
    }
}

#[test]
fn an_access_beyond_shared_memory_is_named() {
    if let Some(said) = said_of("mistake_beyond_shared_memory", 64, 128) {
        assert!(
            said.contains("thread 32: touched byte 0 behind shared memory of 128 bytes"),
            "{said}"
        );
    }
}

#[test]
fn a_missing_barrier_shows_as_an_order_that_counts() {
    if let Some(said) = said_of("mistake_no_barrier", 64, 256) {
        assert!(said.starts_with("the order of threads counts"), "{said}");
    }
}

#[test]
fn what_is_copied_asynchronously_is_not_there_before_it_was_waited_for() {
    if let Some(said) = said_of("mistake_no_wait", 64, 64 * 16) {
        assert!(said.contains("NaN"), "{said}");
    }
}

#[test]
fn shared_memory_that_nobody_set_is_not_a_number() {
    if let Some(said) = said_of("mistake_unset_shared_memory", 64, 256) {
        assert!(said.contains("NaN"), "{said}");
    }
}

#[test]
fn a_lane_that_stays_away_is_missed() {
    if let Some(said) = said_of("mistake_lonely_lane", 64, 16) {
        assert!(
            said.contains("threads wait for others that never come"),
            "{said}"
        );
    }
}

#[test]
fn mistakes_about_multiplications_of_warpgroups_are_named() {
    for (kernel, expected) in [
        ("multiply_right", "[3.0, 3.0, 3.0, 3.0, 72.0, 72.0, "),
        (
            "multiply_before_copies",
            "of shared memory, which a copy is still to write",
        ),
        (
            "multiply_unfenced_copies",
            "of shared memory, which a copy of thread 0 wrote with no fence since",
        ),
        (
            "multiply_unfenced_registers",
            "a multiplication with no fence of registers before it",
        ),
        (
            "multiply_fenced_too_early",
            "a multiplication with registers that were written after the fence",
        ),
        (
            "multiply_uncommitted",
            "ended with a multiplication that nobody waited for",
        ),
        (
            "multiply_unawaited",
            "ended with a multiplication that nobody waited for",
        ),
        ("multiply_read_early", "[3.0, 3.0, 3.0, 3.0, NaN, NaN, "),
        (
            "multiply_touch_accumulators",
            "somebody wrote to accumulators of a multiplication under way",
        ),
        (
            "multiply_touch_registers",
            "somebody wrote to registers of A of a multiplication under way",
        ),
        (
            "multiply_overwrite_operand",
            "a copy to what a multiplication under way reads",
        ),
        (
            "multiply_other_swizzle",
            "a descriptor with another swizzle than 128 bytes",
        ),
        (
            "multiply_disagree",
            "warps of a group multiply different operands",
        ),
    ] {
        if let Some(said) = said_of_threads(kernel, 128, 132, 16 << 10) {
            assert!(said.contains(expected), "{kernel}: {said}");
        }
    }
}
