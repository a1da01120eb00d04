//! Reads the KV events of any vLLM version and of compatible engines: maps or arrays, and hashes as signed or unsigned
//! numbers or bytes. Unknown fields and events are ignored.

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

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

    /// Returns the size of the event's lists in memory, in bytes.
    fn list_bytes(&self) -> usize {
        let keys = self.keys.as_deref().unwrap_or_default();
        size_of_val(&*self.blocks) + size_of_val(&*self.tokens) + size_of_val(keys)
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
/// Maximum number of blocks of an event: 16 million tokens in blocks of 16, more than any model's context.
const MAX_BLOCKS: usize = 1 << 20;
/// Maximum number of tokens of an event. Engines compute some ten thousand in a step; more are a prompt from elsewhere.
const MAX_TOKENS: usize = 1 << 22;
/// Maximum number of keys of a block. vLLM has one for each image in the block, and one for the adapter and the salt.
const MAX_KEYS: usize = 1 << 12;
/// Maximum size in memory of the lists of a batch's events, in bytes. Engines' tokens and hashes take about twice
/// their encoding, and a message has at most 16 MiB.
const MAX_LIST_BYTES: usize = 64 << 20;

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
            "block_hashes" => fields.blocks = List::deserialize(value)?.0,
            "parent_block_hash" => fields.parent = Deserialize::deserialize(value)?,
            "token_ids" => fields.tokens = List::deserialize(value)?.0,
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
                let keys: Option<FirstKeys> = Deserialize::deserialize(value)?;
                fields.add_keys(keys.map(|FirstKeys(keys)| keys));
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
                let List(events) = batch.next_element()?.ok_or_else(|| missing("events"))?;
                while batch.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Batch { seconds, events })
            }

            // Some engines send the batch as a map.
            fn visit_map<A: MapAccess<'de>>(self, mut batch: A) -> Result<Batch, A::Error> {
                let (mut seconds, mut events) = (0.0, None);
                while let Some(name) = batch.next_key::<String>()? {
                    match &*name {
                        "ts" => seconds = batch.next_value()?,
                        "events" => events = Some(batch.next_value::<List<_>>()?.0),
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

/// A list of bounded length, since a parsed element takes up to a hundred times its shortest encoding.
struct List<T>(Vec<T>);

/// An element of a [`List`].
trait Listed {
    /// Maximum length of the list.
    const MAX: usize;
    /// Name of the elements and of what holds them, for errors, such as "tokens in an event".
    const WHAT: &'static str;

    /// Returns the size of the lists within the element in memory, in bytes.
    fn list_bytes(&self) -> usize {
        0
    }
}

impl Listed for BlockEvent {
    const MAX: usize = MAX_EVENTS;
    const WHAT: &'static str = "events in a batch";

    fn list_bytes(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.list_bytes(),
            Self::Removed { blocks, .. } => size_of_val(&**blocks),
            Self::Cleared | Self::Unknown => 0,
        }
    }
}

impl Listed for BlockHash {
    const MAX: usize = MAX_BLOCKS;
    const WHAT: &'static str = "blocks in an event";
}

impl Listed for u32 {
    const MAX: usize = MAX_TOKENS;
    const WHAT: &'static str = "tokens in an event";
}

impl Listed for Key {
    const MAX: usize = MAX_KEYS;
    const WHAT: &'static str = "keys of a block";
}

/// Returns an error if `bytes`, the size of lists in memory, exceeds the bound.
fn check_size<E: Error>(bytes: usize) -> Result<(), E> {
    if bytes > MAX_LIST_BYTES {
        let words = format_args!("more than {MAX_LIST_BYTES} bytes of lists in a batch");
        return Err(E::custom(words));
    }
    Ok(())
}

impl<'de, T: Listed + Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen<T>(PhantomData<T>);
        impl<'de, T: Listed + Deserialize<'de>> Visitor<'de> for Seen<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of {}", T::WHAT)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
                let (mut elements, mut bytes) = (Vec::new(), 0);
                while let Some(element) = list.next_element::<T>()? {
                    if elements.len() == T::MAX {
                        let words = format_args!("more than {} {}", T::MAX, T::WHAT);
                        return Err(A::Error::custom(words));
                    }
                    bytes += element.list_bytes();
                    check_size::<A::Error>(bytes)?;
                    elements.push(element);
                }
                Ok(List(elements))
            }
        }
        deserializer.deserialize_seq(Seen(PhantomData))
    }
}

