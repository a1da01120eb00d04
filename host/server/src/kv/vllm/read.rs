//! Reads the KV events of any vLLM version and of compatible engines: maps or arrays, and hashes as signed or unsigned
//! numbers or bytes. Unknown fields and events are ignored.

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// A batch of events of an engine's cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Time of the batch of cache events, in seconds since 1970.
    pub seconds: f64,
    /// The events, in order.
    pub events: Vec<BlockEvent>,
}

/// An event of an engine's cache, on blocks. A block holds the KV state of a fixed number of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// Consecutive blocks were computed and stored in a tier of the cache (GPU or host memory).
    Stored(Stored),
    /// Blocks were evicted from a tier of the cache (GPU or host memory).
    Removed {
        /// Hashes of the blocks, in no particular order.
        blocks: Vec<BlockHash>,
        /// The engine's name for the tier of the cache that dropped the blocks, such as `GPU` or `CPU`; `None` for the
        /// GPU.
        medium: Option<String>,
        /// Number of the blocks' group of layers; 0 if there is one group.
        group: i64,
    },
    /// All blocks were evicted from all tiers of the cache.
    Cleared,
    /// An event of a type that this program does not know.
    Unknown,
}

/// Consecutive blocks of one sequence that were computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Hashes of the blocks, in order.
    pub blocks: Vec<BlockHash>,
    /// The block before the first one; `None` if the first one begins a sequence.
    pub parent: Option<BlockHash>,
    /// Tokens of all blocks, in order.
    pub tokens: Vec<u32>,
    /// Number of tokens in a block.
    pub block_tokens: u32,
    /// The engine's name for the tier of the cache that holds the blocks, such as `GPU` or `CPU`; `None` for the GPU.
    pub medium: Option<String>,
    /// The inputs of the first block's hash besides its tokens, such as a LoRA's name, images or the salt. `None` if
    /// the engine does not report them, although there may be some.
    pub keys: Option<Vec<Key>>,
    /// The group of layers that the blocks belong to.
    pub group: Group,
}

impl Stored {
    /// Adds inputs of the first block's hash besides its tokens ([`Stored::keys`]). `None`, for inputs that the engine
    /// does not report, changes nothing.
    fn add_keys(&mut self, keys: Option<Vec<Key>>) {
        if let Some(keys) = keys {
            self.keys.get_or_insert_default().extend(keys);
        }
    }
}

/// An input of a block's hash besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A name or a salt.
    Text(String),
    /// Another input, such as the position of an image.
    Other,
}

/// A group of layers that share blocks: all layers of a model, unless some have a sliding window or a recurrent state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Number of the group.
    pub number: i64,
    /// True if the group's blocks hold less than the whole sequence: its last tokens, or a recurrent state.
    pub is_partial: bool,
}

/// An engine's hash of a block: a 64-bit number, or the last 128 bits of a string of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u128);

/// Reads a batch of events, the last frame of a message.
///
/// # Errors
/// Returns an error if `bytes` are not msgpack, or not a batch of events.
pub fn batch(bytes: &[u8]) -> Result<Batch, rmp_serde::decode::Error> {
    rmp_serde::from_slice(bytes)
}

/// Maximum number of cache events in a batch. An engine that evicts the blocks of a million tokens reports 65,536.
const MAX_EVENTS: usize = 1 << 18;

/// The names of the fields of `BlockStored` (and, in `REMOVED`, of `BlockRemoved`) in the order of vLLM's arrays,
/// including those that are not used.
const STORED: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// vLLM's names of kinds of layers whose blocks hold the whole sequence.
const WHOLE: [&str; 4] = [
    "full_attention",
    "mla_attention",
    "sink_full_attention",
    "unknown",
];

/// Returns whether `name` is a type of event that this module reads; any other type becomes [`BlockEvent::Unknown`].
fn is_known(name: &str) -> bool {
    matches!(name, "BlockStored" | "BlockRemoved" | "AllBlocksCleared")
}

/// Builds an event of the type `name`, such as `BlockStored`, from those of `fields` that events of this type have.
/// Returns [`BlockEvent::Unknown`] for any other name.
fn event_of(name: &str, fields: Stored) -> BlockEvent {
    match name {
        "BlockStored" => BlockEvent::Stored(fields),
        "BlockRemoved" => BlockEvent::Removed {
            blocks: fields.blocks,
            medium: fields.medium,
            group: fields.group.number,
        },
        "AllBlocksCleared" => BlockEvent::Cleared,
        _ => BlockEvent::Unknown,
    }
}

