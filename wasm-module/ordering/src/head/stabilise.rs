//! Decides the changes that make prompts' heads begin alike: the order and form of tools, and what happens to volatile
//! spans (texts that change between requests).
//!
//! ```text
//!   tools   ─▶ order, form ────────────▶ edits
//!   system  ─▶ patterns, learned slots ─▶ spans ─▶ move ▶ removed here, written behind the newest documents
//!                                                  freeze ▶ replaced by the conversation's first value
//!                                                  drop ▶ removed
//! ```
//!
//! The body is not written here: a [`Decision`] consists of ranges and replacements. The hashes that identify chats and
//! scopes are computed without the volatile spans ([`Parsed::rebase`]), so that later requests still match them.

use super::config::{Head, HeadMode, Upstream};
use super::decision::{Decision, Form, Frozen, Moved, merged};
use super::learned::{Learned, Seen, looks_like_data};
use super::patterns::{BILLING, Class, Match, matches};
use super::report::{Change, ChangeKind, LEARNED};
use super::texts::{RemovedElements, SystemText, SystemTexts, Unit};
use super::tools::{MAX_TOOLS, Tools};
use crate::body::{Parsed, Role, range_in};
use crate::conversation::sent::kept_hash;
use crate::lru::Lru;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The state learnt from the heads (tools, system text) of one tenant's and model's prompts, to make later ones begin
/// alike. Bounded in size.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    tools: Tools,
    learned: Learned,
    /// Matches of the configured patterns in lines of system texts, cached by the line's hash.
    lines: Lru<u64, Box<[Match]>>,
    /// Hashes of heads (tools, system text) that needed no change, with the versions of `learned` and of `tools`
    /// (counters of what was learnt) at that time.
    settled: Lru<u64, (u64, u64)>,
}