/// The first of the lists of keys of an event's blocks. The others are not kept.
struct FirstKeys(Vec<Key>);

impl<'de> Deserialize<'de> for FirstKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = FirstKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lists of keys")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut lists: A) -> Result<FirstKeys, A::Error> {
                let first = lists.next_element::<Option<List<Key>>>()?.flatten();
                while lists.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstKeys(first.map_or_else(Vec::new, |List(keys)| keys)))
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
                        // A map may repeat a field.
                        check_size::<A::Error>(fields.list_bytes())?;
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
        // An untagged enum would keep the whole of a key that is a list.
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an input of a block's hash")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
                Ok(Key::Text(text.to_owned()))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Key, E> {
                Ok(str::from_utf8(bytes).map_or(Key::Other, |text| Key::Text(text.to_owned())))
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Key, E> {
                Ok(Key::Other)
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Key, E> {
                Ok(Key::Other)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Key, E> {
                Ok(Key::Other)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Key, E> {
                Ok(Key::Other)
            }

            fn visit_unit<E: Error>(self) -> Result<Key, E> {
                Ok(Key::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Key, A::Error> {
                IgnoredAny.visit_seq(list).map(|_| Key::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Key, A::Error> {
                IgnoredAny.visit_map(map).map(|_| Key::Other)
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, key: D) -> Result<Key, D::Error> {
                IgnoredAny.visit_newtype_struct(key).map(|_| Key::Other)
            }
        }
        deserializer.deserialize_any(Seen)
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

    /// Writes an array of `length` equal elements.
    fn list(length: usize, element: &[u8]) -> Vec<u8> {
        let header = [&[0xdd][..], &(length as u32).to_be_bytes()[..]].concat();
        [header, element.repeat(length)].concat()
    }

    /// Reads a batch of events that each have these fields, names and values as they are encoded.
    fn events(count: usize, fields: &[(&str, Vec<u8>)]) -> Result<Batch, String> {
        let mut event = vec![0x80 | (fields.len() as u8 + 1)];
        let kind: (&str, &[u8]) = ("type", b"\xabBlockStored");
        let fields = fields.iter().map(|(name, value)| (*name, &value[..]));
        for (name, value) in std::iter::once(kind).chain(fields) {
            event.push(0xa0 | name.len() as u8);
            event.extend(name.as_bytes());
            event.extend(value);
        }
        let bytes = [&[0x92, 0xca, 0, 0, 0, 0][..], &list(count, &event)].concat();
        batch(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_of_an_event_are_bounded() {
        let keys = |length: usize| list(1, &list(length, &[0xc0]));
        let blocks = |length: usize| list(length, &[7]);
        for (field, value, expected) in [
            ("block_hashes", blocks(MAX_BLOCKS + 1), "1048576 blocks"),
            ("token_ids", list(MAX_TOKENS + 1, &[7]), "4194304 tokens"),
            ("extra_keys", keys(MAX_KEYS + 1), "4096 keys of a block"),
        ] {
            let error = events(1, &[(field, value)]).unwrap_err();
            assert!(error.contains(&format!("more than {expected}")), "{error}");
        }
        let error = events(5, &[("block_hashes", blocks(MAX_BLOCKS))]).unwrap_err();
        assert!(error.contains("more than 67108864 bytes"), "{error}");
        let blocks = ("block_hashes", blocks(MAX_BLOCKS));
        assert!(events(1, &[blocks, ("extra_keys", keys(MAX_KEYS))]).is_ok());
    }

    #[test]
    fn only_the_first_blocks_keys_are_kept() {
        // A long list within the first list, and many lists behind it.
        let within = list(100_000, &[0xc0]);
        let mut lists = list(100_000, &[0x92, 0xc0, 0xc0]);
        lists.splice(5..8, [&[0x93, 0xa1, b'a'][..], &within, &[0xc3]].concat());
        let read = events(1, &[("extra_keys", lists)]).unwrap();
        let [BlockEvent::Stored(stored)] = &read.events[..] else {
            panic!("stored")
        };
        let keys = stored.keys.as_deref();
        assert_eq!(keys, Some(&[text("a"), Key::Other, Key::Other][..]));
        assert_eq!(stored.list_bytes(), 3 * size_of::<Key>());
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
