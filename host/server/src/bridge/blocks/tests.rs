use super::*;
use crate::kv::vllm::read::{Group, Stored};
use foreword_engine::cache::{Document, DocumentSpan};
use foreword_engine::engine::feed::Feed;
use foreword_ordering::random::Random;
use std::collections::BTreeSet;

const SIZE: usize = 4;
const LIMITS: Limits = Limits {
    blocks: 1000,
    prompts: 1000,
    prompt_tokens: 100_000,
};

fn hash(number: u64) -> BlockHash {
    BlockHash(number.into())
}

/// Returns the event of blocks `numbers`, one after another, with `parent` before the first.
fn stored(numbers: &[u64], parent: Option<u64>, tokens: &[u32], keys: &[&str]) -> BlockEvent {
    BlockEvent::Stored(Stored {
        blocks: numbers.iter().copied().map(hash).collect(),
        parent: parent.map(hash),
        tokens: tokens.to_vec(),
        block_tokens: SIZE as u32,
        medium: Some("GPU".to_owned()),
        keys: Some(keys.iter().map(|&key| Key::Text(key.to_owned())).collect()),
        group: Group::default(),
    })
}

fn removed(numbers: &[u64]) -> BlockEvent {
    BlockEvent::Removed {
        blocks: numbers.iter().copied().map(hash).collect(),
        medium: Some("GPU".to_owned()),
        group: 0,
    }
}

/// Returns the event with the medium `name`.
fn in_medium(name: &str, mut event: BlockEvent) -> BlockEvent {
    let (BlockEvent::Stored(Stored { medium, .. }) | BlockEvent::Removed { medium, .. }) =
        &mut event
    else {
        panic!("{event:?} is nowhere");
    };
    *medium = Some(name.to_owned());
    event
}

/// Documents 1, 2, … with these ends.
fn documents(ends: &[u32]) -> DocumentPath {
    let document = |(fingerprint, &end): (u64, &u32)| DocumentSpan { fingerprint, end };
    DocumentPath {
        scope: 9,
        start: 0,
        documents: (1..).zip(ends).map(document).collect(),
    }
}

/// The documents stored (true) and removed since the last call.
fn told(blocks: &mut Blocks) -> Vec<(bool, Vec<u64>)> {
    let prints = |path: &[Document]| path.iter().map(|(document, _)| *document).collect();
    let events = blocks.take_events().into_iter();
    events
        .filter_map(|event| match event {
            CacheEvent::DocumentsStored { path, .. } => Some((true, prints(&path))),
            CacheEvent::DocumentsRemoved { path, .. } => Some((false, prints(&path))),
            _ => None,
        })
        .collect()
}

#[test]
fn prompt_and_blocks_may_come_in_either_order() {
    let tokens: Vec<u32> = (0..20).collect();
    let ends = documents(&[3, 9, 16]);
    let expected = [(true, vec![1, 2]), (true, vec![1, 2, 3])];

    let mut blocks = Blocks::new(LIMITS);
    blocks.prompt(tokens.clone(), "".into(), ends.clone());
    blocks.event(stored(&[1, 2], None, &tokens[..8], &[]));
    assert_eq!(told(&mut blocks), expected[..1]);
    blocks.event(stored(&[3, 4], Some(2), &tokens[8..16], &[]));
    assert_eq!(told(&mut blocks), expected[1..]);

    let mut blocks = Blocks::new(LIMITS);
    blocks.event(stored(&[3, 4], Some(2), &tokens[8..16], &[]));
    blocks.event(stored(&[1, 2], None, &tokens[..8], &[]));
    blocks.prompt(tokens, "".into(), ends);
    assert_eq!(told(&mut blocks), expected);
    assert_eq!(blocks.counts().prompts, 0, "nothing is left to wait for");
}

#[test]
fn a_block_that_goes_takes_the_marks_behind_it() {
    let tokens: Vec<u32> = (0..12).collect();
    let mut blocks = Blocks::new(LIMITS);
    blocks.event(stored(&[1, 2, 3], None, &tokens, &[]));
    blocks.prompt(tokens.clone(), "".into(), documents(&[4, 8, 12]));
    assert_eq!(told(&mut blocks).len(), 3);
    blocks.event(removed(&[2]));
    assert_eq!(
        told(&mut blocks),
        [(false, vec![1, 2, 3]), (false, vec![1, 2])]
    );
    // The block after the gap is still there: the next prompt restores its marks.
    blocks.event(stored(&[2], Some(1), &tokens[4..8], &[]));
    blocks.prompt(tokens, "".into(), documents(&[4, 8, 12]));
    assert_eq!(
        told(&mut blocks),
        [(true, vec![1, 2]), (true, vec![1, 2, 3])]
    );
}

