//! A batch of vLLM's events, from the wire.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "compiled here as it stands in the host, without its tests"
)]
#[path = "../../host/server/src/kv/vllm/read.rs"]
mod read;

use self::read::{BlockEvent, Key};
use serde_json::json;

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(batch) = read::batch(bytes) {
        let size: usize = batch.events.iter().map(size).sum();
        assert!(size <= bytes.len(), "{size} of {} bytes", bytes.len());
    }
}

/// What an event has at least in bytes.
fn size(event: &BlockEvent) -> usize {
    let medium = |medium: &Option<String>| medium.as_ref().map_or(0, String::len);
    let content = match event {
        BlockEvent::Stored(stored) => {
            let key = |key: &Key| match key {
                Key::Text(text) => text.len() + 1,
                Key::Other => 1,
            };
            let keys: usize = stored.keys.iter().flatten().map(key).sum();
            stored.blocks.len() + stored.tokens.len() + medium(&stored.medium) + keys
        }
        BlockEvent::Removed {
            blocks,
            medium: from,
            ..
        } => blocks.len() + medium(from),
        BlockEvent::Cleared | BlockEvent::Unknown => 0,
    };
    content + 1
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let events = json!([
        {"type": "BlockStored", "block_hashes": [15_760_518_052_499_183_552_u64, 7], "parent_block_hash": -1,
            "token_ids": [5, 6, 70_000, 8], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null,
            "extra_keys": [["salt", 3], null], "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        ["BlockStored", [7], null, [5, 6], 2, null, "GPU", null, null, 1, "sliding_window", 1024],
        {"type": "BlockRemoved", "block_hashes": [7], "medium": null, "group_idx": 1},
        ["AllBlocksCleared"],
        {"type": "BlockMoved", "x": {"y": [1]}},
    ]);
    let batches = [
        json!([1.5, events, 0]),
        json!({"ts": 1.5, "events": events, "rank": 0}),
    ];
    let written = batches
        .iter()
        .map(|batch| rmp_serde::to_vec_named(batch).unwrap_or_default());
    written.collect()
}
