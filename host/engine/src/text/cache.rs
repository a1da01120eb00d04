//! The token cache: tokens of pieces of text that were tokenised before.
//!
//! Most of a prompt also occurred in earlier prompts: instructions, documents, messages. Its pieces ([`super::pieces`],
//! usually lines) are looked up, and only new ones are tokenised. The result equals that of tokenising the whole text.
//! A piece is found by a hash and then compared, byte for byte.
//!
//! A tenant finds only its own pieces, because otherwise response times would reveal other tenants' prompts.

use super::pieces::{Cuts, PROBES};
use super::{TextError, Tokenizer};
use crate::TokenId;
use fxhash::FxBuildHasher;
use lru::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// A cache that maps pieces of text (usually lines) to their tokens, for one tokenizer.
pub struct TokenCache {
    /// The rule by which texts are cut into pieces; `None` if the cache is off.
    cuts: Option<Cuts>,
    /// Tokens that the tokenizer puts before a raw prompt. `None` if it changes a raw prompt in any other way; raw
    /// prompts are then tokenised whole.
    opening: Option<Vec<TokenId>>,
    /// Keys of the hash of pieces, different in every process, so that a client cannot prepare pieces that collide.
    keys: RandomState,
    limit_bytes: usize,
    /// The cached pieces and the counters. Consistent after each line that changes it, so a panic under the lock does
    /// no harm.
    pieces: Mutex<Pieces>,
}

/// Counters of the use of one token cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCacheStats {
    /// Bytes of text that were looked up so far.
    pub text_bytes: u64,
    /// Of the `text_bytes`, the number whose tokens were found in the cache.
    pub found_bytes: u64,
    /// Approximate number of bytes of memory that the cache takes now.
    pub held_bytes: u64,
}

struct Pieces {
    /// Cached pieces with their tokens, by the hash of tenant and text; the least recently used one is dropped first.
    entries: LruCache<u64, Entry, FxBuildHasher>,
    stats: TokenCacheStats,
}

struct Entry {
    salt: Arc<str>,
    text: Box<str>,
    tokens: Arc<[TokenId]>,
}

impl TokenCache {
    /// Returns a cache of at most `limit_bytes` bytes of memory for `tokenizer`. The cache is off (everything is
    /// tokenised) if the limit is 0, if it is not known where this tokenizer's texts can be cut, or if cutting test
    /// texts changed their tokens.
    pub fn new(tokenizer: &Tokenizer, limit_bytes: usize) -> Self {
        let cuts = tokenizer.cuts().filter(|cuts| holds(tokenizer, *cuts));
        Self {
            cuts: cuts.filter(|_| limit_bytes > 0),
            opening: opening(tokenizer),
            keys: RandomState::new(),
            limit_bytes,
            pieces: Mutex::new(Pieces {
                entries: LruCache::unbounded_with_hasher(FxBuildHasher),
                stats: TokenCacheStats::default(),
            }),
        }
    }

    /// Returns whether texts are looked up at all; false if the cache is off.
    pub fn is_on(&self) -> bool {
        self.cuts.is_some()
    }