#[test]
fn a_block_in_two_places_is_there_until_it_is_in_neither() {
    let tokens: Vec<u32> = (0..4).collect();
    let mut blocks = Blocks::new(LIMITS);
    blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
    blocks.event(stored(&[1], None, &tokens, &[]));
    blocks.event(in_medium("CPU", stored(&[1], None, &tokens, &[])));
    assert_eq!(told(&mut blocks).len(), 1);
    blocks.event(removed(&[1]));
    assert_eq!(told(&mut blocks), []);
    blocks.event(in_medium("cpu", removed(&[1])));
    assert_eq!(told(&mut blocks), [(false, vec![1])]);
}

#[test]
fn tenants_find_their_own_blocks_only() {
    let tokens: Vec<u32> = (0..4).collect();
    let key = TenantKey::of("b").to_string();
    let mut blocks = Blocks::new(LIMITS);
    blocks.event(stored(&[1], None, &tokens, &["a"]));
    for salt in ["", "b"] {
        blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
    }
    assert_eq!(told(&mut blocks), []);
    blocks.prompt(tokens.clone(), "a".into(), documents(&[4]));
    assert_eq!(told(&mut blocks).len(), 1);
    // Our own engine reports the tenant key, not the salt.
    blocks.event(stored(&[2], None, &tokens, &[&key]));
    assert_eq!(told(&mut blocks).len(), 1);
    blocks.event(stored(&[3], None, &tokens, &[]));
    assert_eq!(told(&mut blocks).len(), 1);
}

#[test]
fn a_blocks_hash_depends_on_nothing_that_the_request_has_not() {
    let tokens: Vec<u32> = (0..4).collect();
    let mut blocks = Blocks::new(LIMITS);
    // A tenant's own LoRA or image in addition to its salt, or without one.
    blocks.event(stored(&[1], None, &tokens, &["lora", "a"]));
    blocks.event(stored(&[2], None, &tokens, &["lora"]));
    let mut image = stored(&[3], None, &tokens, &["a"]);
    if let BlockEvent::Stored(Stored {
        keys: Some(keys), ..
    }) = &mut image
    {
        keys.push(Key::Other);
    }
    blocks.event(image);
    for salt in ["", "a"] {
        blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
    }
    assert_eq!(told(&mut blocks), []);
}

#[test]
fn where_salts_are_not_told_a_salted_prompt_ends_what_was_believed() {
    let tokens: Vec<u32> = (0..4).collect();
    let mut untold = stored(&[1], None, &tokens, &[]);
    if let BlockEvent::Stored(Stored { keys, .. }) = &mut untold {
        *keys = None;
    }
    let mut blocks = Blocks::new(LIMITS);
    blocks.event(untold.clone());
    blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
    assert_eq!(told(&mut blocks), [(true, vec![1])]);
    blocks.prompt(tokens.clone(), "a".into(), documents(&[4]));
    assert_eq!(blocks.take_events(), [CacheEvent::Gap { events: 0 }]);
    for salt in ["", "a"] {
        blocks.event(untold.clone());
        blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
    }
    assert_eq!(told(&mut blocks), []);
    assert!(blocks.counts().is_silent && !blocks.awaits_first_salt());
    // Reported documents stay reported.
    blocks.event(stored(&[2], None, &tokens, &["a"]));
    assert_eq!(told(&mut blocks).len(), 1);
}

#[test]
fn a_salted_request_of_unknown_prompt_ends_what_was_believed_too() {
    let tokens: Vec<u32> = (0..4).collect();
    for keys in [None, Some(vec![])] {
        let is_told = keys.is_some();
        let adapter = Some(vec![Key::Other, Key::Other]);
        let mut event = stored(&[1], None, &tokens, &[]);
        if let BlockEvent::Stored(stored) = &mut event {
            stored.keys = keys;
        }
        let mut blocks = Blocks::new(LIMITS);
        let mut other = stored(&[9], None, &tokens, &[]);
        if let BlockEvent::Stored(stored) = &mut other {
            stored.keys = adapter;
        }
        blocks.event(other);
        assert!(blocks.awaits_first_salt());
        blocks.event(event.clone());
        assert_eq!(blocks.awaits_first_salt(), !is_told);
        blocks.record_salt();
        blocks.event(event);
        blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
        assert_eq!(told(&mut blocks).len(), usize::from(is_told));
        assert_eq!(blocks.counts().is_silent, !is_told);
    }
}