/// Deserializes the value of the field with this name into the [`Stored`].
struct Field<'f>(&'f mut Stored, &'f str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let Self(fields, name) = self;
        match name {
            "block_hashes" => fields.blocks = Deserialize::deserialize(value)?,
            "parent_block_hash" => fields.parent = Deserialize::deserialize(value)?,
            "token_ids" => fields.tokens = Deserialize::deserialize(value)?,
            "block_size" => fields.block_tokens = Deserialize::deserialize(value)?,
            "medium" => fields.medium = Deserialize::deserialize(value)?,
            // An engine may name a LoRA adapter without keys. Its blocks are not the base model's.
            "lora_id" => {
                let id: Option<i64> = Deserialize::deserialize(value)?;
                fields.add_keys(id.filter(|id| *id > 0).map(|_| vec![Key::Other]));
            }
            "lora_name" => {
                let name: Option<String> = Deserialize::deserialize(value)?;
                let name = name.filter(|name| !name.is_empty());
                fields.add_keys(name.map(|_| vec![Key::Other]));
            }
            "extra_keys" => {
                let keys: Option<Vec<Option<Vec<Key>>>> = Deserialize::deserialize(value)?;
                fields.add_keys(
                    keys.map(|keys| keys.into_iter().next().flatten().unwrap_or_default()),
                );
            }
            "group_idx" => {
                let number: Option<i64> = Deserialize::deserialize(value)?;
                fields.group.number = number.unwrap_or_default();
            }
            "kv_cache_spec_kind" => {
                let kind: Option<String> = Deserialize::deserialize(value)?;
                fields.group.is_partial = kind.is_some_and(|kind| !WHOLE.contains(&&*kind));
            }
            _ => {
                IgnoredAny::deserialize(value)?;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Batch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch of KV events: [ts, events, …]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut batch: A) -> Result<Batch, A::Error> {
                let missing = |field| A::Error::missing_field(field);
                let seconds = batch.next_element()?.ok_or_else(|| missing("ts"))?;
                let Events(events) = batch.next_element()?.ok_or_else(|| missing("events"))?;
                while batch.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Batch { seconds, events })
            }

            // Some engines send the batch as a map.
            fn visit_map<A: MapAccess<'de>>(self, mut batch: A) -> Result<Batch, A::Error> {
                let (mut seconds, mut events) = (0.0, None);
                while let Some(name) = batch.next_key::<String>()? {
                    match &*name {
                        "ts" => seconds = batch.next_value()?,
                        "events" => events = Some(batch.next_value::<Events>()?.0),
                        _ => {
                            batch.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let events = events.ok_or_else(|| A::Error::missing_field("events"))?;
                Ok(Batch { seconds, events })
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// The cache events of a batch. Their number is bounded, since a parsed event takes a hundred times its shortest
/// encoding.
struct Events(Vec<BlockEvent>);

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Events;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of KV events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Events, A::Error> {
                let mut events = Vec::new();
                while let Some(event) = list.next_element()? {
                    if events.len() == MAX_EVENTS {
                        let words = format_args!("more than {MAX_EVENTS} events in a batch");
                        return Err(A::Error::custom(words));
                    }
                    events.push(event);
                }
                Ok(Events(events))
            }
        }
        deserializer.deserialize_seq(Seen)
    }
}