impl Heads {
    /// Returns the changes to the head (tools, system text) of a request's prompt that make it begin like earlier
    /// prompts, and records this head for later requests. O(new bytes) for tools, lines and templates (stable lines of
    /// system texts).
    pub(crate) fn decide<'a>(&mut self, config: &Head, parsed: &Parsed<'a>) -> Decision<'a> {
        let mut decision = Decision::default();
        if config.raw.mode == HeadMode::Off {
            return decision;
        }
        let key = key_of(parsed);
        let version = (self.learned.version, self.tools.version);
        let is_settled =
            key.is_some_and(|key| self.settled.get(&key).is_some_and(|at| *at == version));
        if is_settled {
            return decision;
        }
        let mut opening =
            (parsed.messages.iter()).take_while(|message| message.role == Role::System);
        if config.raw.upstream == Upstream::Anthropic
            && opening.any(|message| has_billing_line(message.content))
        {
            // The line has a checksum of the client's body, so nothing may change.
            decision.report.left += 1;
            return decision;
        }
        self.system(config, parsed, &mut decision);
        decision.report.unread += u32::from(parsed.tools.len() > MAX_TOOLS);
        if let Some(arranged) = self.tools.arrange(&parsed.tools, config.raw.tools) {
            decision.report.tools_moved = arranged.moved;
            decision.report.tools_reformed = arranged.reformed;
            for (slot, (at, text)) in parsed.tools.iter().zip(arranged.tools) {
                let range = range_in(parsed.text, slot);
                if *text != **slot {
                    let from = parsed.tools.get(at).copied().unwrap_or_default();
                    decision.report.changes.push(Change::new(
                        ChangeKind::Tool,
                        "",
                        range_in(parsed.text, from),
                    ));
                    decision.tools.push((range, text));
                }
            }
        }
        if let Some(key) = key.filter(|_| decision.report.is_empty()) {
            let version = (self.learned.version, self.tools.version);
            self.settled.insert(key, version, MAX_SETTLED);
        }
        decision
    }

    /// Removes and returns the orders (of a tool's JSON keys, or of a set of tools) that this worker has chosen since
    /// the last call, to be sent to other workers.
    pub(crate) fn take_unpublished(&mut self) -> Vec<Form> {
        self.tools.take_unpublished()
    }

    /// Records an order (of a tool's JSON keys, or of a set of tools) that another worker chose. If another order is
    /// recorded for the same tool or set, the smaller one by byte order is kept.
    pub(crate) fn learn(&mut self, form: &Form) {
        self.tools.learn(form);
    }

    /// Decides which volatile spans of the system text (texts that change between requests) are moved, replaced by
    /// their first value or removed, and adds these changes to `decision`.
    fn system<'a>(&mut self, config: &Head, parsed: &Parsed<'a>, decision: &mut Decision<'a>) {
        if config.patterns.is_empty() && !config.raw.volatile.learn {
            return;
        }
        let SystemTexts { texts, unread } = SystemTexts::of(parsed);
        decision.report.unread += unread;
        // Bytes of lines not in the cache that patterns may be matched against in this request.
        let mut budget = LEAST_MATCHED_BYTES + parsed.text.len() / MATCHED_SHARE;
        let mut found: Vec<Vec<PatternMatch>> = Vec::with_capacity(texts.len());
        for text in &texts {
            found.push(self.found(config, text, &mut budget, &mut decision.report.unread));
        }
        let volatile = if config.raw.volatile.learn {
            self.volatile(config, &texts, &found)
        } else {
            Vec::new()
        };
        let target = parsed.writable().and_then(|at| u32::try_from(at).ok());
        let mut room = config.raw.max_moved_bytes as usize;
        let mut judged = 0;
        let mut moved: Vec<(&'a str, u64)> = Vec::new();
        let mut elements = RemovedElements::default();
        let mut volatile = volatile.into_iter();
        for (text, found) in texts.iter().zip(&found) {
            let report = &mut decision.report;
            let before = (report.changes.len(), moved.len(), room);
            let mut gone = vec![false; text.units.len()];
            let mut cut: Vec<Range<usize>> = Vec::new();
            // For each unit, the name of the pattern by which it moves.
            let mut names: Vec<Option<&str>> = vec![None; text.units.len()];
            let mut frozen: Vec<(&str, Range<usize>)> = Vec::new();
            for found in found {
                let Some(pattern) = config.patterns.get(found.pattern) else {
                    continue;
                };
                match pattern.class {
                    Class::Leave => {}
                    Class::Drop => {
                        report.dropped += 1;
                        report.changes.push(Change::new(
                            ChangeKind::Dropped,
                            &pattern.name,
                            text.in_body(&found.range),
                        ));
                        cut.push(found.range.clone());
                    }
                    Class::Freeze | Class::Move if text.is_marked => report.left += 1,
                    Class::Freeze => frozen.push((&pattern.name, found.range.clone())),
                    Class::Move => {
                        let units = overlapping(&text.units, &found.range);
                        for name in names.get_mut(units).unwrap_or_default() {
                            name.get_or_insert(&pattern.name);
                        }
                    }
                }
            }
            let learned = volatile.next().unwrap_or_default();
            for (name, _) in names.iter_mut().zip(learned).filter(|(_, is)| *is) {
                name.get_or_insert(LEARNED);
            }
            let named = names.iter().enumerate();
            let named = named.filter_map(|(at, name)| Some((at, (*name)?)));
            // A slot moves as a whole or not at all: what stayed would still break the prefix.
            let mut is_data = |at: usize| {
                let unit = text.units.get(at);
                let words = unit.and_then(|unit| text.text.plain.get(unit.range.clone()));
                let is_judged = judged < MAX_JUDGED;
                judged += 1;
                is_judged && words.is_some_and(looks_like_data)
            };
            let may_move = target.is_some() && !text.is_marked;
            let learned_is_data = may_move
                && (named.clone())
                    .filter(|(_, name)| *name == LEARNED)
                    .all(|(at, _)| is_data(at));
            for (at, name) in named {
                let Some(unit) = text.units.get(at) else {
                    continue;
                };
                let words = text.raw(&unit.range);
                let is_learned = name == LEARNED;
                let may = may_move
                    && words.len() < room
                    && if is_learned {
                        learned_is_data
                    } else {
                        is_data(at)
                    };
                if !may {
                    report.left += 1;
                    continue;
                }
                room -= words.len() + 1;
                report.moved += 1;
                report.learned += u32::from(is_learned);
                report.changes.push(Change::new(
                    ChangeKind::Moved,
                    name,
                    text.in_body(&unit.range),
                ));
                if let Some(gone) = gone.get_mut(at) {
                    *gone = true;
                }
                moved.push((words, unit.hash));
            }
            for (name, range) in frozen {
                let units = gone.get(overlapping(&text.units, &range));
                if units.unwrap_or_default().contains(&true) {
                    // What moves takes its values along.
                    continue;
                }
                let words = text.raw(&range);
                let range = text.in_body(&range);
                report.frozen += 1;
                let change = Change::new(ChangeKind::Frozen, name, range.clone());
                report.changes.push(change);
                decision.frozen.push(Frozen { range, words });
            }
            // A line that is removed completely loses its line break too.
            for range in &mut cut {
                let next = (text.units).partition_point(|unit| unit.line.end <= range.start);
                let line = text.units.get(next).map(|unit| unit.line.clone());
                if let Some(line) =
                    line.filter(|line| line.start <= range.start && range.end <= line.end)
                    && let Some(words) = text.text.plain.get(line.clone())
                    && text.text.plain.get(range.clone()).map(str::trim) == Some(words.trim())
                {
                    *range = line;
                }
            }
            cut.extend(text.without(&gone));
            let cut = merged(cut);
            let is_all = !cut.is_empty() && text.is_blank_without(&cut);
            match text.part.filter(|_| is_all) {
                // Providers refuse an empty array and an empty block: an array's last block stays as it is.
                Some(part) if !elements.add(parsed.text, part) => {
                    report.leave(before.0);
                    moved.truncate(before.1);
                    room = before.2;
                }
                Some(_) => {}
                None => {
                    let cut = cut.iter().map(|range| text.in_body(range));
                    decision.removed.extend(cut);
                }
            }
        }
        decision.removed.extend(elements.into_ranges());
        decision.removed = merged(std::mem::take(&mut decision.removed));
        let is_kept = !moved.is_empty() || !decision.frozen.is_empty();
        decision.moved = target.filter(|_| is_kept).map(|message| {
            let words: Vec<&str> = moved.iter().map(|(words, _)| *words).collect();
            let words = words.join(r"\n");
            let frozen: Vec<Box<str>> = (decision.frozen.iter())
                .map(|span| span.words.into())
                .collect();
            let values = (frozen.iter()).map(|words| xxh3_64_with_seed(words.as_bytes(), 8));
            Moved {
                message,
                hash: kept_hash(&words, &frozen),
                spans: moved.iter().map(|(_, hash)| *hash).chain(values).collect(),
                words: words.into(),
            }
        });
    }

    /// Returns the matches of the configured patterns for volatile spans (texts that change between requests) in a
    /// system text, in order. A line that is not cached takes its bytes from `budget`, once for each pattern tried; if
    /// too little is left, it has no matches and is counted in `unread`.
    fn found(
        &mut self,
        config: &Head,
        text: &SystemText<'_>,
        budget: &mut usize,
        unread: &mut u32,
    ) -> Vec<PatternMatch> {
        let mut all = Vec::new();
        if config.patterns.is_empty() {
            return all;
        }
        let plain = &*text.text.plain;
        let before = if plain.contains(ENVIRONMENT) {
            ENVIRONMENT
        } else {
            ""
        };
        let seed = 6 + before.len() as u64;
        for units in text.units.chunk_by(|one, next| one.line == next.line) {
            let Some(unit) = units
                .first()
                .filter(|_| units.iter().all(|unit| !unit.is_barrier))
            else {
                continue;
            };
            let line = plain.get(unit.line.clone()).unwrap_or_default();
            let line = line.strip_suffix('\n').unwrap_or(line);
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.len() > MAX_LINE_BYTES {
                continue;
            }
            let key = xxh3_64_with_seed(line.as_bytes(), seed);
            if self.lines.get(&key).is_none() {
                let Some(found) = matches(&config.patterns, before, line, budget) else {
                    *unread += 1;
                    continue;
                };
                self.lines.insert(key, found.into(), MAX_LINES);
            }
            let found = self
                .lines
                .get(&key)
                .map(|found| &**found)
                .unwrap_or_default();
            for found in found {
                // After a hash collision, a cached match may not be a valid range of this line.
                let range = unit.line.start + found.range.start..unit.line.start + found.range.end;
                if range.end <= unit.line.end && plain.get(range.clone()).is_some() {
                    all.push(PatternMatch {
                        range,
                        pattern: found.pattern,
                    });
                }
            }
        }
        all
    }

    /// Returns, for each unit (line or sentence) of each text, true if it is in a place where the text changes between
    /// requests. False for units that hold documents, and for units in which a pattern of `found` matches. The
    /// templates (stable lines of earlier texts) also learn from the texts.
    fn volatile(
        &mut self,
        config: &Head,
        texts: &[SystemText<'_>],
        found: &[Vec<PatternMatch>],
    ) -> Vec<Vec<bool>> {
        let acts = |hit: &&PatternMatch| {
            let pattern = config.patterns.get(hit.pattern);
            pattern.is_some_and(|pattern| pattern.class != Class::Leave)
        };
        // Text that a pattern matches is left out of the templates.
        let covered = texts.iter().zip(found).map(|(text, hits)| {
            let mut covered = vec![false; text.units.len()];
            for hit in hits.iter().filter(acts) {
                let units = overlapping(&text.units, &hit.range);
                covered.get_mut(units).unwrap_or_default().fill(true);
            }
            covered
        });
        let covered: Vec<Vec<bool>> = covered.collect();
        let units =
            (texts.iter().zip(&covered)).flat_map(|(text, covered)| text.units.iter().zip(covered));
        let open = units.filter(|(_, covered)| !**covered);
        let seen: Vec<Seen> = open.map(|(unit, _)| Seen::of(unit)).collect();
        let mut marks = self.learned.learn(&seen).into_iter();
        let volatile = texts.iter().zip(&covered).map(|(text, covered)| {
            let units = text.units.iter().zip(covered);
            let is_volatile = |(unit, covered): (&Unit, &bool)| {
                !covered && marks.next().unwrap_or_default() && !unit.is_barrier
            };
            units.map(is_volatile).collect()
        });
        volatile.collect()
    }
}

