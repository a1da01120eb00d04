//! Tests that memory of any size is read as it was written.

use super::{devices, put, read};
use crate::backend::cuda::device::Array;

#[test]
fn arrays_larger_than_what_is_staged_at_once_arrive_whole() {
    for mut device in devices() {
        let device = &mut *device;
        // The driver stages copies through 64 MiB, which it reuses; a piece is half of that.
        let large: Vec<u32> = (0..20 << 20)
            .map(|at: u32| at.wrapping_mul(2_654_435_761))
            .collect();
        let array = put(device, &large);
        let small: Vec<Array<u32>> = (0..9u32).map(|at| put(device, &[at; 5])).collect();
        assert!(read(device, &array) == large, "on {}", device.name());
        for (at, array) in (0..).zip(&small) {
            assert_eq!(read(device, array), [at; 5]);
        }
        let mut some = [0; 3];
        array.read(device, 12_345_678, &mut some).unwrap();
        assert_eq!(some, large[12_345_678..][..3]);
    }
}
