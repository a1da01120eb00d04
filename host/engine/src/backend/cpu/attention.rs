//! Causal attention over pages.
//!
//! An item is a few tokens of one segment with the query heads that share a key and value head, so that each key and
//! value that is read serves all of them. The item walks the sequence in *spans* of 128 positions counted from position
//! 0, and keeps for each query a running maximum, total and output (online softmax: Milakov and Gimelshein, arXiv
//! 1805.02867, section 3; FlashAttention, arXiv 2205.14135, section 3.1):
//!
//! ```text
//!   span      scores  [rows][128] = queries · keys      16 tokens per strip of keys, only strips that a row sees
//!             maximum, exponentials, total              a row's own positions only; the rest of the span is zero
//!             output  [rows][head_dim] += scores · values   each row up to its own position
//! ```
//!
//! Spans are cut by position, never by chunk, item or page, and a query computes only with positions up to its own. The
//! content of later slots and the number of rows in the item therefore cannot reach its result. That keeps
//! attention batch-invariant, and lets slots beyond a sequence hold anything, NaN included.

use super::batch::{ITEM_ROWS, Item};
use super::heads::{Heads, MAX_HEAD, Rotary};
use super::kernels::{
    BLOCK, Kernels, LANES, Loop, PANEL, Product, STRIDE, Start, TILE_BLOCK, TILE_ROWS, lanes,
};
use super::left_operand::write_row;
use super::pages::LayerPool;
use crate::backend::PageId;

/// Positions between two corrections of the running maximum: one block of the microkernel's left operand.
const SPAN: usize = BLOCK;
const ITEM_TILES: usize = ITEM_ROWS / TILE_ROWS;

/// The part of attention that all items of a layer share.
pub(super) struct Attention<'a> {
    pub(super) kernels: Kernels,
    pub(super) queries: Heads<'a>,
    pub(super) rotary: &'a Rotary,
    pub(super) pool: &'a LayerPool,
    /// Query heads in an item.
    pub(super) item_heads: usize,
    /// Query heads that share a key and value head.
    pub(super) group: usize,
}

impl Attention<'_> {
    /// Computes attention for `item` of a segment with `pages`. Row `token * item_heads + head` of the result is at
    /// `out[row * value_stride..]`, `[head_dim]`. `out` is `[ITEM_ROWS, value_stride]`.
    pub(super) fn attend(&self, item: &Item, pages: &[PageId], out: &mut [f32]) {
        let (first, tokens, heads) = (
            item.position as usize,
            item.tokens as usize,
            self.item_heads,
        );
        let rows = tokens * heads;
        let mut queries = [0.0; ITEM_TILES * MAX_HEAD.div_ceil(BLOCK) * TILE_BLOCK];
        self.kernels.run(Queries {
            attention: self,
            item,
            tiles: &mut queries,
        });
        let mut scores = [0.0; ITEM_TILES * TILE_BLOCK];
        let mut maxima = [f32::NEG_INFINITY; ITEM_ROWS];
        let mut totals = [0.0; ITEM_ROWS];
        out[..rows * self.pool.layout.value_stride()].fill(0.0);

        let end = first + tokens;
        for span in (0..end).step_by(SPAN) {
            // Rows of tokens before the span's first position see nothing of it.
            let seen = span.saturating_sub(first) * heads..rows;
            self.scores(item, pages, span, &queries, &mut scores);
            self.kernels.run(Softmax {
                scores: &mut scores,
                out,
                out_stride: self.pool.layout.value_stride(),
                maxima: &mut maxima,
                totals: &mut totals,
                rows: seen,
                heads,
                first,
                span,
            });
            self.values(item, pages, span, &scores, out);
        }
        let outputs = out.chunks_exact_mut(self.pool.layout.value_stride());
        for (out, total) in outputs.zip(totals).take(rows) {
            let share = 1.0 / total;
            out.iter_mut().for_each(|out| *out *= share);
        }
    }

    /// Computes `scores[row][position - span] = queries · keys` for positions of the span up to the row's strip.
    fn scores(
        &self,
        item: &Item,
        pages: &[PageId],
        span: usize,
        queries: &[f32],
        scores: &mut [f32],
    ) {
        let (first, tokens, heads) = (
            item.position as usize,
            item.tokens as usize,
            self.item_heads,
        );
        let (head_dim, page_tokens) = (self.queries.head_dim, self.pool.layout.page_tokens);
        let blocks = head_dim.div_ceil(BLOCK);
        for position in (span..(span + SPAN).min(first + tokens)).step_by(LANES) {
            let rows = position.saturating_sub(first) * heads..tokens * heads;
            let (page, slot) = (pages[position / page_tokens], position % page_tokens);
            let keys = self.pool.keys(page, item.head as usize / self.group, slot);
            for (block, keys) in keys.chunks(BLOCK * LANES).enumerate() {
                self.kernels.multiply(Product {
                    a: &queries[block * TILE_BLOCK..],
                    a_tile: blocks * TILE_BLOCK,
                    rows: rows.clone(),
                    k: keys.len() / LANES,
                    b: keys,
                    b_stride: LANES,
                    c: &mut scores[rows.start * STRIDE + position - span..],
                    c_stride: STRIDE,
                    columns: LANES,
                    start: if block == 0 { Start::Zero } else { Start::Sum },
                });
            }
        }
    }

    /// Adds `out[row] += scores[row][position - span] · values` for positions of the span up to the row's own.
    fn values(&self, item: &Item, pages: &[PageId], span: usize, scores: &[f32], out: &mut [f32]) {
        let (first, tokens, heads) = (
            item.position as usize,
            item.tokens as usize,
            self.item_heads,
        );
        let page_tokens = self.pool.layout.page_tokens;
        let stride = self.pool.layout.value_stride();
        let span_end = (span + SPAN).min(first + tokens);
        let mut position = span;
        while position < span_end {
            let slot = position % page_tokens;
            let end = span_end.min(position - slot + page_tokens);
            let page = pages[position / page_tokens];
            let values = self
                .pool
                .values(page, item.head as usize / self.group, slot);
            let mut add = |rows: std::ops::Range<usize>, terms: usize| {
                let mut column = 0;
                while column < stride {
                    let columns = if stride - column >= PANEL {
                        PANEL
                    } else {
                        LANES
                    };
                    self.kernels.multiply(Product {
                        a: &scores[position - span..],
                        a_tile: TILE_BLOCK,
                        rows: rows.clone(),
                        k: terms,
                        b: &values[column..],
                        b_stride: stride,
                        c: &mut out[rows.start * stride + column..],
                        c_stride: stride,
                        columns,
                        start: Start::Sum,
                    });
                    column += columns;
                }
            };
            // Tokens at `end - 1` or later use all of these positions; the few tokens before use those up to their own.
            let whole = (end - 1).saturating_sub(first).min(tokens);
            for token in position.saturating_sub(first)..whole {
                add(
                    token * heads..(token + 1) * heads,
                    first + token + 1 - position,
                );
            }
            if whole < tokens {
                add(whole * heads..tokens * heads, end - position);
            }
            position = end;
        }
    }
}