/// A match of a configured pattern in the unescaped text of a system message.
struct PatternMatch {
    range: Range<usize>,
    pattern: usize,
}

/// Returns the indices of the units (lines or sentences) that `range`, a range of the unescaped text, overlaps. O(log
/// units).
fn overlapping(units: &[Unit], range: &Range<usize>) -> Range<usize> {
    let start = units.partition_point(|unit| unit.range.end <= range.start);
    let end = units.partition_point(|unit| unit.range.start < range.end);
    start..end.max(start)
}

/// Returns whether a line of a message begins with [`BILLING`]; line breaks of `content` are escaped as in a JSON
/// string.
fn has_billing_line(content: &str) -> bool {
    let mut found = content.match_indices(BILLING);
    found.any(|(at, _)| {
        let before = content.get(..at).unwrap_or_default();
        before.ends_with('"') || before.ends_with("\\n")
    })
}

/// Returns a hash of everything in the request on which the changes to its head (tools, system text) depend; `None` if
/// a system message has documents, which the hash would not cover.
fn key_of(parsed: &Parsed<'_>) -> Option<u64> {
    let mut opening = (parsed.messages.iter()).take_while(|message| message.role == Role::System);
    opening.try_fold(parsed.start.before, |key, message| {
        message
            .groups
            .is_empty()
            .then(|| xxh3_64_with_seed(&message.hash.to_le_bytes(), key))
    })
}

/// The tag of the element in which Claude Code, opencode and Cline write the date.
const ENVIRONMENT: &str = "<env>";

/// The maximum length in bytes of a line of a system text against which patterns are matched.
const MAX_LINE_BYTES: usize = 2_048;

/// The divisor that limits the work of matching patterns against a request of `n` bytes: at most `n` / this many bytes,
/// and [`LEAST_MATCHED_BYTES`] more, are matched. A byte counts once for each pattern that is tried, and not at all in
/// a line with cached matches. Volatile texts in lines beyond the limit stay in place until a later request. A regular
/// expression takes a hundred times as long per byte as everything else.
const MATCHED_SHARE: usize = 9;
const LEAST_MATCHED_BYTES: usize = 1_024;

/// The maximum number of lines and sentences of a request that are classified as data or instruction; the others are
/// not moved.
const MAX_JUDGED: usize = 256;

/// The maximum number of lines of one tenant's and model's system texts whose matches are cached.
const MAX_LINES: usize = 4_096;

/// The maximum number of heads (tools, system text) of one tenant and model that are cached as needing no change.
const MAX_SETTLED: usize = 256;
