//! A step as the device reads it: one array of words, and the range of each part in it.
//!
//! ```text
//!   rows     [ one token of each sequence that decodes | tokens of every other segment ]
//!   wanted   [ the same rows                           | those whose logits are wanted  ]   past the last layer's keys
//! ```
//!
//! Rows that decode come first, so that decode attention can use them without reordering. The step is
//! [checked](crate::backend::check) before, and nothing here or in a kernel checks it again. The plan also decides how
//! attention is cut: into items and, where those are too few to occupy the device, into splits of the positions that
//! they see.

use super::kernels::{Heads, Item, MAX_SPLITS, NO_SLOT, PREFILL_KEYS, PREFILL_ROWS, decode_splits};
use crate::backend::{Output, Segment, Step};
use crate::sampling::Draw;
use std::ops::Range;

/// The device's limits that a plan must respect: sizes of its buffers, and the number of thread blocks that keep all
/// multiprocessors busy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Maximum number of decoding rows of a step: tokens whose attention the decode kernel computes.
    pub(super) decode_rows: usize,
    /// Maximum number of partial results of attention, one for each split, token and query head.
    pub(super) results: usize,
    /// Number of thread blocks that keep all multiprocessors busy.
    pub(super) blocks: usize,
}

/// A planned step: the words that the kernels read, and the range of each part in them. Planning the next step reuses
/// the memory.
#[derive(Default)]
pub(super) struct Plan {
    /// The words that are sent to the device; the fields of type `Range` index into them.
    pub(super) words: Vec<u32>,
    pub(super) tokens: Range<usize>,
    pub(super) positions: Range<usize>,
    /// For each row (token), where its key and value are stored: page id times tokens of a page, plus the index in the
    /// page. [`NO_SLOT`] for padding.
    pub(super) slots: Range<usize>,
    /// For each decoding row, the number of positions that it attends to; 0 for padding.
    pub(super) lengths: Range<usize>,
    /// Page tables of the decoding rows, one after another, `[decode rows][table_stride]`, as a range of `words`.
    pub(super) decode_tables: Range<usize>,
    pub(super) tables: Range<usize>,
    /// Indices of the rows whose logits are wanted, in the order in which the device computes the logits.
    pub(super) wanted: Range<usize>,
    /// Attention of the rows that the prefill kernel computes, in all layers but the last.
    pub(super) all: Cut,
    /// Attention in the last layer: of those rows in `all` whose logits are wanted.
    pub(super) last: Cut,
    pub(super) table_stride: usize,
    /// Upper bound of the number of positions that a decoding row attends to; rounded up in a padded step.
    pub(super) longest: u32,
    /// For each row of logits, in the order of the step's segments, its index in `wanted`.
    pub(super) order: Vec<u32>,
    /// For each segment that wants a sampled token, the index of its row in `wanted`, and the parameters of sampling.
    pub(super) draws: Vec<(u32, Draw)>,
    /// In a padded step, which only decodes, the number of rows that are not padding; `None` for other steps.
    pub(super) decoding: Option<usize>,
}

/// The units of work (items) in which the prefill kernel computes the attention of some rows, as ranges of
/// [`Plan::words`].
#[derive(Clone, Default)]
pub(super) struct Cut {
    /// The units of work (items: some tokens with a range of positions) as words, `[items][Item::WORDS]`.
    pub(super) items: Range<usize>,
    /// Tokens whose attention is split along the positions and then combined, `[tokens][row, splits, first]`: the
    /// output row, the number of splits, and the index of the first partial result.
    pub(super) splits: Range<usize>,
}

/// The padded shape of a step that only decodes. Steps of equal shape share a recorded CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub(super) rows: usize,
    pub(super) longest: u32,
}

impl Plan {
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn decode_rows(&self) -> usize {
        self.lengths.len()
    }

    /// Returns the shape of a padded step, which only decodes; `None` for other steps.
    pub(super) fn bucket(&self) -> Option<Bucket> {
        self.decoding.map(|_| Bucket {
            rows: self.rows(),
            longest: self.longest,
        })
    }