    /// Tokenises `text` as [`Tokenizer::encode`] does, using the cache; `salt` names the tenant, who finds only its own
    /// pieces.
    ///
    /// # Errors
    /// Returns [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        special: bool,
        salt: &str,
    ) -> Result<Vec<TokenId>, TextError> {
        let encoded = self.encode_counting(tokenizer, text, special, salt, &[]);
        encoded.map(|(tokens, _)| tokens)
    }

    /// Tokenises `text` as [`Tokenizer::encode_counting`] does, using the cache; `salt` names the tenant. Pieces that
    /// contain a byte offset of `at` are tokenised even if they are cached.
    ///
    /// # Errors
    /// Returns [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode_counting(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        special: bool,
        salt: &str,
        at: &[usize],
    ) -> Result<(Vec<TokenId>, Vec<u32>), TextError> {
        let opening = match (special, &self.opening) {
            (false, _) => Some(&[][..]),
            (true, opening) => opening.as_deref(),
        };
        let (Some(cuts), Some(opening)) = (self.cuts, opening) else {
            return match at {
                [] => Ok((tokenizer.encode(text, special)?, Vec::new())),
                at => tokenizer.encode_counting(text, special, at),
            };
        };
        let pieces: Vec<(u64, &str)> = cuts
            .pieces(text)
            .map(|piece| (self.keys.hash_one((salt, piece)), piece))
            .collect();
        let found = self.pieces.lock().find(&pieces, salt);
        let mut tokens = opening.to_vec();
        let mut new = Vec::new();
        let (mut start, mut at, mut counts) = (0, at, Vec::with_capacity(at.len()));
        for ((key, piece), found) in pieces.into_iter().zip(found) {
            let before = tokens.len() as u32;
            let (reached, rest) = at.split_at(at.partition_point(|&at| at <= start));
            counts.extend(reached.iter().map(|_| before));
            let within = rest.partition_point(|&at| at < start + piece.len());
            let (within, rest) = rest.split_at(within);
            match found {
                _ if !within.is_empty() => {
                    let within: Vec<usize> = within.iter().map(|at| at - start).collect();
                    let (encoded, counted) = tokenizer.encode_counting(piece, false, &within)?;
                    counts.extend(counted.into_iter().map(|count| before + count));
                    tokens.extend_from_slice(&encoded);
                }
                Some(found) => tokens.extend_from_slice(&found),
                None => {
                    let encoded = tokenizer.encode(piece, false)?;
                    tokens.extend_from_slice(&encoded);
                    new.push((key, piece, encoded));
                }
            }
            start += piece.len();
            at = rest;
        }
        counts.extend(at.iter().map(|_| tokens.len() as u32));
        if !new.is_empty() {
            self.remember(salt, new);
        }
        Ok((tokens, counts))
    }

    /// Returns the cache's counters now.
    pub fn stats(&self) -> TokenCacheStats {
        self.pieces.lock().stats
    }

    fn remember(&self, salt: &str, new: Vec<(u64, &str, Vec<TokenId>)>) {
        let salt: Arc<str> = salt.into();
        let new: Vec<(u64, Entry)> = new
            .into_iter()
            .map(|(key, piece, tokens)| {
                let entry = Entry {
                    salt: Arc::clone(&salt),
                    text: piece.into(),
                    tokens: tokens.into(),
                };
                (key, entry)
            })
            // A single piece must not displace all others.
            .filter(|(_, entry)| entry.bytes() <= self.limit_bytes / 8)
            .collect();
        let mut dropped = Vec::new();
        {
            let mut pieces = self.pieces.lock();
            for (key, entry) in new {
                pieces.stats.held_bytes += entry.bytes() as u64;
                let before = pieces.entries.put(key, entry);
                pieces.drop_entry(before, &mut dropped);
            }
            while pieces.stats.held_bytes > self.limit_bytes as u64 {
                let Some((_, oldest)) = pieces.entries.pop_lru() else {
                    break;
                };
                pieces.drop_entry(Some(oldest), &mut dropped);
            }
        }
        // The memory is freed after the lock is released.
        drop(dropped);
    }
}

impl Pieces {
    fn find(&mut self, pieces: &[(u64, &str)], salt: &str) -> Vec<Option<Arc<[TokenId]>>> {
        let find = |(key, piece): &(u64, &str)| {
            self.stats.text_bytes += piece.len() as u64;
            let entry = self.entries.get(key)?;
            if *entry.text != **piece || *entry.salt != *salt {
                return None;
            }
            self.stats.found_bytes += piece.len() as u64;
            Some(Arc::clone(&entry.tokens))
        };
        pieces.iter().map(find).collect()
    }

