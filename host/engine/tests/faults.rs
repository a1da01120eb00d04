//! Tests of device faults around the real CPU backend: what they destroy, and what they leave intact.

#[allow(dead_code, unreachable_pub)]
#[path = "support/faulty.rs"]
mod faulty;

use faulty::{Call, Fault, FaultyBackend};
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{
    Backend, BackendError, HostPageId, Load, Output, PageId, Segment, Step, Store,
};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use std::sync::mpsc::{Receiver, channel};

const SHAPE: &str = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 50, "max_position_embeddings": 256}"#;
const HOST_PAGES: u32 = 4;

fn faulty(script: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) -> impl Backend {
    let config = CpuConfig {
        pages: 8,
        host_pages: HOST_PAGES + 1,
        page_tokens: 16,
        threads: Some(2),
        precision: Precision::Auto,
    };
    let model = ModelConfig::parse(SHAPE).unwrap();
    let checkpoint = Checkpoint::random(model, Element::F32, 3);
    FaultyBackend::new(CpuBackend::new(&checkpoint, &config).unwrap(), script)
}

/// Returns a step with tokens `start..40` of one sequence, on these pages.
fn step(start: u32, pages: [u32; 3], loads: &[(u32, u32)]) -> Step {
    let loads = loads.iter().map(|&(from, to)| Load {
        from: HostPageId(from),
        to: PageId(to),
    });
    Step {
        loads: loads.collect(),
        segments: vec![Segment {
            tokens: (start..40).map(|at| at * 7 % 50).collect(),
            start,
            pages: pages.map(PageId).to_vec(),
            output: Output::Last,
        }],
    }
}

fn run(backend: &mut impl Backend, step: &Step) -> Result<Vec<f32>, BackendError> {
    let mut logits = Vec::new();
    backend.run(step, &mut logits).map(|()| logits)
}

fn store(backend: &mut impl Backend, stores: &[(u32, u32)]) -> Result<(), BackendError> {
    let stores = stores.iter().map(|&(from, to)| Store {
        from: PageId(from),
        to: HostPageId(to),
    });
    backend.store(&stores.collect::<Vec<_>>())
}

/// Returns a script that yields these faults, one a call, and then none.
fn faults(faults: Vec<Option<Fault>>) -> impl FnMut(Call<'_>) -> Option<Fault> {
    let mut faults = faults.into_iter();
    move |_| faults.next().flatten()
}

#[test]
fn a_lost_device_loses_its_pages_and_the_hosts_bring_them_back() {
    let mut backend = faulty(faults(vec![None, None, Some(Fault::Lost)]));
    assert_eq!(backend.shape().host_pages, HOST_PAGES);
    let expected = run(&mut backend, &step(0, [0, 1, 2], &[])).unwrap();
    store(&mut backend, &[(0, 3), (1, 1)]).unwrap();
    let rest = step(32, [0, 1, 2], &[]);
    let lost = run(&mut backend, &rest);
    assert!(matches!(lost, Err(BackendError::Lost(_))), "{lost:?}");
    let spoiled = run(&mut backend, &rest).unwrap();
    assert!(spoiled.iter().all(|logit| logit.is_nan()));
    let loads = [(3, 5), (1, 6)];
    let restored = run(&mut backend, &step(32, [5, 6, 2], &loads)).unwrap();
    assert!(restored == expected);
    // The wrapper's own page is inaccessible to others.
    let hidden = run(&mut backend, &step(32, [5, 6, 2], &[(HOST_PAGES, 5)]));
    assert!(matches!(hidden, Err(BackendError::Malformed(_))));
    assert!(store(&mut backend, &[(0, HOST_PAGES)]).is_err());
    assert!(backend.host_page(HostPageId(HOST_PAGES)).is_err());
}

#[test]
fn a_failed_call_leaves_other_pages_as_they_were() {
    let mut backend = faulty(|call| match call {
        Call::Run(step) if step.segments[0].start == 16 => Some(Fault::Device),
        Call::Store(stores) if stores.len() == 2 => Some(Fault::Device),
        Call::HostPage(HostPageId(2)) => Some(Fault::Device),
        Call::CopySlots => Some(Fault::Device),
        _ => None,
    });
    let expected = run(&mut backend, &step(0, [0, 1, 2], &[])).unwrap();
    for outcome in [
        run(&mut backend, &step(16, [0, 1, 2], &[])).map(|_| ()),
        store(&mut backend, &[(0, 0), (1, 1)]),
        backend.host_page(HostPageId(2)).map(|_| ()),
        backend.host_page_mut(HostPageId(2)).map(|_| ()),
        backend.copy_slots(PageId(0), PageId(1), 3),
    ] {
        assert!(
            matches!(outcome, Err(BackendError::Device(_))),
            "{outcome:?}"
        );
    }
    assert!(run(&mut backend, &step(32, [0, 1, 2], &[])).unwrap() == expected);
}

#[test]
fn a_stuck_call_goes_on_when_it_is_let_go() {
    let (release, released): (_, Receiver<()>) = channel();
    let mut backend = faulty(faults(vec![None, Some(Fault::Stuck(released))]));
    let expected = run(&mut backend, &step(0, [0, 1, 2], &[])).unwrap();
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || {
        done.send(run(&mut backend, &step(0, [3, 4, 5], &[])))
            .unwrap();
    });
    assert!(outcome.try_recv().is_err());
    drop(release);
    assert!(outcome.recv().unwrap().unwrap() == expected);
    thread.join().unwrap();
}
