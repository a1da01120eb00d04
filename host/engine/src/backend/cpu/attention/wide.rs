//! Attention with f32 products.
//!
//! A span is 128 positions, one block of the microkernel's left operand:
//!
//! ```text
//!   scores  [rows][128] = queries · keys              16 tokens per strip of keys, only strips that a row sees
//!   output  [rows][head_dim] += scores · values       each row up to its own position
//! ```

use super::Attention;
use crate::backend::PageId;
use crate::backend::cpu::batch::Item;
use crate::backend::cpu::heads::MAX_HEAD;
use crate::backend::cpu::kernels::{
    BLOCK, LANES, Loop, PANEL, Product, STRIDE, Start, TILE_BLOCK, TILE_ROWS, lanes,
};
use crate::backend::cpu::left_operand::write_row;

/// Number of positions in a span: those whose scores are computed at once, before the softmax's running maximum is
/// corrected. It is one block of columns of the matrix kernel's left operand.
const SPAN: usize = BLOCK;
/// Maximum number of rows (tokens times query heads) in an attention item: two tiles of the matrix kernel, so that each
/// key and value that is read serves all of them.
pub(super) const ITEM_ROWS: usize = 2 * TILE_ROWS;

/// Computes attention for `item`, some tokens with some query heads of a sequence that has the page table `pages`, and
/// writes its rows to `out`; see [`Attention::attend`].
pub(super) fn attend(attention: &Attention<'_>, item: &Item, pages: &[PageId], out: &mut [f32]) {
    let (first, tokens, heads) = (
        item.position as usize,
        item.tokens as usize,
        attention.cut.item_heads,
    );
    let (rows, stride) = (attention.rows(item), attention.pool.layout.width());
    let mut queries = [0.0; 2 * MAX_HEAD.div_ceil(BLOCK) * TILE_BLOCK];
    attention.kernels.run(Queries {
        attention,
        item,
        tiles: &mut queries,
    });
    let mut scores = [0.0; 2 * TILE_BLOCK];
    let mut maxima = [f32::NEG_INFINITY; ITEM_ROWS];
    let mut totals = [0.0; ITEM_ROWS];
    out[..rows * stride].fill(0.0);

    let end = first + tokens;
    let begin = attention.lowest(first) / SPAN * SPAN;
    for span in (begin..end).step_by(SPAN) {
        // Rows of tokens before the span's first position see nothing of it, nor do those whose windows begin after it.
        let in_window = attention.in_window(item, span + SPAN);
        let seen = span.saturating_sub(first) * heads..in_window * heads;
        score(
            attention,
            item,
            pages,
            span,
            in_window,
            &queries,
            &mut scores,
        );
        attention.kernels.run(Softmax {
            attention,
            scores: &mut scores,
            out,
            out_stride: stride,
            maxima: &mut maxima,
            totals: &mut totals,
            rows: seen,
            heads,
            first,
            span,
        });
        add_values(attention, item, pages, span, in_window, &scores, out);
    }
    for (out, total) in out.chunks_exact_mut(stride).zip(totals).take(rows) {
        let share = 1.0 / total;
        out.iter_mut().for_each(|out| *out *= share);
    }
}

