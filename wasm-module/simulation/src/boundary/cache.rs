//! A provider's cache, which matches only up to boundaries marked by earlier requests.

use foreword_ordering::cuts::layout::Mode;
use foreword_ordering::cuts::{CacheKind, CacheRules, Layout, MarkTtl};
use fxhash::FxHashMap;
use std::ops::AddAssign;

/// Prompt tokens, by the price at which a provider bills them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundaryUsage {
    /// Tokens at the plain price.
    pub plain: u64,
    /// Tokens read from the cache.
    pub read: u64,
    /// Tokens written with the default lifetime.
    pub written: u64,
    /// Tokens written with the longer lifetime.
    pub written_long: u64,
}

impl BoundaryUsage {
    /// Returns the sum over all prices.
    #[must_use]
    pub fn tokens(self) -> u64 {
        self.plain + self.read + self.written + self.written_long
    }

    /// Returns the number of plain tokens with the same price.
    #[must_use]
    pub fn plain_tokens_worth(self, rules: &CacheRules) -> f64 {
        self.plain as f64
            + self.read as f64 * rules.read
            + self.written as f64 * rules.write
            + self.written_long as f64 * rules.write_long
    }
}

impl AddAssign for BoundaryUsage {
    fn add_assign(&mut self, other: Self) {
        self.plain += other.plain;
        self.read += other.read;
        self.written += other.written;
        self.written_long += other.written_long;
    }
}

/// A simulated cache of marked boundaries, by the documentation of Anthropic, OpenAI (from GPT-5.6 on) and Bedrock.
///
/// A marker writes one entry: the prompt up to it. It reads the last entry that an earlier request wrote within the
/// look-back, its own position included. With OpenAI it reads only its own position and, unless the mode is explicit,
/// the ends of the last messages. Each use renews an entry. An entry can be read once the response to the request that
/// wrote it has begun, until it expires. It is not evicted earlier: no provider documents when that happens.
#[derive(Debug)]
pub struct BoundaryCache {
    first_token_ms: u64,
    entries: FxHashMap<u64, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    from_ms: u64,
    until_ms: u64,
    lifetime_ms: u64,
}

/// Milliseconds from a request to its response's first token, from which on its cache entries can be read.
pub const FIRST_TOKEN_MS: u64 = 1_000;

/// Number of marked positions that OpenAI looks up: the first two and the latest fifty.
const FIRST_LOOKED_UP: usize = 2;
const LATEST_LOOKED_UP: usize = 50;
/// Number of latest ends of messages that OpenAI looks up, in addition to the last one.
const ENDS_LOOKED_UP: usize = 20;

impl BoundaryCache {
    /// Returns an empty cache, whose entries can be read `first_token_ms` milliseconds after they were written.
    #[must_use]
    pub fn new(first_token_ms: u64) -> Self {
        Self {
            first_token_ms,
            entries: FxHashMap::default(),
        }
    }

    /// Serves a prompt that arrives at `now_ms`. `marks` are its marked positions in `layout`, ascending.
    pub fn serve(
        &mut self,
        layout: &Layout,
        marks: &[(usize, MarkTtl)],
        rules: &CacheRules,
        now_ms: u64,
    ) -> BoundaryUsage {
        let is_openai = rules.kind == CacheKind::OpenAi;
        let tokens = |at: usize| {
            layout
                .positions
                .get(at)
                .map_or(0, |position| position.tokens)
        };
        let is_kept = |at: usize| tokens(at) >= u64::from(rules.minimum_tokens);
        let all = layout.tokens();
        let found = if is_openai {
            self.looked_up(layout, marks, now_ms)
        } else {
            self.looked_back(layout, marks, rules, now_ms)
        };
        let read = found.map_or(0, tokens);
        if let Some(entry) = found
            .and_then(|at| layout.positions.get(at))
            .and_then(|position| self.entries.get_mut(&position.hash))
        {
            entry.until_ms = entry.until_ms.max(now_ms + entry.lifetime_ms);
        }
        // Only the last markers are written, as many as the provider allows.
        let most = rules.markers as usize;
        let written = marks
            .get(marks.len().saturating_sub(most)..)
            .unwrap_or_default();
        let written: Vec<_> = written.iter().filter(|(at, _)| is_kept(*at)).collect();
        for (at, ttl) in &written {
            let Some(position) = layout.positions.get(*at) else {
                continue;
            };
            let lifetime_ms = match ttl {
                MarkTtl::Default => rules.ttl_ms,
                MarkTtl::Long => rules.long_ttl_ms,
            };
            let entry = self.entries.entry(position.hash).or_insert(Entry {
                from_ms: 0,
                until_ms: 0,
                lifetime_ms,
            });
            let from_ms = now_ms + self.first_token_ms;
            // Logs of several gateways, one after the other, go back in time.
            let is_earlier = from_ms < entry.from_ms;
            if entry.until_ms <= now_ms || is_earlier {
                *entry = Entry {
                    from_ms,
                    until_ms: now_ms,
                    lifetime_ms,
                };
            }
            entry.until_ms = entry.until_ms.max(now_ms + lifetime_ms);
        }
        let last = written.last().map_or(0, |(at, _)| tokens(*at)).max(read);
        let long = written.iter().rev().find(|(_, ttl)| *ttl == MarkTtl::Long);
        let long = long.map_or(0, |(at, _)| tokens(*at)).clamp(read, last);
        BoundaryUsage {
            plain: all - last,
            read,
            written: last - long,
            written_long: long - read,
        }
    }