/// Rotates and scales an item's queries and stores them as left operands.
struct Queries<'a> {
    attention: &'a Attention<'a>,
    item: &'a Item,
    tiles: &'a mut [f32],
}

impl Loop for Queries<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Attention {
            queries,
            item_heads,
            ..
        } = *self.attention;
        let scale = 1.0 / (queries.head_dim as f32).sqrt();
        let tile_length = queries.head_dim.div_ceil(BLOCK) * TILE_BLOCK;
        let mut buffer = [0.0; MAX_HEAD];
        let buffer = &mut buffer[..queries.head_dim];
        for token in 0..self.item.tokens as usize {
            for head in 0..item_heads {
                queries.read::<FMA>(
                    self.item.row as usize + token,
                    self.item.head as usize + head,
                    buffer,
                );
                self.attention
                    .rotary
                    .rotate(self.item.position as usize + token, buffer);
                buffer.iter_mut().for_each(|value| *value *= scale);
                let row = token * item_heads + head;
                let tile = &mut self.tiles[row / TILE_ROWS * tile_length..][..tile_length];
                write_row(tile, row % TILE_ROWS, 0, buffer);
            }
        }
    }
}

/// One span of the online softmax: scores become weights relative to the new maximum, and outputs and totals are
/// corrected for it.
struct Softmax<'a> {
    /// Scores `[rows][STRIDE]`, replaced by weights.
    scores: &'a mut [f32],
    /// Outputs so far, `[rows][out_stride]`.
    out: &'a mut [f32],
    out_stride: usize,
    maxima: &'a mut [f32],
    totals: &'a mut [f32],
    rows: std::ops::Range<usize>,
    heads: usize,
    /// Position of row 0.
    first: usize,
    span: usize,
}

impl Loop for Softmax<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for row in self.rows {
            let seen = (self.first + row / self.heads + 1 - self.span).min(SPAN);
            let scores = &mut self.scores[row * STRIDE..][..seen.next_multiple_of(LANES)];
            scores[seen..].fill(f32::NEG_INFINITY);
            let (vectors, _) = scores.as_chunks_mut::<LANES>();

            let mut tops = [f32::NEG_INFINITY; LANES];
            for vector in &*vectors {
                for (top, score) in tops.iter_mut().zip(vector) {
                    *top = lanes::max(*top, *score);
                }
            }
            let maximum = lanes::max(self.maxima[row], lanes::tree(tops, lanes::max));
            for vector in &mut *vectors {
                for score in vector {
                    *score = lanes::exp::<FMA>(*score - maximum);
                }
            }
            vectors.as_flattened_mut()[seen..].fill(0.0);
            let mut sums = [0.0; LANES];
            for vector in &*vectors {
                for (sum, weight) in sums.iter_mut().zip(vector) {
                    *sum += weight;
                }
            }

            // In the first span totals and outputs are zero, so the correction has no effect.
            let correction = lanes::exp::<FMA>(self.maxima[row] - maximum);
            self.maxima[row] = maximum;
            self.totals[row] = lanes::fma::<FMA>(
                self.totals[row],
                correction,
                lanes::tree(sums, |a, b| a + b),
            );
            if correction != 1.0 {
                for out in &mut self.out[row * self.out_stride..][..self.out_stride] {
                    *out *= correction;
                }
            }
        }
    }
}