    /// Replaces the plan with one for the checked `step`. The plan is padded if the step only decodes and `pad` is
    /// true.
    pub(super) fn make(&mut self, step: &Step, heads: &Heads, capacity: &Capacity, pad: bool) {
        self.words.clear();
        self.order.clear();
        self.draws.clear();
        let decodes: Vec<bool> = {
            let mut room = capacity.decode_rows;
            let decodes = step.segments.iter().map(|segment| {
                let one = segment.tokens.len() == 1 && segment.output != Output::None && room > 0;
                room -= usize::from(one);
                one
            });
            decodes.collect()
        };
        let of_kind = |kind: bool| {
            let segments = step.segments.iter().zip(&decodes);
            segments
                .filter(move |(_, decodes)| **decodes == kind)
                .map(|(segment, _)| segment)
        };
        let decoding: Vec<&Segment> = of_kind(true).collect();
        let others: Vec<&Segment> = of_kind(false).collect();
        let padding = if pad && others.is_empty() && !decoding.is_empty() {
            self.decoding = Some(decoding.len());
            bucket_rows(decoding.len()).min(capacity.decode_rows) - decoding.len()
        } else {
            self.decoding = None;
            0
        };
        let longest = decoding
            .iter()
            .map(|segment| segment.start + 1)
            .max()
            .unwrap_or(0);
        self.longest = match self.decoding {
            Some(_) => longest.next_power_of_two().max(SHORTEST),
            None => longest,
        };
        self.table_stride = (self.longest as usize).div_ceil(heads.page_tokens);

        let in_order = || decoding.iter().chain(&others);
        let pads = |value: u32| std::iter::repeat_n(value, padding);
        self.tokens = self.put(
            in_order()
                .flat_map(|segment| segment.tokens.iter().copied())
                .chain(pads(0)),
        );
        let places = |segment: &Segment| segment.start..segment.start + segment.tokens.len() as u32;
        self.positions = self.put(
            in_order()
                .flat_map(|segment| places(segment))
                .chain(pads(0)),
        );
        let slot = |segment: &Segment, position: u32| {
            let (page, within) = (
                position as usize / heads.page_tokens,
                position as usize % heads.page_tokens,
            );
            segment.pages[page].0 * heads.page_tokens as u32 + within as u32
        };
        let slots =
            in_order().flat_map(|segment| places(segment).map(|position| slot(segment, position)));
        self.slots = self.put(slots.chain(pads(NO_SLOT)));
        self.lengths = self.put(
            decoding
                .iter()
                .map(|segment| segment.start + 1)
                .chain(pads(0)),
        );
        let stride = self.table_stride;
        let tables = decoding.iter().flat_map(|segment| {
            let pages = segment.pages.iter().map(|page| page.0);
            pages.chain(std::iter::repeat(0)).take(stride)
        });
        self.decode_tables = self.put(tables.chain(std::iter::repeat_n(0, padding * stride)));
        self.tables = self.put(
            others
                .iter()
                .flat_map(|segment| segment.pages.iter().map(|page| page.0)),
        );
        self.cut(step, heads, capacity, &decodes, padding);
    }

    /// Plans the attention of the rows that the prefill kernel computes, and selects the rows whose logits are wanted.
    /// `decodes` is true for each segment that the decode kernel computes.
    fn cut(
        &mut self,
        step: &Step,
        heads: &Heads,
        capacity: &Capacity,
        decodes: &[bool],
        padding: usize,
    ) {
        let decode_rows = decodes.iter().filter(|decodes| **decodes).count() + padding;
        let mut wanted: Vec<u32> = (0..decode_rows as u32).collect();
        let (mut all, mut last) = (Vec::new(), Vec::new());
        let (mut row, mut table, mut decode_row) = (decode_rows as u32, 0, 0);
        for (segment, decodes) in step.segments.iter().zip(decodes) {
            if *decodes {
                self.want(segment, decode_row, 1);
                decode_row += 1;
                continue;
            }
            let tokens = segment.tokens.len() as u32;
            let skipped = match segment.output {
                Output::None => tokens,
                Output::Last | Output::Token(_) => tokens - 1,
                Output::All => 0,
            };
            let first = Item {
                query: row,
                output: row,
                tokens,
                position: segment.start,
                table,
                ..Item::default()
            };
            all.push(first);
            if skipped < tokens {
                last.push(Item {
                    query: row + skipped,
                    output: wanted.len() as u32,
                    tokens: tokens - skipped,
                    position: segment.start + skipped,
                    ..first
                });
            }
            self.want(segment, wanted.len() as u32, tokens - skipped);
            wanted.extend(row + skipped..row + tokens);
            row += tokens;
            table += segment.pages.len() as u32;
        }
        self.wanted = self.put(wanted);
        self.all = self.put_cut(all, heads, capacity);
        self.last = self.put_cut(last, heads, capacity);
    }

