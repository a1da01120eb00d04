//! Attention with bf16 products.
//!
//! Products are transposed: keys and values are left operands, queries and weights right ones. A vector then holds one
//! position's scores for sixteen rows of the item, so that maxima, totals and corrections are one operation per vector
//! and nothing is summed across lanes:
//!
//! ```text
//!                  rows of the item (token, head)
//!                  ┌──────────────┐                                   ┌──────────────┐
//!  span of keys    │ scores       │  = keys · queries     head_dim    │ out          │  += values · weights
//!  [64][head_dim]  │ [64][32]     │                                   │ [..][32]     │
//!                  └──────────────┘                                   └──────────────┘
//! ```
//!
//! Scores, maxima, totals and outputs are f32. Queries, keys, values and weights are bf16, in one part or two, as the
//! pool's keys and values are. Queries are multiplied by log₂ e too, so that weights are powers of two.
//!
//! A span's keys and values are first copied from their pages into one buffer, which all rows of the item read.
//!
//! Two parts are as exact as f32. With one part (`bf16-kv`) logits deviate by more than two hundredths of their
//! standard deviation, the bound for defaults, so one part is never chosen by default.

use super::Attention;
use crate::backend::PageId;
use crate::backend::cpu::batch::Item;
use crate::backend::cpu::heads::MAX_HEAD;
use crate::backend::cpu::kernels::pairs::{DEPTH, Left, Machine, Pair, PairProduct, ROWS, Ready};
use crate::backend::cpu::kernels::{LANES, Loop, PANEL, Start, lanes};
use crate::backend::cpu::pages::{KvType, LayerPool};
use half::bf16;
use std::cell::RefCell;
use std::ops::Range;

/// Number of positions in a span: those whose scores are computed at once, before the softmax's running maximum is
/// corrected.
const SPAN: usize = 64;
/// Panels (32 rows each) in an attention item, the unit of work. More panels read each key and value less often, but
/// leave fewer items for threads. A row is one query head of one token.
const PANELS: usize = 4;
/// Maximum number of bf16 parts whose sum represents one number.
const PARTS: usize = 2;
/// Maximum number of rows (tokens times query heads) in an attention item.
pub(super) const ITEM_ROWS: usize = PANELS * PANEL;

/// A thread's scratch memory for one attention item (unit of work: some tokens with some query heads) at a time. Its
/// content is undefined when an item begins.
#[repr(align(64))]
struct Buffers {
    panels: [Panel; PANELS],
    gathered: Gathered,
    /// Attention scores of one panel (32 rows) for one span of positions, `[position][row]`.
    scores: [[f32; PANEL]; SPAN],
    /// Softmax weights of one panel (32 rows) for one span of 64 positions, `[part][position / 2][row]`: a word holds
    /// the bf16 weights of two positions.
    weights: [[u32; PANEL]; PARTS * SPAN / 2],
}

/// Keys and values of one span of positions, copied together from their pages: a matrix product takes 32 positions at a
/// time, and a page may hold only 16.
#[repr(align(64))]
struct Gathered {
    /// Keys of one span of 64 positions, `[position][part][part_width / 2]`: each element is a pair of adjacent numbers
    /// of a key, in bf16. Numbers have one part, or two (high and low) whose sum represents the number.
    keys: [Pair; PARTS * SPAN * MAX_HEAD / 2],
    /// Values of one span of 64 positions, `[part][padded_head][position / 2]`: each element is a pair of the values at
    /// two adjacent positions, in bf16. Zeroes follow the last position that is needed: a softmax weight of zero would
    /// not hide a NaN.
    values: [[Pair; SPAN / 2]; PARTS * MAX_HEAD],
}

/// Queries, outputs and softmax state of up to 32 rows of an attention item (unit of work); a row is one query head of
/// one token.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Panel {
    /// The rows' queries, rotated and scaled, `[part][part_width / 2][row]`: each element is a pair of adjacent numbers
    /// of one query. Part 0 has each number rounded to bf16. Part 1, which is used only if numbers are in two parts,
    /// has the rest in bf16.
    queries: [[Pair; PANEL]; PARTS * MAX_HEAD / 2],
    /// Sums of weighted values so far, `[head_dim][row]`, not yet divided by `totals`.
    out: [[f32; PANEL]; MAX_HEAD],
    maxima: [f32; PANEL],
    totals: [f32; PANEL],
    /// For each row, the first position that it attends to. The last one is its own, in `positions`.
    lowest: [i32; PANEL],
    positions: [i32; PANEL],
}