impl<'de> Deserialize<'de> for BlockEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = BlockEvent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a KV event: a map with its `type`, or an array that begins with it")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut event: A) -> Result<BlockEvent, A::Error> {
                let name: String = event
                    .next_element()?
                    .ok_or_else(|| A::Error::missing_field("type"))?;
                let names: &[&str] = match &*name {
                    "BlockStored" => &STORED,
                    "BlockRemoved" => &REMOVED,
                    _ => &[],
                };
                let mut fields = Stored::default();
                for name in names {
                    if event.next_element_seed(Field(&mut fields, name))?.is_none() {
                        break;
                    }
                }
                while event.next_element::<IgnoredAny>()?.is_some() {}
                Ok(event_of(&name, fields))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut event: A) -> Result<BlockEvent, A::Error> {
                let mut name = None;
                let mut fields = Stored::default();
                while let Some(key) = event.next_key::<String>()? {
                    if key == "type" {
                        name = Some(event.next_value::<String>()?);
                    } else if name.as_deref().is_none_or(is_known) {
                        event.next_value_seed(Field(&mut fields, &key))?;
                    } else {
                        event.next_value::<IgnoredAny>()?;
                    }
                }
                let name = name.ok_or_else(|| A::Error::missing_field("type"))?;
                Ok(event_of(&name, fields))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = BlockHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block's hash: a number or bytes")
            }

            fn visit_u64<E: Error>(self, hash: u64) -> Result<BlockHash, E> {
                Ok(BlockHash(hash.into()))
            }

            fn visit_i64<E: Error>(self, hash: i64) -> Result<BlockHash, E> {
                Ok(BlockHash(hash.cast_unsigned().into()))
            }

            fn visit_bytes<E: Error>(self, hash: &[u8]) -> Result<BlockHash, E> {
                let mut last = [0; 16];
                let count = hash.len().min(last.len());
                last[16 - count..].copy_from_slice(&hash[hash.len() - count..]);
                Ok(BlockHash(u128::from_be_bytes(last)))
            }

            fn visit_str<E: Error>(self, hash: &str) -> Result<BlockHash, E> {
                self.visit_bytes(hash.as_bytes())
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Seen {
            Text(String),
            Other(IgnoredAny),
        }
        Ok(match Seen::deserialize(deserializer)? {
            Seen::Text(text) => Self::Text(text),
            Seen::Other(IgnoredAny) => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::vllm::{Encoding, write};
    use foreword_engine::cache::{CacheEvent, PageHash, Tier};
    use foreword_ordering::feed::TenantKey;
    use serde_json::{Value, json};

    fn read(value: &Value) -> Result<Batch, rmp_serde::decode::Error> {
        batch(&rmp_serde::to_vec_named(value).unwrap())
    }

    #[test]
    fn events_of_a_batch_are_bounded() {
        let batch_of = |events: usize| {
            let header = [
                &[0x92, 0xca, 0, 0, 0, 0, 0xdd],
                &(events as u32).to_be_bytes()[..],
            ];
            let event = [&[0x91, 0xa1], &b"x"[..]].concat();
            batch(&[&header.concat()[..], &event.repeat(events)].concat())
        };
        assert_eq!(batch_of(MAX_EVENTS).unwrap().events.len(), MAX_EVENTS);
        let error = batch_of(MAX_EVENTS + 1).unwrap_err().to_string();
        assert!(error.contains("more than 262144 events"), "{error}");
        // An announced length without content.
        let announced = [0x92, 0xca, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff];
        assert!(batch(&announced).is_err());
    }

    fn stored(block: u64, parent: Option<u64>, keys: &[&str]) -> BlockEvent {
        BlockEvent::Stored(Stored {
            parent: parent.map(|parent| BlockHash(parent.into())),
            medium: Some("GPU".to_owned()),
            keys: Some(keys.iter().map(|&key| text(key)).collect()),
            ..two_tokens(block)
        })
    }

    /// Returns a `Stored` event as of an engine that reports no keys.
    fn untold(block: u64, parent: Option<u64>) -> BlockEvent {
        BlockEvent::Stored(Stored {
            parent: parent.map(|parent| BlockHash(parent.into())),
            medium: Some("GPU".to_owned()),
            ..two_tokens(block)
        })
    }

    fn two_tokens(block: u64) -> Stored {
        Stored {
            blocks: vec![BlockHash(block.into())],
            tokens: vec![5, 6],
            block_tokens: 2,
            ..Stored::default()
        }
    }

    fn text(key: &str) -> Key {
        Key::Text(key.to_owned())
    }

    fn windowed(medium: Option<&str>) -> BlockEvent {
        BlockEvent::Stored(Stored {
            medium: medium.map(str::to_owned),
            group: Group {
                number: 1,
                is_partial: true,
            },
            ..two_tokens(7)
        })
    }

    fn adapted() -> BlockEvent {
        BlockEvent::Stored(Stored {
            medium: Some("GPU".to_owned()),
            keys: Some(vec![Key::Other]),
            ..two_tokens(7)
        })
    }

    #[test]
    fn maps_of_today_and_arrays_of_every_length_mean_the_same() {
        let hash = 15_760_518_052_499_183_552_u64;
        for (event, expected) in [
            // vLLM 0.26.
            (
                json!({"type": "BlockStored", "block_hashes": [hash], "parent_block_hash": null, "token_ids": [5, 6],
                    "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [null],
                    "group_idx": 0, "kv_cache_spec_kind": "full_attention"}),
                stored(hash, None, &[]),
            ),
            // Another order, and future fields.
            (
                json!({"medium": "GPU", "future": {"a": [1]}, "block_size": 2, "token_ids": [5, 6],
                    "block_hashes": [7], "parent_block_hash": -1, "type": "BlockStored",
                    "extra_keys": [["lora", 3, ["image", 1], "salt"], null]}),
                BlockEvent::Stored(Stored {
                    parent: Some(BlockHash(u64::MAX.into())),
                    medium: Some("GPU".to_owned()),
                    keys: Some(vec![text("lora"), Key::Other, Key::Other, text("salt")]),
                    ..two_tokens(7)
                }),
            ),
            // A LoRA adapter without keys, in both forms.
            (
                json!({"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [5, 6],
                    "block_size": 2, "lora_id": 3, "medium": "GPU", "extra_keys": [null]}),
                adapted(),
            ),
            (
                json!(["BlockStored", [7], null, [5, 6], 2, null, "GPU", "adapter"]),
                adapted(),
            ),
            (
                json!(["BlockStored", [7], 8, [5, 6], 2, 0, "GPU", ""]),
                untold(7, Some(8)),
            ),
            // Layers with a sliding window, in both forms.
            (
                json!({"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [5, 6],
                    "block_size": 2, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}),
                windowed(None),
            ),
            (
                json!([
                    "BlockStored",
                    [7],
                    null,
                    [5, 6],
                    2,
                    null,
                    "GPU",
                    null,
                    null,
                    1,
                    "sliding_window",
                    1024
                ]),
                windowed(Some("GPU")),
            ),
            (
                json!({"type": "BlockRemoved", "block_hashes": [7], "medium": null, "group_idx": 1}),
                BlockEvent::Removed {
                    blocks: vec![BlockHash(7)],
                    medium: None,
                    group: 1,
                },
            ),
            (
                json!([
                    "BlockStored",
                    [7],
                    null,
                    [5, 6],
                    2,
                    null,
                    "GPU",
                    null,
                    [["salt"]],
                    0,
                    "full_attention",
                    9
                ]),
                stored(7, None, &["salt"]),
            ),
            (
                json!(["BlockStored", [7], 8, [5, 6], 2, null, "GPU"]),
                untold(7, Some(8)),
            ),
            (
                json!(["BlockRemoved", [1, -2]]),
                BlockEvent::Removed {
                    blocks: vec![BlockHash(1), BlockHash((u64::MAX - 1).into())],
                    medium: None,
                    group: 0,
                },
            ),
            (json!(["AllBlocksCleared"]), BlockEvent::Cleared),
            (json!({"type": "AllBlocksCleared"}), BlockEvent::Cleared),
            (
                json!({"type": "BlockMoved", "block_hashes": "?"}),
                BlockEvent::Unknown,
            ),
            (json!(["BlockMoved", {"a": 1}]), BlockEvent::Unknown),
        ] {
            for batch in [
                json!([1.5, [event]]),
                json!([1.5, [event], 0, "more"]),
                json!({"ts": 1.5, "events": [event], "data_parallel_rank": 0}),
            ] {
                let read = read(&batch).unwrap();
                assert_eq!(
                    (read.seconds, read.events),
                    (1.5, vec![expected.clone()]),
                    "{batch}"
                );
            }
        }
    }

    #[test]
    fn hashes_may_be_bytes() {
        // [1.0, [["BlockRemoved", [bytes, short bytes]]]] by hand: JSON has no bytes.
        let mut wire = vec![0x92, 0xca, 0x3f, 0x80, 0, 0, 0x91, 0x92, 0xac];
        wire.extend(b"BlockRemoved");
        wire.extend([0x92, 0xc4, 32]);
        wire.extend([1; 31]);
        wire.push(2);
        wire.extend([0xc4, 2, 3, 4]);
        let BlockEvent::Removed { blocks, .. } = &batch(&wire).unwrap().events[0] else {
            panic!("removed")
        };
        let ones = u128::from_be_bytes([1; 16]);
        assert_eq!(blocks, &[BlockHash(ones + 1), BlockHash(0x0304)]);
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        for value in [
            json!(3),
            json!([]),
            json!([1.5]),
            json!([1.5, 3]),
            json!([1.5, [[]]]),
            json!([1.5, [{"block_hashes": []}]]),
            json!([1.5, [["BlockStored", "?"]]]),
        ] {
            assert!(read(&value).is_err(), "{value}");
        }
        assert!(batch(&[0xc1, 0xff]).is_err());
        assert!(batch(&[]).is_err());
    }

    #[test]
    fn what_we_write_we_read() {
        let event = CacheEvent::Stored {
            hash: PageHash(7),
            parent: None,
            tokens: [5, 6].into(),
            salt: "salt".into(),
            tier: Tier::Device,
        };
        let key = TenantKey::of("salt").to_string();
        for encoding in [Encoding::Map, Encoding::Array] {
            let bytes = write::batch(std::slice::from_ref(&event), 1.5, encoding).unwrap();
            let batch = batch(&bytes.unwrap()).unwrap();
            assert_eq!(batch.events, [stored(7, None, &[&key])]);
        }
    }
}