    fn holds(&self, layout: &Layout, at: usize, now_ms: u64) -> bool {
        let entry = layout.positions.get(at);
        let entry = entry.and_then(|position| self.entries.get(&position.hash));
        entry.is_some_and(|entry| entry.from_ms <= now_ms && now_ms < entry.until_ms)
    }

    /// Returns the last readable position that any marker finds by looking back; `None` if there is none.
    fn looked_back(
        &self,
        layout: &Layout,
        marks: &[(usize, MarkTtl)],
        rules: &CacheRules,
        now_ms: u64,
    ) -> Option<usize> {
        let found = marks.iter().filter_map(|(mark, _)| {
            let step = layout.positions.get(*mark)?.step;
            let mut back = layout.positions.iter().enumerate().take(mark + 1).rev();
            back.by_ref()
                .take_while(|(_, position)| step - position.step < rules.look_back)
                .find(|(at, _)| self.holds(layout, *at, now_ms))
                .map(|(at, _)| at)
        });
        found.max()
    }

    /// Returns the last readable position that OpenAI's look-ups find; `None` if there is none.
    fn looked_up(&self, layout: &Layout, marks: &[(usize, MarkTtl)], now_ms: u64) -> Option<usize> {
        let latest = marks.len().saturating_sub(LATEST_LOOKED_UP);
        let marked = marks.iter().enumerate();
        let marked = marked.filter(|(at, _)| *at < FIRST_LOOKED_UP || *at >= latest);
        let marked = marked.map(|(_, (at, _))| *at);
        let is_implicit = layout.mode != Mode::Explicit && !marks.is_empty();
        let ends = layout.positions.iter().enumerate().rev();
        let ends = ends.filter(|(_, position)| is_implicit && position.ends_message);
        let ends = ends.take(ENDS_LOOKED_UP + 1).map(|(at, _)| at);
        let mut places: Vec<usize> = marked.chain(ends).collect();
        places.sort_unstable();
        (places.into_iter().rev()).find(|at| self.holds(layout, *at, now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::Config;
    use foreword_ordering::cuts::layout::Blocks;

    /// A prompt of blocks of 400 bytes, one letter each.
    fn prompt(letters: &str, kind: CacheKind) -> Layout {
        let blocks: Vec<String> = (letters.chars())
            .map(|letter| {
                let text = letter.to_string().repeat(400);
                format!(r#"{{"type":"text","text":"{text}"}}"#)
            })
            .collect();
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{}]}}]}}"#,
            blocks.join(",")
        );
        let config = Config::default();
        let parsed = foreword_ordering::parse(body.as_bytes(), &config).unwrap();
        Layout::of(&parsed, kind, Blocks::AsWritten, 0).unwrap()
    }

    fn rules(kind: CacheKind, minimum_tokens: u32) -> CacheRules {
        CacheRules {
            minimum_tokens,
            ..kind.rules("")
        }
    }

    fn at(marks: &[usize]) -> Vec<(usize, MarkTtl)> {
        marks.iter().map(|&at| (at, MarkTtl::Default)).collect()
    }

    fn tokens(usage: BoundaryUsage) -> [u64; 3] {
        [usage.read, usage.written, usage.plain]
    }

    #[test]
    fn only_what_was_marked_is_read_and_only_up_to_the_last_marker_is_written() {
        let kind = CacheKind::Anthropic;
        let rules = rules(kind, 100);
        let mut cache = BoundaryCache::new(0);
        let mut serve = |letters: &str, marks: &[usize], now_ms| {
            tokens(cache.serve(&prompt(letters, kind), &at(marks), &rules, now_ms))
        };
        assert_eq!(serve("abcd", &[1, 2], 0), [0, 300, 100]);
        // The second block ends at the entry of the first request.
        assert_eq!(serve("abxy", &[3], 1), [200, 200, 0]);
        // The first block was never marked.
        assert_eq!(serve("axyz", &[3], 2), [0, 400, 0]);
        // Without a marker, nothing is read.
        assert_eq!(serve("abcd", &[], 3), [0, 0, 400]);
        // A marker before the entry does not find it.
        assert_eq!(serve("abcd", &[0], 4), [0, 100, 300]);
    }

    #[test]
    fn entries_end_with_their_time_and_every_use_renews_them() {
        let kind = CacheKind::Anthropic;
        let rules = rules(kind, 100);
        let minute = 60_000;
        let mut cache = BoundaryCache::new(1_000);
        let layout = prompt("ab", kind);
        let mut serve = |now_ms: u64, marks: &[(usize, MarkTtl)]| {
            cache.serve(&layout, marks, &rules, now_ms).read
        };
        assert_eq!(serve(0, &at(&[1])), 0);
        assert_eq!(serve(999, &at(&[1])), 0, "its response has not begun");
        assert_eq!(serve(4 * minute, &at(&[1])), 200);
        assert_eq!(serve(8 * minute, &at(&[1])), 200);
        assert_eq!(serve(13 * minute, &at(&[1])), 0);
        // Another gateway's log of the same day begins earlier.
        let mut cache = BoundaryCache::new(1_000);
        let mut serve = |now_ms: u64| cache.serve(&layout, &at(&[1]), &rules, now_ms).read;
        assert_eq!(serve(300 * minute), 0);
        assert_eq!([1, 2, 3].map(|now| serve(now * minute)), [0, 200, 200]);
        let mut cache = BoundaryCache::new(0);
        let long = [(1, MarkTtl::Long)];
        let first = cache.serve(&layout, &long, &rules, 0);
        assert_eq!((first.written, first.written_long), (0, 200));
        assert_eq!(cache.serve(&layout, &long, &rules, 59 * minute).read, 200);
    }

    #[test]
    fn a_look_back_counts_twenty_positions_and_a_short_prompt_is_not_kept() {
        let kind = CacheKind::Anthropic;
        let rules = rules(kind, 100);
        for (behind, read) in [(19, 100), (20, 0)] {
            let mut cache = BoundaryCache::new(0);
            cache.serve(&prompt("a", kind), &at(&[0]), &rules, 0);
            let letters = format!("a{}", "b".repeat(behind));
            let usage = cache.serve(&prompt(&letters, kind), &at(&[behind]), &rules, 1);
            assert_eq!(usage.read, read, "{behind}");
        }
        let mut cache = BoundaryCache::new(0);
        let short = CacheRules {
            minimum_tokens: 101,
            ..rules
        };
        let usage = cache.serve(&prompt("a", kind), &at(&[0]), &short, 0);
        assert_eq!(tokens(usage), [0, 0, 100]);
    }

    #[test]
    fn openai_looks_only_where_markers_stand() {
        let kind = CacheKind::OpenAi;
        let rules = rules(kind, 100);
        let mut cache = BoundaryCache::new(0);
        let mut explicit = |letters: &str, marks: &[usize], now_ms| {
            let mut layout = prompt(letters, kind);
            layout.mode = Mode::Explicit;
            tokens(cache.serve(&layout, &at(marks), &rules, now_ms))
        };
        assert_eq!(explicit("abcd", &[1], 0), [0, 200, 200]);
        assert_eq!(explicit("abxy", &[2], 1), [0, 300, 100]);
        assert_eq!(explicit("abxy", &[1], 2), [200, 0, 200]);
        // Of six markers, the last four are written.
        assert_eq!(explicit("efghij", &[0, 1, 2, 3, 4, 5], 3), [0, 600, 0]);
        assert_eq!(explicit("efxxxx", &[1], 4), [0, 200, 400]);
        assert_eq!(explicit("efgxxx", &[2], 5), [300, 0, 300]);
    }
}