thread_local! {
    static BUFFERS: RefCell<Box<Buffers>> = RefCell::new(Box::new(Buffers {
        panels: [Panel {
            queries: [[ZEROES; PANEL]; PARTS * MAX_HEAD / 2],
            out: [[0.0; PANEL]; MAX_HEAD],
            maxima: [0.0; PANEL],
            totals: [0.0; PANEL],
            lowest: [0; PANEL],
            positions: [0; PANEL],
        }; PANELS],
        gathered: Gathered {
            keys: [ZEROES; PARTS * SPAN * MAX_HEAD / 2],
            values: [[ZEROES; SPAN / 2]; PARTS * MAX_HEAD],
        },
        scores: [[0.0; PANEL]; SPAN],
        weights: [[0; PANEL]; PARTS * SPAN / 2],
    }));
}

const ZEROES: Pair = [bf16::ZERO; 2];

/// Computes attention for `item`, some tokens with some query heads of a sequence that has the page table `pages`, and
/// writes its rows to `out`; see [`Attention::attend`].
pub(super) fn attend(
    attention: &Attention<'_>,
    machine: Machine,
    item: &Item,
    pages: &[PageId],
    out: &mut [f32],
) {
    BUFFERS.with_borrow_mut(|buffers| {
        attend_with(attention, &mut machine.ready(), item, pages, buffers, out);
    });
}

fn attend_with(
    attention: &Attention<'_>,
    machine: &mut Ready,
    item: &Item,
    pages: &[PageId],
    buffers: &mut Buffers,
    out: &mut [f32],
) {
    let Attention { kernels, pool, .. } = *attention;
    let Buffers {
        panels,
        gathered,
        scores,
        weights,
    } = buffers;
    let heads = attention.cut.item_heads;
    let rows = attention.rows(item);
    let panels = &mut panels[..rows.div_ceil(PANEL)];
    let padded_head = pool.layout.padded_head();
    kernels.run(Queries {
        attention,
        item,
        panels,
    });
    for (number, panel) in panels.iter_mut().enumerate() {
        let positions = panel.positions.iter_mut().zip(&mut panel.lowest);
        for (row, (position, lowest)) in (number * PANEL..).zip(positions) {
            let own = item.position as usize + row / heads;
            (*position, *lowest) = (own as i32, attention.lowest(own) as i32);
        }
        panel.out[..padded_head].fill([0.0; PANEL]);
        // Finite, because a row with a window may see nothing of its panel's first span.
        panel.maxima.fill(f32::MIN);
        panel.totals.fill(0.0);
    }

    let two = pool.layout.kv_type == KvType::Bf16x2;
    let (row_pairs, part_pairs) = (pool.layout.width() / 2, pool.layout.part_width() / 2);
    let end = (item.position + item.tokens) as usize;
    let begin = attention.lowest(item.position as usize) / SPAN * SPAN;
    for span in (begin..end).step_by(SPAN) {
        kernels.run(Gather {
            pool,
            pages,
            head: attention.kv_head(item),
            positions: span..end.min(span + SPAN),
            to: gathered,
        });
        for (number, panel) in panels.iter_mut().enumerate() {
            let rows = number * PANEL..rows.min((number + 1) * PANEL);
            let last = item.position as usize + (rows.end - 1) / heads;
            if last < span || panel.lowest[0] as usize >= span + SPAN {
                continue;
            }
            let columns = if rows.len() > LANES { PANEL } else { LANES };
            let positions = SPAN.min(last + 1 - span);
            let padded = positions.next_multiple_of(DEPTH);
            machine.multiply(PairProduct {
                a: Left {
                    pairs: &gathered.keys,
                    row: row_pairs,
                    step: DEPTH / 2,
                    tile: ROWS * row_pairs,
                    low: two.then_some(part_pairs),
                    streamed: false,
                },
                rows: 0..positions,
                b: panel.queries[..row_pairs].as_flattened(),
                next: &[],
                c: scores.as_flattened_mut(),
                columns,
                start: Start::Zero,
            });
            kernels.run(Softmax {
                panel,
                scores: &mut scores[..padded],
                weights: &mut weights[..padded],
                two,
                columns,
                padded_head,
                span,
            });
            machine.multiply(PairProduct {
                a: Left {
                    pairs: gathered.values.as_flattened(),
                    row: SPAN / 2,
                    step: DEPTH / 2,
                    tile: ROWS * SPAN / 2,
                    low: two.then_some(padded_head * SPAN / 2),
                    streamed: false,
                },
                rows: 0..padded_head,
                b: bytemuck::cast_slice(&weights[..if two { padded } else { padded / 2 }]),
                next: &[],
                c: panel.out.as_flattened_mut(),
                columns,
                start: Start::Sum,
            });
        }
    }

    let mut outputs = out.chunks_exact_mut(padded_head).take(rows);
    for panel in panels {
        let shares = panel.totals.map(|total| 1.0 / total);
        for (row, out) in outputs.by_ref().take(PANEL).enumerate() {
            for (to, from) in out.iter_mut().zip(&panel.out) {
                *to = from[row] * shares[row];
            }
        }
    }
}