    /// Records what the segment wants: a sampled token, or `rows` rows of logits. `first` is the index of the segment's
    /// first wanted row among all wanted rows.
    fn want(&mut self, segment: &Segment, first: u32, rows: u32) {
        match segment.output {
            Output::Token(draw) => self.draws.push((first, draw)),
            Output::None | Output::Last | Output::All => self.order.extend(first..first + rows),
        }
    }

    fn put(&mut self, words: impl IntoIterator<Item = u32>) -> Range<usize> {
        let start = self.words.len();
        self.words.extend(words);
        start..self.words.len()
    }

    fn put_cut(&mut self, segments: Vec<Item>, heads: &Heads, capacity: &Capacity) -> Cut {
        let (items, splits) = cut_items(&segments, heads, capacity);
        Cut {
            items: self.put(items.iter().flat_map(Item::words)),
            splits: self.put(splits.into_flattened()),
        }
    }
}

/// Returns the padded number of rows of a step with `rows` rows that only decodes. Padding keeps the number of
/// different shapes, and so of CUDA graphs, small.
fn bucket_rows(rows: usize) -> usize {
    if rows <= 8 {
        rows.next_power_of_two()
    } else {
        rows.next_multiple_of(8)
    }
}

/// Minimum of [`Bucket::longest`], in positions: steps with shorter sequences only are padded to this.
const SHORTEST: u32 = 256;

/// Minimum number of positions in a split of prefill attention: with fewer, combining costs more than splitting gains.
const SPLIT: u32 = 512;

/// Cuts segments (one item each) into items, units of work that the prefill kernel can take, longest first. If these
/// are too few to keep the device busy, splits the positions of items too, and returns for each of their tokens the
/// output row, the number of splits and the index of the first partial result.
fn cut_items(segments: &[Item], heads: &Heads, capacity: &Capacity) -> (Vec<Item>, Vec<[u32; 3]>) {
    let most = (PREFILL_ROWS / heads.group()) as u32;
    let mut whole: Vec<Item> = segments
        .iter()
        .flat_map(|segment| {
            (0..segment.tokens)
                .step_by(most as usize)
                .map(|token| Item {
                    query: segment.query + token,
                    output: segment.output + token,
                    tokens: most.min(segment.tokens - token),
                    position: segment.position + token,
                    end: segment.position + segment.tokens.min(token + most),
                    splits: 1,
                    ..*segment
                })
        })
        .collect();
    // The longest item begins first, so that it does not end last.
    whole.sort_by_key(|item| std::cmp::Reverse(item.end));
    let blocks = whole.len() * heads.kv_heads;
    if blocks == 0 || blocks * 2 > capacity.blocks {
        return (whole, Vec::new());
    }
    let wanted = (capacity.blocks / blocks) as u32;
    let (mut items, mut splits, mut results) = (Vec::new(), Vec::new(), 0u32);
    for item in whole {
        let seen = item.position + 1;
        let most = wanted.min(seen / SPLIT).clamp(1, MAX_SPLITS);
        let length = seen.div_ceil(most).next_multiple_of(PREFILL_KEYS);
        let count = seen.div_ceil(length);
        let needed = item.tokens * heads.heads as u32 * count;
        if count == 1 || (results + needed) as usize > capacity.results {
            items.push(item);
            continue;
        }
        items.extend((0..count).map(|split| Item {
            begin: split * length,
            end: if split + 1 == count {
                item.end
            } else {
                (split + 1) * length
            },
            split,
            splits: count,
            first: results,
            ..item
        }));
        let per_token = heads.heads as u32 * count;
        splits.extend(
            (0..item.tokens).map(|token| [item.output + token, count, results + token * per_token]),
        );
        results += needed;
    }
    (items, splits)
}