#[test]
fn blocks_of_layers_that_keep_a_window_are_passed_over() {
    let tokens: Vec<u32> = (0..4).collect();
    let mut blocks = Blocks::new(LIMITS);
    blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
    let mut windowed = stored(&[1], None, &tokens, &[]);
    if let BlockEvent::Stored(Stored { group, .. }) = &mut windowed {
        *group = Group {
            number: 1,
            is_partial: true,
        };
    }
    blocks.event(windowed);
    assert_eq!(told(&mut blocks), []);
    blocks.event(stored(&[1], None, &tokens, &[]));
    assert_eq!(told(&mut blocks), [(true, vec![1])]);
    // The window has moved on; the other layers' block with the same hash is still there.
    blocks.event(BlockEvent::Removed {
        blocks: vec![hash(1)],
        medium: None,
        group: 1,
    });
    assert_eq!(told(&mut blocks), []);
    blocks.event(removed(&[1]));
    assert_eq!(told(&mut blocks), [(false, vec![1])]);
}

#[test]
fn what_is_remembered_is_bounded() {
    let limits = Limits {
        blocks: 10,
        prompts: 5,
        prompt_tokens: 1000,
    };
    let mut blocks = Blocks::new(limits);
    for number in 0..100 {
        blocks.prompt(vec![number; 8], "".into(), documents(&[8]));
        assert!(blocks.counts().prompts <= 5);
    }
    for number in 0..10 {
        blocks.event(stored(&[number], None, &[1000 + number as u32; 4], &[]));
    }
    assert_eq!(blocks.counts().blocks, 10);
    blocks.take_events();
    blocks.event(stored(&[11], None, &[1; 4], &[]));
    assert_eq!(blocks.take_events(), [CacheEvent::Gap { events: 0 }]);
    assert_eq!(
        blocks.counts(),
        Counts {
            blocks: 0,
            prompts: 0,
            is_silent: false,
        }
    );
}

#[test]
fn a_circle_of_blocks_ends() {
    let mut blocks = Blocks::new(LIMITS);
    blocks.event(stored(&[1], Some(2), &[0; 4], &[]));
    blocks.event(stored(&[2], Some(1), &[0; 4], &[]));
    blocks.event(stored(&[3], Some(3), &[0; 4], &[]));
    blocks.prompt(vec![0; 40], "".into(), documents(&[40]));
    blocks.event(removed(&[1, 3]));
    assert_eq!(told(&mut blocks), []);
}

#[test]
fn a_new_block_is_compared_with_each_waiting_prompt_once() {
    let mut blocks = Blocks::new(LIMITS);
    let tokens = |number: u32| vec![number; 2 * SIZE];
    for number in 0..100 {
        blocks.event(stored(
            &[number.into()],
            None,
            &tokens(number)[..SIZE],
            &["a"],
        ));
    }
    for number in 200..300 {
        blocks.prompt(tokens(number), "a".into(), documents(&[8]));
    }
    blocks.held.visits.set(0);
    blocks.event(stored(&[100], None, &tokens(100)[..SIZE], &["a"]));
    assert_eq!(blocks.held.visits.take(), 100);
    // One of them matches, and then looks for the block behind.
    blocks.event(stored(&[200], None, &tokens(200)[..SIZE], &["a"]));
    assert_eq!(blocks.held.visits.take(), 100);
    blocks.event(stored(&[201], Some(200), &tokens(200)[SIZE..], &[]));
    assert_eq!(blocks.held.visits.take(), 1);
    assert_eq!(told(&mut blocks), [(true, vec![1])]);
    assert_eq!(blocks.counts().prompts, 99);
}