/// Rotates and scales the queries of an attention item (some tokens with some query heads), and stores them as right
/// operands of the products with keys.
struct Queries<'a> {
    attention: &'a Attention<'a>,
    item: &'a Item,
    panels: &'a mut [Panel],
}

impl Loop for Queries<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let layout = &self.attention.pool.layout;
        let head_dim = self.attention.queries.head_dim;
        let scale = std::f32::consts::LOG2_E / self.attention.scalar.sqrt();
        let (row_pairs, part_pairs) = (layout.width() / 2, layout.part_width() / 2);
        let mut query = [0.0; MAX_HEAD];
        for row in 0..self.attention.rows(self.item) {
            self.attention
                .query::<FMA>(self.item, row, scale, &mut query[..head_dim]);
            let queries = &mut self.panels[row / PANEL].queries[..row_pairs];
            let (high, low) = queries.split_at_mut(part_pairs);
            let (row, pairs) = (row % PANEL, query.as_chunks::<2>().0);
            for (to, pair) in high.iter_mut().zip(pairs) {
                to[row] = pair.map(lanes::narrow);
            }
            for (to, pair) in low.iter_mut().zip(pairs) {
                to[row] = pair.map(|x| lanes::split(x)[1]);
            }
        }
    }
}

/// One span (64 positions) of the online softmax, for one panel (32 rows): turns the span's scores into weights, and
/// corrects outputs and totals for the new maximum.
struct Softmax<'a> {
    panel: &'a mut Panel,
    /// Scores of one span of 64 positions, up to the position of the panel's last row, padded to a multiple of
    /// [`DEPTH`] positions.
    scores: &'a mut [[f32; PANEL]],
    /// Output: the softmax weights of the positions in `scores`, in bf16, two positions in a word. The first half of
    /// the slice has the weights' high parts. The second half has their low parts (the remainders) if `two` is true;
    /// otherwise it is not written.
    weights: &'a mut [[u32; PANEL]],
    two: bool,
    /// Number of rows of `panel` that are in use, rounded up to whole vectors of 16.
    columns: usize,
    padded_head: usize,
    /// The first of the 64 positions of the span.
    span: usize,
}

impl Loop for Softmax<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        if self.two {
            self.in_parts::<FMA, true>();
        } else {
            self.in_parts::<FMA, false>();
        }
    }
}