    fn drop_entry(&mut self, entry: Option<Entry>, dropped: &mut Vec<Entry>) {
        if let Some(entry) = entry {
            self.stats.held_bytes -= entry.bytes() as u64;
            dropped.push(entry);
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        // The entry, its slot in table and list, and the overhead of three allocations.
        const OVERHEAD: usize = 192;
        self.text.len() + size_of_val(&*self.tokens) + OVERHEAD
    }
}

/// Returns whether each of the test texts [`PROBES`] has the same tokens when it is tokenised whole and piece by piece.
fn holds(tokenizer: &Tokenizer, cuts: Cuts) -> bool {
    PROBES.iter().all(|probe| {
        let whole = tokenizer.encode(probe, false);
        let pieces = cuts
            .pieces(probe)
            .map(|piece| tokenizer.encode(piece, false));
        let pieces: Result<Vec<_>, _> = pieces.collect();
        matches!((whole, pieces), (Ok(whole), Ok(pieces)) if whole == pieces.concat())
    })
}

/// Returns the tokens that the tokenizer puts before every raw prompt, or `None` if it changes a raw prompt in any
/// other way.
fn opening(tokenizer: &Tokenizer) -> Option<Vec<TokenId>> {
    let opening = tokenizer.encode("", true).ok()?;
    let only = |probe: &&str| {
        let (special, plain) = (
            tokenizer.encode(probe, true),
            tokenizer.encode(probe, false),
        );
        matches!((special, plain), (Ok(special), Ok(plain)) if special == [&opening[..], &plain].concat())
    };
    PROBES.iter().all(only).then_some(opening)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;
    use serde_json::{Value as Json, json};
    use std::path::Path;

    /// Returns the fixtures' tokenizer, from a file that `change` has edited.
    fn tokenizer(change: impl FnOnce(&mut Json)) -> Tokenizer {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2/tokenizer.json");
        let mut file: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        // Adds tokens that span newlines, as in large vocabularies. Without them a wrong cut would have no effect.
        let model = file["model"].as_object_mut().unwrap();
        for (left, right) in [("Ċ", "Ċ"), ("/", "Ċ"), ("/Ċ", "/"), ("/Ċ", "Ċ"), ("Ċ", "Ġ")]
        {
            let id = model["vocab"].as_object().unwrap().len();
            model["vocab"][format!("{left}{right}")] = id.into();
            model["merges"]
                .as_array_mut()
                .unwrap()
                .push(json!([left, right]));
        }
        change(&mut file);
        Tokenizer::parse(file.to_string().as_bytes()).unwrap()
    }

    fn gpt2(file: &mut Json) {
        file["pre_tokenizer"] = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        });
    }

    fn llama3(file: &mut Json) {
        let expression = file
            .pointer_mut("/pre_tokenizer/pretokenizers/0/pattern/Regex")
            .unwrap();
        *expression = expression
            .as_str()
            .unwrap()
            .replace(r"|\p{N}|", r"|\p{N}{1,3}|")
            .into();
    }

    /// Adds a token before every raw prompt, as Llama's tokenizer has.
    fn with_opening(file: &mut Json) {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        file["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special("<|im_start|>"), {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
        });
    }

    /// Returns text in which newlines occur next to everything.
    fn text(random: &mut Random) -> String {
        const WORDS: [&str; 32] = [
            "\n",
            "\n",
            "\n",
            "\n\n",
            "\r\n",
            "\r",
            " ",
            "  ",
            "\t",
            "\u{a0}",
            "\u{85}",
            "\u{2028}",
            "\u{3000}",
            "a",
            "The",
            "cellar",
            "'s",
            "'",
            "12",
            "3456",
            ".",
            "/",
            "!?",
            "(",
            "é",
            "e\u{301}",
            "\u{301}",
            "東京",
            "🦜🏽",
            "\u{200d}",
            "<|im_end|>",
            "<|im_start|>",
        ];
        (0..random.below(40))
            .map(|_| WORDS[random.below(WORDS.len() as u64) as usize])
            .collect()
    }

    #[test]
    fn the_tokens_are_those_of_the_whole_text() {
        type Change = fn(&mut Json);
        let changes: [(&str, Change); 4] = [
            ("qwen2", |_| {}),
            ("llama3", llama3),
            ("gpt2", gpt2),
            ("opening", with_opening),
        ];
        for (name, change) in changes {
            let tokenizer = tokenizer(change);
            let cache = TokenCache::new(&tokenizer, 16 << 20);
            assert!(cache.is_on(), "{name}");
            let mut random = Random::new(17);
            for _ in 0..3000 {
                let text = text(&mut random);
                let special = random.below(4) == 0;
                let salt = ["a", "b"][random.below(2) as usize];
                assert_eq!(
                    cache.encode(&tokenizer, &text, special, salt).unwrap(),
                    tokenizer.encode(&text, special).unwrap(),
                    "{name}: {text:?}"
                );
                // The number of tokens before any place is right too.
                let mut at: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
                at.push(text.len());
                at.retain(|_| random.below(5) == 0);
                assert_eq!(
                    cache
                        .encode_counting(&tokenizer, &text, special, salt, &at)
                        .unwrap(),
                    tokenizer.encode_counting(&text, special, &at).unwrap(),
                    "{name}: {at:?} of {text:?}"
                );
            }
            let stats = cache.stats();
            assert!(
                stats.found_bytes > 1000 && stats.found_bytes < stats.text_bytes,
                "{stats:?}"
            );
        }
    }

    #[test]
    fn cuts_that_show_are_seen_at_load() {
        let gpt2 = tokenizer(gpt2);
        assert!(holds(&gpt2, Cuts::LoneNewlines));
        assert!(!holds(&gpt2, Cuts::EveryNewline));
        let slashes = tokenizer(|file| {
            let expression = file
                .pointer_mut("/pre_tokenizer/pretokenizers/0/pattern/Regex")
                .unwrap();
            *expression = expression
                .as_str()
                .unwrap()
                .replace(r"+[\r\n]*", r"+[\r\n/]*")
                .into();
        });
        assert!(!TokenCache::new(&slashes, 1 << 20).is_on());
        assert!(!holds(&slashes, Cuts::EveryNewline));
    }

    #[test]
    fn a_tenant_finds_only_what_it_brought() {
        let tokenizer = tokenizer(|_| {});
        let cache = TokenCache::new(&tokenizer, 1 << 20);
        let text = "one line\nand another\n";
        let found = |salt| {
            let before = cache.stats().found_bytes;
            cache.encode(&tokenizer, text, false, salt).unwrap();
            cache.stats().found_bytes - before
        };
        assert_eq!((found("a"), found("a")), (0, text.len() as u64));
        assert_eq!((found("b"), found("b")), (0, text.len() as u64));
    }

    #[test]
    fn memory_is_bounded_and_what_was_used_last_stays() {
        let tokenizer = tokenizer(|_| {});
        let limit = 20_000;
        let cache = TokenCache::new(&tokenizer, limit);
        let kept = "what is asked for again and again\n";
        for index in 0..2000 {
            let text = format!("{kept}line number {index} of many\n");
            cache.encode(&tokenizer, &text, false, "").unwrap();
            assert!(cache.stats().held_bytes <= limit as u64);
        }
        let before = cache.stats();
        cache
            .encode(
                &tokenizer,
                &format!("{kept}line number 0 of many\n"),
                false,
                "",
            )
            .unwrap();
        let found = cache.stats().found_bytes - before.found_bytes;
        assert_eq!(found, kept.len() as u64);
        // A text that would fill the cache is not stored at all.
        let long = "x ".repeat(4000);
        for _ in 0..2 {
            cache.encode(&tokenizer, &long, false, "").unwrap();
        }
        assert_eq!(cache.stats().found_bytes, before.found_bytes + found);
    }

    #[test]
    fn a_cache_of_no_size_is_off() {
        let tokenizer = tokenizer(|_| {});
        let cache = TokenCache::new(&tokenizer, 0);
        assert!(!cache.is_on());
        assert_eq!(
            cache.encode(&tokenizer, "a\nb", true, "").unwrap(),
            tokenizer.encode("a\nb", true).unwrap()
        );
    }
}
