//! Tests of sampling tokens from rows of logits.

use super::super::emulated::Emulated;
use super::{Random, devices, put, read, room};
use crate::backend::cuda::kernels;
use crate::sampling::{Draw, Sampling, SamplingError, SamplingFields};

fn sampling(temperature: f32, top_p: f32, top_k: u32, min_p: f32) -> Sampling {
    let fields = SamplingFields {
        temperature: Some(temperature),
        top_p: Some(top_p),
        top_k: Some(top_k),
        min_p: Some(min_p),
        ..SamplingFields::default()
    };
    fields.sampling(99).unwrap()
}

#[test]
fn tokens_are_chosen_as_the_host_chooses_them() {
    let ways: Vec<(f32, f32, u32, f32)> = vec![
        (0.0, 1.0, 0, 0.0),
        (1.0, 1.0, 0, 0.0),
        (0.3, 1.0, 0, 0.0),
        (2.0, 0.9, 0, 0.0),
        (1.0, 0.2, 0, 0.0),
        (1.0, 1.0, 1, 0.0),
        (1.5, 1.0, 7, 0.0),
        (1.0, 0.7, 20, 0.0),
        (1.0, 1.0, 0, 0.3),
        (1.2, 0.95, 50, 0.05),
        (1.0, 1.0, 100_000, 0.0),
    ];
    for mut device in devices() {
        let device = &mut *device;
        for vocabulary in [1, 90, 5000] {
            let random = &mut Random::new(vocabulary as u64);
            let mut logits = Vec::new();
            for row in 0..ways.len() {
                // Few distinct values make ties common; some tokens are masked.
                let grain = if row % 2 == 0 { 64.0 } else { 1e6 };
                logits.extend(
                    random
                        .values(vocabulary)
                        .iter()
                        .map(|x| (x * 8.0 * grain).round() / grain),
                );
                if vocabulary > 2 {
                    logits[row * vocabulary + random.below(vocabulary)] = f32::NEG_INFINITY;
                }
            }
            let device_logits = put(device, &logits);
            for position in 0..6u32 {
                let samplings: Vec<Sampling> = ways
                    .iter()
                    .map(|&(temperature, top_p, top_k, min_p)| {
                        sampling(temperature, top_p, top_k, min_p)
                    })
                    .collect();
                let choices: Vec<Draw> = samplings
                    .iter()
                    .map(|sampling| sampling.draw(position))
                    .collect();
                let device_choices = put(device, &choices);
                let mut chosen = room::<u32>(device, 2 * ways.len());
                kernels::sample_rows(
                    device,
                    device_logits.all(),
                    device_choices.all(),
                    chosen.all_mut(),
                    vocabulary,
                )
                .unwrap();
                let chosen = read(device, &chosen);
                for (row, sampling) in samplings.iter().enumerate() {
                    let expected = sampling
                        .choose(&logits[row * vocabulary..][..vocabulary], position)
                        .unwrap();
                    assert_eq!(
                        chosen[row * 2..][..2],
                        [0, expected],
                        "{sampling:?} at {position} of {vocabulary}"
                    );
                }
            }
        }
        // NaN is reported with its token, and so is a row that leaves nothing.
        let (nan, none) = (f32::NAN, f32::NEG_INFINITY);
        let logits = [[1.0, nan, f32::INFINITY], [none, none, none]].concat();
        let device_logits = put(device, &logits);
        let choice = Sampling::greedy().draw(0);
        let choices = put(device, &[choice; 2]);
        let mut chosen = room::<u32>(device, 4);
        kernels::sample_rows(
            device,
            device_logits.all(),
            choices.all(),
            chosen.all_mut(),
            3,
        )
        .unwrap();
        let chosen = read(device, &chosen);
        assert_eq!((chosen[0], chosen[1], chosen[2]), (1, 1, 2));
        assert_eq!(
            Sampling::greedy().choose(&logits[..3], 0),
            Err(SamplingError::NotFinite { token: 1 })
        );
    }
}

/// Checks that `sampling` chooses the host's token from `logits`, and returns the work per token of the vocabulary:
/// loads of logits, and additions to shared memory.
fn work_of(device: &mut Emulated, logits: &[f32], sampling: &Sampling) -> (f64, f64) {
    let device_logits = put(device, logits);
    let choices = put(device, &[sampling.draw(3)]);
    let mut chosen = room::<u32>(device, 2);
    kernels::sample_rows(
        device,
        device_logits.all(),
        choices.all(),
        chosen.all_mut(),
        logits.len(),
    )
    .unwrap();
    let expected = sampling.choose(logits, 3).unwrap();
    assert_eq!(read(device, &chosen), [0, expected], "{sampling:?}");
    let per_token = |count: u64| count as f64 / logits.len() as f64;
    (per_token(device.work.loads), per_token(device.work.adds))
}

#[test]
fn a_row_is_read_three_times_unless_very_many_tokens_remain() {
    const VOCABULARY: usize = 152_064;
    let Some(mut device) = Emulated::new(false) else {
        return;
    };
    // As a model's: most logits around zero, and a few likely tokens.
    let random = &mut Random::new(5);
    let mut model: Vec<f32> = (0..VOCABULARY)
        .map(|_| random.values(6).iter().sum::<f32>() * 1.8)
        .collect();
    for likely in [9.0, 12.5, 13.0, 13.5, 15.0, 16.0, 17.0] {
        model[random.below(VOCABULARY)] = likely;
    }
    let flat = vec![2.5; VOCABULARY];
    // Greedy; nothing cut, where a part is read again; one search; two; three; three with tokens beyond a list.
    for (logits, (temperature, top_p, top_k, min_p), loads, adds) in [
        (&model, (0.0, 1.0, 0, 0.0), 1.0, 0.0),
        (&model, (1.0, 1.0, 0, 0.0), 2.04, 0.0),
        (&model, (1.0, 1.0, 0, 0.1), 3.01, 0.01),
        (&model, (1.0, 0.95, 0, 0.0), 3.1, 1.02),
        (&model, (1.0, 0.95, 40, 0.0), 3.02, 1.02),
        (&model, (0.8, 0.7, 20, 0.05), 3.02, 1.02),
        (&model, (1.2, 0.999, 12_000, 0.0), 9.1, 1.4),
        (&model, (2.0, 0.9, 0, 0.0), 6.3, 2.0),
        // All tokens are alike, and no digit before the ids' reduces them.
        (&flat, (1.0, 1.0, 0, 0.0), 2.04, 0.0),
        (&flat, (1.0, 0.9, 12_000, 0.0), 25.0, 10.0),
    ] {
        let sampling = sampling(temperature, top_p, top_k, min_p);
        let found = work_of(&mut device, logits, &sampling);
        assert!(
            found.0 <= loads && found.1 <= adds,
            "{sampling:?}: {found:?}, expected at most {loads} loads and {adds} additions"
        );
    }
}
