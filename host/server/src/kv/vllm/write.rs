//! Writes our cache's page events in vLLM's format.
//!
//! A page becomes a block, whose hash is the lower half of the page's; readers only compare hashes. The first block of
//! a salted prompt has the tenant's key in `extra_keys`, where vLLM's has the salt.

use super::Encoding;
use foreword_engine::cache::{CacheEvent, PageHash, Tier};
use foreword_ordering::feed::TenantKey;
use serde::Serialize;
use std::sync::Arc;

/// Encodes the events on pages as a batch in msgpack; `None` if there are none. `seconds` is the time of the batch
/// since 1970.
///
/// # Errors
/// Never fails in practice, since writing to memory does not fail.
pub fn batch(
    events: &[CacheEvent],
    seconds: f64,
    encoding: Encoding,
) -> Result<Option<Vec<u8>>, rmp_serde::encode::Error> {
    let events = blocks(events);
    if events.is_empty() {
        return Ok(None);
    }
    let rank = 0_u32;
    match encoding {
        Encoding::Map => rmp_serde::to_vec_named(&(seconds, events, rank)),
        Encoding::Array => rmp_serde::to_vec(&(seconds, events, rank)),
    }
    .map(Some)
}

/// An event with vLLM's fields in vLLM's order, its type first, so that it can also be written as an array.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
#[expect(
    clippy::enum_variant_names,
    reason = "vLLM's own names, which are sent"
)]
enum Block {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: u32,
        lora_id: Option<u32>,
        medium: &'static str,
        lora_name: Option<&'static str>,
        /// For each block, the input of its hash besides tokens and parent: the tenant's key, for the first block of a
        /// salted prompt only.
        extra_keys: Vec<Option<[String; 1]>>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
    },
    AllBlocksCleared {},
}

/// Converts events on pages to vLLM's events on blocks. Consecutive pages of one sequence and tier become blocks of one
/// event.
fn blocks(events: &[CacheEvent]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // The tenant of the last block stored.
    let mut whose: Option<&Arc<str>> = None;
    for event in events {
        match event {
            CacheEvent::Stored {
                hash,
                parent,
                tokens,
                salt,
                tier,
            } => {
                let follows = whose == Some(salt);
                whose = Some(salt);
                if let Some(Block::BlockStored {
                    block_hashes,
                    token_ids,
                    medium,
                    extra_keys,
                    ..
                }) = blocks.last_mut()
                    && follows
                    && *medium == self::medium(*tier)
                    && parent.is_some()
                    && block_hashes.last().copied() == parent.map(short)
                {
                    block_hashes.push(short(*hash));
                    token_ids.extend_from_slice(tokens);
                    extra_keys.push(None);
                    continue;
                }
                let key = (parent.is_none() && !salt.is_empty())
                    .then(|| [TenantKey::of(salt).to_string()]);
                blocks.push(Block::BlockStored {
                    block_hashes: vec![short(*hash)],
                    parent_block_hash: parent.map(short),
                    token_ids: tokens.to_vec(),
                    // Only full pages have a hash, so every stored page has this many tokens.
                    block_size: tokens.len() as u32,
                    lora_id: None,
                    medium: self::medium(*tier),
                    lora_name: None,
                    extra_keys: vec![key],
                });
            }
            CacheEvent::Removed { hash, tier } => {
                let tier = self::medium(*tier);
                match blocks.last_mut() {
                    Some(Block::BlockRemoved {
                        block_hashes,
                        medium,
                    }) if *medium == tier => block_hashes.push(short(*hash)),
                    _ => blocks.push(Block::BlockRemoved {
                        block_hashes: vec![short(*hash)],
                        medium: tier,
                    }),
                }
            }
            CacheEvent::Cleared | CacheEvent::Gap { .. } => blocks.push(Block::AllBlocksCleared {}),
            CacheEvent::DocumentsStored { .. } | CacheEvent::DocumentsRemoved { .. } => {}
        }
    }
    blocks
}

/// Shortens the hash of a page to vLLM's 64 bits.
fn short(hash: PageHash) -> u64 {
    hash.0 as u64
}

fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stored(hash: u128, parent: Option<u128>, salt: &str, tier: Tier) -> CacheEvent {
        CacheEvent::Stored {
            hash: PageHash(hash),
            parent: parent.map(PageHash),
            tokens: [hash as u32; 2].into(),
            salt: salt.into(),
            tier,
        }
    }

    fn events() -> Vec<CacheEvent> {
        let long = u128::MAX - 1;
        vec![
            stored(1, None, "salt", Tier::Device),
            stored(long, Some(1), "salt", Tier::Device),
            stored(1, None, "salt", Tier::Host),
            stored(3, None, "", Tier::Device),
            CacheEvent::Removed {
                hash: PageHash(long),
                tier: Tier::Device,
            },
            CacheEvent::Removed {
                hash: PageHash(1),
                tier: Tier::Device,
            },
            CacheEvent::Cleared,
        ]
    }

    fn decoded(encoding: Encoding) -> Value {
        let bytes = batch(&events(), 1.5, encoding).unwrap().unwrap();
        rmp_serde::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_batch_is_an_array_of_time_events_and_rank() {
        let key = TenantKey::of("salt").to_string();
        let long = u64::MAX - 1;
        let expected = json!([1.5, [
            {"type": "BlockStored", "block_hashes": [1, long], "parent_block_hash": null,
                "token_ids": [1, 1, u32::MAX - 1, u32::MAX - 1], "block_size": 2, "lora_id": null, "medium": "GPU",
                "lora_name": null, "extra_keys": [[key], null]},
            {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [1, 1],
                "block_size": 2, "lora_id": null, "medium": "CPU", "lora_name": null, "extra_keys": [[key]]},
            {"type": "BlockStored", "block_hashes": [3], "parent_block_hash": null, "token_ids": [3, 3],
                "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [null]},
            {"type": "BlockRemoved", "block_hashes": [long, 1], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ], 0]);
        assert_eq!(decoded(Encoding::Map), expected);

        // The older form: the same values in the same order, without names.
        let mut places = expected;
        for event in places[1].as_array_mut().unwrap() {
            *event = event.as_object().unwrap().values().cloned().collect();
        }
        assert_eq!(decoded(Encoding::Array), places);
    }

    #[test]
    fn events_about_documents_are_not_vllms() {
        let event = CacheEvent::DocumentsStored {
            salt: "".into(),
            scope: 1,
            path: [(1, 2)].into(),
        };
        assert_eq!(batch(&[event], 0.0, Encoding::Map).unwrap(), None);
    }
}
