//! Every target on its seeds, on what fuzzing once found, and on seeded changes of both.

use foreword_fuzz::{TARGETS, Target, mutated};
use foreword_ordering::random::Random;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changed inputs of each target: a second or so.
const CHANGES: u64 = 300;

/// The same where an input is played through the shipped module, at two sizes.
const PLAYED: u64 = 10;

/// Runs a target; where something does not hold, the input is kept in a file that the failure names.
fn run(target: Target, input: &[u8]) {
    if catch_unwind(|| (target.run)(input)).is_err() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("found-{}", target.name));
        std::fs::write(&path, input).unwrap();
        panic!("{} does not take {}", target.name, path.display());
    }
}

/// What fuzzing once found, and what is kept of where it has been.
fn found(target: Target) -> Vec<Vec<u8>> {
    ["found", "corpus"]
        .map(|kept| stored(kept, target))
        .concat()
}

fn stored(kept: &str, target: Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kept)
        .join(target.name);
    let files = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn every_target_takes_its_seeds_what_was_found_and_changes_of_both() {
    let next = AtomicUsize::new(0);
    let play_next = || {
        while let Some(&target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
            play(target);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(play_next);
        }
    });
}

fn play(target: Target) {
    let inputs = [(target.seeds)(), found(target)].concat();
    assert!(!inputs.is_empty(), "{} has no seeds", target.name);
    for input in &inputs {
        run(target, input);
    }
    let mut random = Random::new(7);
    let mut any = || &inputs[random.below(inputs.len() as u64) as usize];
    let changes = match target.name {
        "instructions" => PLAYED,
        _ => CHANGES,
    };
    let pairs: Vec<_> = (0..changes).map(|_| (any(), any())).collect();
    for (input, other) in pairs {
        run(target, &mutated(input, other, &mut random));
    }
}

#[test]
fn targets_are_known_by_their_names() {
    for &target in TARGETS {
        assert_eq!(
            Target::named(target.name).map(|found| found.name),
            Some(target.name)
        );
    }
    assert!(Target::named("nothing").is_none());
}