/// Returns the maximum number of partial results of attention that `rows` decoding rows can have: one for each query
/// head and split.
pub(super) fn decode_results(rows: usize, heads: &Heads) -> usize {
    assert!(decode_splits(u32::MAX) <= MAX_SPLITS);
    rows * heads.heads * MAX_SPLITS as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PageId;

    const HEADS: Heads = Heads {
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        page_tokens: 16,
    };
    const CAPACITY: Capacity = Capacity {
        decode_rows: 4,
        results: 100_000,
        blocks: 24,
    };

    fn segment(tokens: usize, start: u32, output: Output) -> Segment {
        let pages = (start as usize + tokens).div_ceil(16);
        Segment {
            tokens: (0..tokens as u32).map(|token| 100 + token).collect(),
            start,
            pages: (0..pages as u32)
                .map(|page| PageId(page + start % 7))
                .collect(),
            output,
        }
    }

    fn plan(segments: Vec<Segment>, pad: bool) -> Plan {
        let step = Step {
            segments,
            ..Step::default()
        };
        let mut plan = Plan::default();
        plan.make(&step, &HEADS, &CAPACITY, pad);
        plan
    }

    fn items(plan: &Plan, cut: &Cut) -> Vec<Vec<u32>> {
        plan.words[cut.items.clone()]
            .chunks(Item::WORDS)
            .map(<[u32]>::to_vec)
            .collect()
    }

    #[test]
    fn rows_that_decode_come_first_and_logits_keep_the_segments_order() {
        let segments = vec![
            segment(3, 16, Output::Last),
            segment(1, 40, Output::Last),
            segment(1, 0, Output::None),
            segment(2, 0, Output::All),
            segment(1, 9, Output::All),
        ];
        let plan = plan(segments, true);
        assert_eq!(
            plan.words[plan.positions.clone()],
            [40, 9, 16, 17, 18, 0, 0, 1]
        );
        assert_eq!(plan.words[plan.lengths.clone()], [41, 10]);
        assert_eq!(plan.words[plan.wanted.clone()], [0, 1, 4, 6, 7]);
        assert_eq!(plan.order, [2, 0, 3, 4, 1]);
        assert_eq!((plan.decoding, plan.table_stride), (None, 3));
        // Of the first segment's tokens, the last layer attends only for the third.
        let last: Vec<_> = items(&plan, &plan.last)
            .iter()
            .map(|item| (item[0], item[1], item[2], item[3]))
            .collect();
        assert_eq!(last, [(4, 2, 1, 18), (6, 3, 2, 0)]);
    }

    #[test]
    fn a_step_that_only_decodes_is_filled_up_to_its_bucket() {
        let plan = plan(
            (0..3).map(|i| segment(1, 300 + i, Output::Last)).collect(),
            true,
        );
        assert_eq!(
            plan.bucket(),
            Some(Bucket {
                rows: 4,
                longest: 512
            })
        );
        assert_eq!(plan.decoding, Some(3));
        assert_eq!(plan.words[plan.lengths.clone()], [301, 302, 303, 0]);
        assert_eq!(plan.words[plan.slots.clone()][3], NO_SLOT);
        assert_eq!(plan.decode_tables.len(), 4 * 32);
        assert_eq!(
            (plan.wanted.len(), plan.order.as_slice()),
            (4, &[0, 1, 2][..])
        );
    }

    #[test]
    fn more_sequences_than_fit_attend_as_items_do() {
        let plan = plan(
            (0..6).map(|i| segment(1, 30 + i, Output::Last)).collect(),
            true,
        );
        assert_eq!(
            (
                plan.decode_rows(),
                plan.decoding,
                items(&plan, &plan.all).len()
            ),
            (4, None, 2)
        );
        assert_eq!(plan.order, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn splits_cover_what_an_item_sees_and_each_begins_where_every_row_sees_it() {
        for (tokens, start) in [(2, 5000), (33, 4000), (70, 1023), (200, 700), (31, 100)] {
            let plan = plan(
                vec![
                    segment(tokens, start, Output::Last),
                    segment(2, 0, Output::None),
                ],
                false,
            );
            let mut covered = vec![0u32; tokens];
            for item in items(&plan, &plan.all)
                .iter()
                .filter(|item| item[3] >= start)
            {
                let [
                    query,
                    _,
                    item_tokens,
                    position,
                    _,
                    begin,
                    end,
                    split,
                    splits,
                    _,
                ] = item[..]
                else {
                    panic!()
                };
                assert!(begin <= position && begin.is_multiple_of(PREFILL_KEYS) && begin < end);
                assert!(split < splits && item_tokens as usize * HEADS.group() <= PREFILL_ROWS);
                assert_eq!(split + 1 == splits, end == position + item_tokens);
                for token in 0..item_tokens {
                    covered[(query + token) as usize] += end.min(position + token + 1) - begin;
                }
            }
            let expected: Vec<u32> = (0..tokens as u32).map(|token| start + token + 1).collect();
            assert_eq!(covered, expected);
            let results: Vec<&[u32]> = plan.words[plan.all.splits.clone()].chunks(3).collect();
            for pair in results.windows(2) {
                assert_eq!(
                    pair[1][2] - pair[0][2],
                    pair[0][1] * HEADS.heads as u32,
                    "results do not overlap"
                );
            }
        }
    }
}
