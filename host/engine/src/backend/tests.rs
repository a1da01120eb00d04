//! Helpers for the tests of every backend, and the test bodies that all backends must pass.

use super::{Backend, HostPageId, Load, Output, PageId, Segment, Step, Store};
use crate::TokenId;
use std::ops::Range;

/// Returns tokens that look random and are the same each time.
pub(super) fn tokens(vocabulary: u32, seed: u32, count: usize) -> Vec<TokenId> {
    let token = |i: u32| {
        (i.wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(40_503))
            >> 7)
            % vocabulary
    };
    (0..count as u32).map(token).collect()
}

pub(super) fn segment(
    tokens: &[TokenId],
    start: usize,
    pages: impl IntoIterator<Item = u32>,
    output: Output,
) -> Segment {
    Segment {
        tokens: tokens.to_vec(),
        start: start as u32,
        pages: pages.into_iter().map(PageId).collect(),
        output,
    }
}

pub(super) fn run(backend: &mut dyn Backend, segments: Vec<Segment>) -> Vec<f32> {
    let mut logits = vec![1.0];
    let step = Step {
        segments,
        ..Step::default()
    };
    backend.run(&step, &mut logits).unwrap();
    logits
}

/// Sends the pages of a prompt of 60 tokens to the host pool, one of them through bytes, and continues the prompt on
/// pages that came back. `agree` compares logits, which its text describes, with those of the prompt's tokens in a
/// range. Needs 100 pages of 16 tokens and 6 host pages.
pub(super) fn check_the_host_pool(
    machine: &mut dyn Backend,
    prompt: &[TokenId],
    agree: impl Fn(&str, &[f32], Range<usize>),
) {
    let vocabulary = machine.shape().vocabulary;
    let others = |seed, count| tokens(vocabulary, seed, count);
    run(machine, vec![segment(prompt, 0, 0..4, Output::None)]);
    let stores = [(0, 5), (1, 0), (2, 4)].map(|(from, to)| Store {
        from: PageId(from),
        to: HostPageId(to),
    });
    // One after another, and the pages are immediately needed for something else.
    machine.store(&stores[..1]).unwrap();
    machine.store(&stores[1..2]).unwrap();
    machine.copy_slots(PageId(3), PageId(0), 12).unwrap();
    machine.store(&stores[2..]).unwrap();
    run(
        machine,
        vec![segment(&others(2, 60), 0, [2, 0, 3, 1], Output::Last)],
    );
    // So is a host page.
    let bytes = machine.host_page(HostPageId(5)).unwrap().to_vec();
    assert_eq!(bytes.len(), machine.shape().page_bytes);
    machine.host_page_mut(HostPageId(5)).unwrap().fill(0xff);
    machine
        .host_page_mut(HostPageId(3))
        .unwrap()
        .copy_from_slice(&bytes);
    let loads = [(3, 9), (0, 1), (4, 40)].map(|(from, to)| Load {
        from: HostPageId(from),
        to: PageId(to),
    });
    // Once after the loaded pages, and once from the middle of one.
    for start in [48, 40] {
        let step = Step {
            loads: loads.to_vec(),
            segments: vec![
                segment(&others(4, 20), 0, [70, 71], Output::None),
                segment(&prompt[start..], start, [9, 1, 40, 2], Output::All),
            ],
        };
        let mut logits = Vec::new();
        machine.run(&step, &mut logits).unwrap();
        agree("loaded in the step", &logits, start..60);
    }
    // Loads alone, and a token that decodes on them.
    let step = Step {
        loads: loads.to_vec(),
        ..Step::default()
    };
    machine.run(&step, &mut Vec::new()).unwrap();
    let decoded = segment(&prompt[47..48], 47, [9, 1, 40], Output::Last);
    agree("loaded before", &run(machine, vec![decoded]), 47..48);
}