impl Softmax<'_> {
    // The innermost loops run over rows and have a length that the compiler does not know, so that it makes vectors of
    // rows and nothing else.
    #[inline(always)]
    fn in_parts<const FMA: bool, const TWO: bool>(self) {
        let Panel {
            out,
            maxima,
            totals,
            lowest,
            positions,
            ..
        } = self.panel;
        let columns = self.columns.min(PANEL);
        // Every row sees these positions. The others are compared with the row's own and the first that it sees.
        let common = match lowest[PANEL - 1] as usize > self.span {
            true => 0,
            false => (positions[0] as usize + 1).saturating_sub(self.span),
        };
        let (common, rest) = self
            .scores
            .split_at_mut(common.min(self.scores.len()) / 8 * 8);
        let first = (self.span + common.len()) as i32;

        let mut maximum = *maxima;
        for [a, b, c, d, e, f, g, h] in common.as_chunks().0 {
            for row in 0..columns {
                let low = lanes::max(lanes::max(a[row], b[row]), lanes::max(c[row], d[row]));
                let high = lanes::max(lanes::max(e[row], f[row]), lanes::max(g[row], h[row]));
                // With `lanes::max` this would become a masked store, for which the next load has to wait.
                maximum[row] = maximum[row].max(lanes::max(low, high));
            }
        }
        for (position, scores) in (first..).zip(&mut *rest) {
            for row in 0..columns {
                let score = scores[row];
                scores[row] = if position <= positions[row] && position >= lowest[row] {
                    score
                } else {
                    f32::NEG_INFINITY
                };
                maximum[row] = maximum[row].max(scores[row]);
            }
        }

        let mut sums = [0.0; PANEL];
        let (high, low) = self.weights.split_at_mut(self.weights.len() / 2);
        let (common_high, rest_high) = high.split_at_mut(common.len() / 2);
        let (common_low, rest_low) = low.split_at_mut(common.len() / 2);
        let store = |even: f32, odd: f32, high: &mut u32, low: &mut u32| {
            if TWO {
                [*high, *low] = lanes::split_pair(even, odd);
            } else {
                *high = lanes::narrow_pair(even, odd);
            }
        };
        let weights = common_high.iter_mut().zip(common_low);
        for ([even, odd], (high, low)) in common.as_chunks().0.iter().zip(weights) {
            for row in 0..columns {
                let even = lanes::exp2_of_nonpositive::<FMA>(even[row] - maximum[row]);
                let odd = lanes::exp2_of_nonpositive::<FMA>(odd[row] - maximum[row]);
                sums[row] += even + odd;
                store(even, odd, &mut high[row], &mut low[row]);
            }
        }
        let weights = rest_high.iter_mut().zip(rest_low);
        let rest = rest.as_chunks().0.iter().zip(weights);
        for (position, ([even, odd], (high, low))) in (first..).step_by(2).zip(rest) {
            for row in 0..columns {
                let even = lanes::exp2_of_nonpositive::<FMA>(even[row] - maximum[row]);
                let odd = lanes::exp2_of_nonpositive::<FMA>(odd[row] - maximum[row]);
                let even = if position <= positions[row] && position >= lowest[row] {
                    even
                } else {
                    0.0
                };
                let odd = if position < positions[row] && position + 1 >= lowest[row] {
                    odd
                } else {
                    0.0
                };
                sums[row] += even + odd;
                store(even, odd, &mut high[row], &mut low[row]);
            }
        }

        // In the first span totals and outputs are zero, so the correction has no effect.
        let mut corrections = [1.0; PANEL];
        for row in 0..columns {
            corrections[row] = lanes::exp2_of_nonpositive::<FMA>(maxima[row] - maximum[row]);
            totals[row] = lanes::fma::<FMA>(totals[row], corrections[row], sums[row]);
        }
        *maxima = maximum;
        if corrections.iter().any(|correction| *correction != 1.0) {
            for out in &mut out[..self.padded_head] {
                for row in 0..columns {
                    out[row] *= corrections[row];
                }
            }
        }
    }
}

/// Copies the keys and values of a span of positions from their pages into one buffer, for one key and value head.
struct Gather<'a> {
    pool: &'a LayerPool,
    pages: &'a [PageId],
    head: usize,
    /// The positions to copy: those of one span of 64, up to the last token that is computed.
    positions: Range<usize>,
    to: &'a mut Gathered,
}

impl Loop for Gather<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        /// One element of a head for the 16 tokens of a strip.
        type Row = [Pair; LANES / 2];
        let layout = &self.pool.layout;
        let (page_tokens, pairs) = (layout.page_tokens, layout.width() / 2);
        let span = self.positions.start;
        let values = &mut self.to.values[..layout.depth()];
        for position in self.positions.clone().step_by(LANES) {
            let (page, slot) = (self.pages[position / page_tokens], position % page_tokens);
            let keys: &[Pair] = self.pool.rows(page, self.head, slot);
            let to = &mut self.to.keys[(position - span) * pairs..][..LANES * pairs];
            to.copy_from_slice(&keys[..LANES * pairs]);

            let strip: &[Row] = self.pool.strip(page, self.head, slot);
            let values = values
                .iter_mut()
                .map(|to| &mut to[(position - span) / 2..][..LANES / 2]);
            let tokens = self.positions.end - position;
            if tokens >= LANES {
                values
                    .zip(strip)
                    .for_each(|(to, from)| to.copy_from_slice(from));
            } else {
                for (to, from) in values.zip(strip) {
                    let mut row = [bf16::ZERO; LANES];
                    row[..tokens].copy_from_slice(&from.as_flattened()[..tokens]);
                    to.copy_from_slice(row.as_chunks().0);
                }
            }
        }
        let behind = self.positions.len().next_multiple_of(LANES);
        if !behind.is_multiple_of(DEPTH) {
            for values in values {
                values[behind / 2..][..LANES / 2].fill(ZEROES);
            }
        }
    }
}
