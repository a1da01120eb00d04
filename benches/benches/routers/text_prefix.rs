//! The approximation that SGLang's router (`cache_aware`) and llm-d's prefix scorer use: for every engine the blocks of
//! text that were sent there, hashed in a chain; the engine with the longest match if that is half the prompt, else the
//! one that was sent least; the shortest queue when queues differ by much.
//!
//! With SGLang's defaults: `cache_threshold` 0.5, `balance_abs_threshold` 32, `balance_rel_threshold` 1.0001.

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{ENGINES, in_turn};

/// A router that knows each engine by the blocks of text sent to it.
#[derive(Default)]
pub(crate) struct TextPrefix {
    /// The hashes of the blocks that each engine was sent.
    blocks: [HashSet<u64>; ENGINES],
}

impl TextPrefix {
    pub(crate) fn choose(&self, blocks: &[u64], queues: &[usize; ENGINES], turn: usize) -> usize {
        let (least, most) = (queues.iter().min().unwrap(), queues.iter().max().unwrap());
        if most - least > 32 && *most as f64 > *least as f64 * 1.0001 {
            return shortest(queues, turn);
        }
        let matched = |engine: usize| {
            let known = &self.blocks[engine];
            blocks
                .iter()
                .take_while(|block| known.contains(block))
                .count()
        };
        let best = in_turn(turn).max_by_key(|engine| matched(*engine)).unwrap();
        if matched(best) * 2 > blocks.len() {
            return best;
        }
        let least = in_turn(turn).min_by_key(|engine| self.blocks[*engine].len());
        least.unwrap()
    }

    pub(crate) fn sent(&mut self, engine: usize, blocks: &[u64]) {
        self.blocks[engine].extend(blocks);
    }
}

/// The shortest queue; of equals the next in turn.
pub(crate) fn shortest(queues: &[usize; ENGINES], turn: usize) -> usize {
    in_turn(turn).min_by_key(|engine| queues[*engine]).unwrap()
}

/// A prompt's text as a chain of block hashes.
pub(crate) fn chain<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Vec<u64> {
    let hashes = blocks.scan(0, |hash, block| {
        *hash = xxh3_64_with_seed(block, *hash);
        Some(*hash)
    });
    hashes.collect()
}
