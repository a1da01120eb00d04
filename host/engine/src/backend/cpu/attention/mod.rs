//! Causal attention over pages.
//!
//! An item is a few tokens of one segment with the query heads that share a key and value head, so that each key and
//! value that is read serves all of them. The item walks the sequence in *spans* of positions counted from position 0,
//! and keeps for each query a running maximum, total and output (online softmax: Milakov and Gimelshein, arXiv
//! 1805.02867, section 3; FlashAttention, arXiv 2205.14135, section 3.1):
//!
//! ```text
//!   span      scores = queries · keys
//!             maximum, exponentials, total              a row's own positions only; the rest of the span is zero
//!             output += scores · values                 each row up to its own position
//! ```
//!
//! Spans are cut by position, never by chunk, item or page, and a query computes only with positions up to its own. The
//! content of slots after the item and the number of rows in it therefore cannot reach a row's result. That keeps
//! attention batch-invariant, and lets slots beyond a sequence hold anything, NaN included.
//!
//! In a layer with a sliding window an item begins with the span that holds the first position of its first query's
//! window, and a query skips the spans before its own window. Keys before a window stay in their pages, where another
//! layer or a later request needs them.
//!
//! There are two ways through a span: [`wide`] in f32, and [`pairs`] with bf16 products.

mod pairs;
mod wide;

use super::batch::{Cut, Item};
use super::heads::{Heads, Rotary};
use super::kernels::Kernels;
use super::kernels::pairs::Machine;
use super::pages::{KvType, LayerPool};
use crate::backend::Segment;
use rayon::prelude::*;

/// Returns the maximum number of rows (tokens times query heads) in an attention item, for keys and values of type
/// `kv_type`.
pub(super) fn item_rows(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F32 => wide::ITEM_ROWS,
        KvType::Bf16 | KvType::Bf16x2 => pairs::ITEM_ROWS,
    }
}

/// The inputs of a layer's attention, the same for all of its items (units of work: some tokens with some query heads).
pub(super) struct Attention<'a> {
    pub(super) kernels: Kernels,
    /// The instructions that multiply pairs of bf16; `None` if keys and values are stored in f32.
    pub(super) machine: Option<Machine>,
    pub(super) queries: Heads<'a>,
    pub(super) rotary: &'a Rotary,
    /// Number by whose square root attention scores are divided.
    pub(super) scalar: f32,
    /// Number of positions that a query attends to, its own included; `None` for all.
    pub(super) window: Option<usize>,
    pub(super) pool: &'a LayerPool,
    pub(super) cut: Cut,
}

impl Attention<'_> {
    /// Computes attention for `items` (units of work: some tokens with some query heads) in parallel; `segments` are
    /// those of the step and have the pages. `out` is `[items, item_rows, padded_head]`: the output of row
    /// `token * item_heads + head` of item `i`, `[head_dim]`, begins at `out[(i * item_rows + row) * padded_head]`.
    pub(super) fn attend(&self, items: &[Item], segments: &[Segment], out: &mut [f32]) {
        let length = self.cut.item_rows * self.pool.layout.padded_head();
        let items = out.par_chunks_mut(length).zip(items);
        items.for_each(|(out, item)| {
            let pages = &segments[item.segment as usize].pages;
            match self.machine {
                None => wide::attend(self, item, pages, out),
                Some(machine) => pairs::attend(self, machine, item, pages, out),
            }
        });
    }

    /// Returns the first position that a query at `position` attends to: 0, or the start of its sliding window.
    fn lowest(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Returns how many of an attention item's tokens, counted from its first, have sliding windows that begin before
    /// position `end`; all of them in a layer without a window.
    fn in_window(&self, item: &Item, end: usize) -> usize {
        let tokens = item.tokens as usize;
        self.window.map_or(tokens, |window| {
            (end + window - 1)
                .saturating_sub(item.position as usize)
                .min(tokens)
        })
    }

    /// Returns the index of the key and value head that is shared by all query heads of an attention item (a unit of
    /// work: some tokens with some query heads).
    fn kv_head(&self, item: &Item) -> usize {
        item.head as usize / self.cut.group
    }

    /// Returns the number of rows of an attention item (a unit of work): its tokens times its query heads.
    fn rows(&self, item: &Item) -> usize {
        item.tokens as usize * self.cut.item_heads
    }

    /// Writes the query of row `row` of an attention item (one query head of one token) to `to`, `[head_dim]`, rotated
    /// and times `scale`.
    #[inline(always)]
    fn query<const FMA: bool>(&self, item: &Item, row: usize, scale: f32, to: &mut [f32]) {
        let (token, head) = (row / self.cut.item_heads, row % self.cut.item_heads);
        self.queries
            .read::<FMA>(item.row as usize + token, item.head as usize + head, to);
        self.rotary.rotate(item.position as usize + token, to);
        to.iter_mut().for_each(|value| *value *= scale);
    }
}
