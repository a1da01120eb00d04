//! Seeded changes of an input, for tests that have no libFuzzer: what it does too, without its view of coverage.

use foreword_ordering::random::Random;

/// `input` after one to four changes; `other` is what pieces are taken from.
#[must_use]
pub fn mutated(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, other, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let end = (at + random.below(40) as usize).min(bytes.len());
    match random.below(7) {
        0 => drop(bytes.drain(at..end)),
        1 => bytes.truncate(at),
        2 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        3 => {
            let start = random.below(other.len() as u64 + 1) as usize;
            let length = random.below(60) as usize;
            let piece = other[start..].iter().take(length).copied();
            bytes.splice(at..end, piece);
        }
        4 => {
            let word = WORDS[random.below(WORDS.len() as u64) as usize];
            bytes.splice(at..at, word.iter().copied());
        }
        5 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.bits() as u8;
            }
        }
    }
}

/// What means something somewhere.
const WORDS: [&[u8]; 20] = [
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\x7f",
    b"{",
    b"}",
    b"[",
    b"],",
    b"\"",
    b"\\",
    b"\\u003c",
    b"\\ud800",
    b"\\n",
    b"null",
    b"-1e999",
    b"18446744073709551616",
    b"<doc>",
    b"</doc>",
    b"[1] ",
    b"\\n---\\n",
    b"\"usage\":",
];
