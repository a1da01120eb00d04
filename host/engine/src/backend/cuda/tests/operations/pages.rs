//! Tests of copies of pages.

use super::{Random, devices, put, read};
use crate::backend::cuda::device::Queue;
use crate::backend::cuda::kernels::{self, Runs};

#[test]
fn pages_are_copied_whole_and_in_part() {
    for mut device in devices() {
        let device = &mut *device;
        let random = &mut Random::new(3);
        // Pages of 6 runs of 80 bytes in one buffer, and of 7 in the other.
        let strides = [480, 560];
        let bytes: Vec<u8> = (0..10 * strides[0]).map(|_| random.bits() as u8).collect();
        let from = put(device, &bytes);
        let to = put(device, &vec![1u8; 12 * strides[1]]);
        let pairs = [3, 11, 0, 0, 9, 4];
        let device_pairs = put(device, &pairs);
        device.after(Queue::Compute, Queue::Copy).unwrap();
        for (runs, run) in [(1, 480), (6, 32), (6, 80)] {
            let runs = Runs {
                strides,
                runs,
                run,
                pitch: 80,
            };
            kernels::copy_pages(
                device,
                Queue::Copy,
                from.all().address(),
                to.all().address(),
                device_pairs.all(),
                &runs,
            )
            .unwrap();
            device.wait(Queue::Copy).unwrap();
            let found = read(device, &to);
            for pair in pairs.chunks(2) {
                for number in 0..runs.runs {
                    let at =
                        |page: u32, stride: usize| page as usize * stride + number * runs.pitch;
                    let expected = &bytes[at(pair[0], strides[0])..][..runs.run];
                    assert_eq!(&found[at(pair[1], strides[1])..][..runs.run], expected);
                }
            }
            assert!(
                found[strides[1]..2 * strides[1]]
                    .iter()
                    .all(|byte| *byte == 1),
                "a page that is no target"
            );
        }
    }
}