#[test]
fn removing_a_chain_from_its_root_visits_each_block_a_few_times() {
    let tokens: Vec<u32> = (0..400).collect();
    let numbers: Vec<u64> = (1..=100).collect();
    let mut blocks = Blocks::new(LIMITS);
    blocks.event(stored(&numbers, None, &tokens, &[]));
    blocks.prompt(tokens.clone(), "".into(), documents(&[4, 200, 400]));
    assert_eq!(told(&mut blocks).len(), 3);
    blocks.held.visits.set(0);
    blocks.event(removed(&numbers));
    assert!(blocks.held.visits.take() <= 300);
    assert_eq!(told(&mut blocks).len(), 3);
    assert_eq!(blocks.counts().blocks, 0);
}

/// Random blocks, evicted in any order, and prompts, against the obvious model: a document is resident while all blocks
/// before its end are held.
#[test]
fn no_more_is_believed_than_is_there_and_all_of_it_once_it_is_asked_for() {
    let mut believed = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut blocks = Blocks::new(LIMITS);
        let feed = Feed::new();
        // Sequences of 5 blocks with shared beginnings. A block is identified by the tokens up to its end.
        let prompts: Vec<Vec<u32>> = (0..6)
            .map(|_| {
                let letters = (0..5).map(|_| random.below(2) as u32);
                letters.flat_map(|letter| [letter; SIZE]).collect()
            })
            .collect();
        let number = |tokens: &[u32]| {
            let digits = tokens.iter().step_by(SIZE);
            digits.fold(1_u64, |number, &digit| 2 * number + u64::from(digit))
        };
        let mut there: BTreeSet<u64> = BTreeSet::new();
        for _ in 0..120 {
            let prompt = &prompts[random.below(6) as usize];
            match random.below(5) {
                0..2 => {
                    let count = 1 + random.below(5) as usize;
                    let numbers: Vec<u64> = (1..=count)
                        .map(|count| number(&prompt[..count * SIZE]))
                        .collect();
                    there.extend(&numbers);
                    blocks.event(stored(&numbers, None, &prompt[..count * SIZE], &[]));
                }
                2..4 => {
                    let count = 1 + random.below(5) as usize;
                    let gone = number(&prompt[..count * SIZE]);
                    there.remove(&gone);
                    blocks.event(removed(&[gone]));
                }
                _ => blocks.prompt(prompt.clone(), "".into(), path_of(prompt)),
            }
            feed.publish(blocks.take_events());
            believed += check(&feed, &prompts, &there, number, false);
        }
        for prompt in &prompts {
            blocks.prompt(prompt.clone(), "".into(), path_of(prompt));
        }
        feed.publish(blocks.take_events());
        check(&feed, &prompts, &there, number, true);
    }
    assert!(
        believed > 10_000,
        "{believed} documents were believed to be held"
    );
}

/// A document in each block, identified by all tokens up to its end.
fn path_of(prompt: &[u32]) -> DocumentPath {
    let mut path = documents(&[4, 8, 12, 16, 20]);
    for document in &mut path.documents {
        let tokens = &prompt[..document.end as usize];
        document.fingerprint = tokens
            .iter()
            .fold(1, |print, &token| 3 * print + u64::from(token));
    }
    path
}

/// Returns the number of documents reported as resident; panics if one is not, or, if `all`, when one is missing.
fn check(
    feed: &Feed,
    prompts: &[Vec<u32>],
    there: &BTreeSet<u64>,
    number: impl Fn(&[u32]) -> u64,
    all: bool,
) -> usize {
    let mut believed = BTreeSet::new();
    for event in feed.documents_since(None, 0).events {
        let CacheEvent::DocumentsStored { path, .. } = event else {
            panic!("{event:?}")
        };
        let prints: Vec<u64> = path.iter().map(|(document, _)| *document).collect();
        believed.extend((1..=prints.len()).map(|count| prints[..count].to_vec()));
    }
    let mut held = BTreeSet::new();
    for prompt in prompts {
        let blocks = (1..=5).map(|count| number(&prompt[..count * SIZE]));
        let count = blocks.take_while(|number| there.contains(number)).count();
        let prints: Vec<u64> = path_of(prompt)
            .documents
            .iter()
            .map(|document| document.fingerprint)
            .collect();
        held.extend((1..=count).map(|count| prints[..count].to_vec()));
    }
    assert!(believed.is_subset(&held), "{believed:?} but {held:?}");
    assert!(!all || believed == held, "only {believed:?} of {held:?}");
    believed.len()
}