/// Computes `scores[row][position - span] = queries · keys` for the rows of the first `in_window` tokens of `item` and
/// the 128 positions from `span` on. A row is one query head of one token; for each row, only keys up to the 16 that
/// contain its own position are multiplied.
fn score(
    attention: &Attention<'_>,
    item: &Item,
    pages: &[PageId],
    span: usize,
    in_window: usize,
    queries: &[f32],
    scores: &mut [f32],
) {
    let (first, tokens, heads) = (
        item.position as usize,
        item.tokens as usize,
        attention.cut.item_heads,
    );
    let (head_dim, page_tokens) = (
        attention.queries.head_dim,
        attention.pool.layout.page_tokens,
    );
    let blocks = head_dim.div_ceil(BLOCK);
    for position in (span..(span + SPAN).min(first + tokens)).step_by(LANES) {
        let rows = position.saturating_sub(first) * heads..in_window * heads;
        let (page, slot) = (pages[position / page_tokens], position % page_tokens);
        let keys: &[f32] = attention.pool.strip(page, attention.kv_head(item), slot);
        for (block, keys) in keys.chunks(BLOCK * LANES).enumerate() {
            attention.kernels.multiply(Product {
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

/// Adds `scores[row][position - span] · values` to `out[row]`, for the rows of the first `in_window` tokens of `item`
/// and the 128 positions from `span` on. A row is one query head of one token; each row takes positions up to its own.
/// `scores` already hold softmax weights.
fn add_values(
    attention: &Attention<'_>,
    item: &Item,
    pages: &[PageId],
    span: usize,
    in_window: usize,
    scores: &[f32],
    out: &mut [f32],
) {
    let (first, tokens, heads) = (
        item.position as usize,
        item.tokens as usize,
        attention.cut.item_heads,
    );
    let page_tokens = attention.pool.layout.page_tokens;
    let stride = attention.pool.layout.width();
    let span_end = (span + SPAN).min(first + tokens);
    let mut position = span;
    while position < span_end {
        let slot = position % page_tokens;
        let end = span_end.min(position - slot + page_tokens);
        let page = pages[position / page_tokens];
        let values: &[f32] = attention.pool.rows(page, attention.kv_head(item), slot);
        let mut add = |rows: std::ops::Range<usize>, terms: usize| {
            let mut column = 0;
            while column < stride {
                let columns = if stride - column >= PANEL {
                    PANEL
                } else {
                    LANES
                };
                attention.kernels.multiply(Product {
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
        let whole = (end - 1).saturating_sub(first).min(in_window);
        for token in position.saturating_sub(first)..whole {
            add(
                token * heads..(token + 1) * heads,
                first + token + 1 - position,
            );
        }
        if whole < in_window {
            add(whole * heads..in_window * heads, end - position);
        }
        position = end;
    }
}

/// Rotates and scales the queries of an attention item (some tokens with some query heads), and stores them as left
/// operands of the products with keys.
struct Queries<'a> {
    attention: &'a Attention<'a>,
    item: &'a Item,
    tiles: &'a mut [f32],
}

impl Loop for Queries<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let head_dim = self.attention.queries.head_dim;
        let scale = 1.0 / self.attention.scalar.sqrt();
        let tile_length = head_dim.div_ceil(BLOCK) * TILE_BLOCK;
        let mut query = [0.0; MAX_HEAD];
        let query = &mut query[..head_dim];
        for row in 0..self.attention.rows(self.item) {
            self.attention.query::<FMA>(self.item, row, scale, query);
            let tile = &mut self.tiles[row / TILE_ROWS * tile_length..][..tile_length];
            write_row(tile, row % TILE_ROWS, 0, query);
        }
    }
}

/// One span (128 positions) of the online softmax: turns the scores of a range of rows into weights, and corrects
/// outputs and totals for the new maximum.
struct Softmax<'a> {
    attention: &'a Attention<'a>,
    /// Attention scores of the rows for one span of 128 positions, `[rows][STRIDE]`; replaced by softmax weights.
    scores: &'a mut [f32],
    /// Sums of weighted values so far, `[rows][out_stride]`.
    out: &'a mut [f32],
    out_stride: usize,
    maxima: &'a mut [f32],
    totals: &'a mut [f32],
    rows: std::ops::Range<usize>,
    heads: usize,
    /// Position in its sequence of the token that row 0 belongs to.
    first: usize,
    span: usize,
}

impl Loop for Softmax<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for row in self.rows {
            let position = self.first + row / self.heads;
            let seen = (position + 1 - self.span).min(SPAN);
            let before = self.attention.lowest(position).saturating_sub(self.span);
            let scores = &mut self.scores[row * STRIDE..][..seen.next_multiple_of(LANES)];
            scores[..before].fill(f32::NEG_INFINITY);
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
            vectors.as_flattened_mut()[..before].fill(0.0);
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
