//! The pool of KV pages: where the keys and values of a token stand.
//!
//! A page holds all layers of [`Layout::page_tokens`] tokens, so that a page is one contiguous piece to copy or move:
//!
//! ```text
//! page: [layer][kv_head] { keys   [page_tokens / 16][head_dim][16 tokens]   a strip of the microkernel per 16 tokens
//!                          values [page_tokens][head_dim, padded to 16]     a strip of the microkernel per 16 columns }
//! ```
//!
//! Both halves are right operands as they stand: scores are `queries · keys`, outputs are `weights · values`. f32.

use super::aligned::Aligned;
use super::kernels::LANES;
use crate::backend::PageId;
use crate::models::ModelConfig;
use std::ops::Range;

/// Sizes of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    /// A multiple of 16.
    pub(super) page_tokens: usize,
}

impl Layout {
    pub(super) fn new(model: &ModelConfig, page_tokens: u32) -> Self {
        Self {
            layers: model.layers,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            page_tokens: page_tokens as usize,
        }
    }

    /// Floats from one token's values to the next's.
    pub(super) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Floats of keys and values of a layer's head.
    fn head_floats(&self) -> usize {
        self.page_tokens * (self.head_dim + self.value_stride())
    }

    pub(super) fn page_floats(&self) -> usize {
        self.layers * self.kv_heads * self.head_floats()
    }

    /// Bytes of a page in the host pool.
    pub(super) fn page_bytes(&self) -> usize {
        self.page_floats() * size_of::<f32>()
    }

    fn head_range(&self, layer: usize, head: usize) -> Range<usize> {
        let start = (layer * self.kv_heads + head) * self.head_floats();
        start..start + self.head_floats()
    }

    /// Writes a token's key and value, each `[head_dim]`, to slot `slot` of `page`.
    pub(super) fn store(
        &self,
        page: &mut [f32],
        layer: usize,
        head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let place = &mut page[self.head_range(layer, head)];
        let (keys, values) = place.split_at_mut(self.page_tokens * self.head_dim);
        let strip = &mut keys[slot / LANES * self.head_dim * LANES..][..self.head_dim * LANES];
        for (to, key) in strip.iter_mut().skip(slot % LANES).step_by(LANES).zip(key) {
            *to = *key;
        }
        values[slot * self.value_stride()..][..self.head_dim].copy_from_slice(value);
    }
}

/// All pages.
pub(super) struct Pool {
    pub(super) layout: Layout,
    data: Aligned<f32>,
}

impl Pool {
    pub(super) fn new(layout: Layout, pages: u32) -> Self {
        Self {
            layout,
            data: Aligned::new(layout.page_floats() * pages as usize),
        }
    }

    /// The keys of 16 tokens from slot `slot` (a multiple of 16) on: `[head_dim][16]`.
    pub(super) fn keys(&self, page: PageId, layer: usize, head: usize, slot: usize) -> &[f32] {
        let layout = &self.layout;
        let strip = layout.head_dim * LANES;
        &self.page(page)[layout.head_range(layer, head)][slot / LANES * strip..][..strip]
    }

    /// The values from slot `slot` to the page's end: `[slots][value_stride]`.
    pub(super) fn values(&self, page: PageId, layer: usize, head: usize, slot: usize) -> &[f32] {
        let layout = &self.layout;
        let values = layout.page_tokens * layout.head_dim + slot * layout.value_stride();
        &self.page(page)[layout.head_range(layer, head)][values..]
    }

    fn page(&self, page: PageId) -> &[f32] {
        let floats = self.layout.page_floats();
        &self.data[page.0 as usize * floats..][..floats]
    }

    /// Calls `write` in parallel with each of `pages`, which ascend, and its memory.
    pub(super) fn write<T: Sync>(
        &mut self,
        writes: &[T],
        page: impl Fn(&T) -> PageId + Sync,
        write: impl Fn(&T, &mut [f32]) + Sync,
    ) {
        fn halve<T: Sync>(
            memory: &mut [f32],
            first: usize,
            floats: usize,
            writes: &[T],
            page: &(impl Fn(&T) -> PageId + Sync),
            write: &(impl Fn(&T, &mut [f32]) + Sync),
        ) {
            match writes {
                [] => {}
                [one] => write(
                    one,
                    &mut memory[(page(one).0 as usize - first) * floats..][..floats],
                ),
                _ => {
                    let (left, right) = writes.split_at(writes.len() / 2);
                    let middle = page(&right[0]).0 as usize;
                    let (low, high) = memory.split_at_mut((middle - first) * floats);
                    rayon::join(
                        || halve(low, first, floats, left, page, write),
                        || halve(high, middle, floats, right, page, write),
                    );
                }
            }
        }
        let floats = self.layout.page_floats();
        halve(&mut self.data, 0, floats, writes, &page, &write);
    }

    /// Overwrites a page with what [`Pool::store`] wrote.
    pub(super) fn load(&mut self, from: &[u8], to: PageId) {
        let floats = self.layout.page_floats();
        let page = &mut self.data[to.0 as usize * floats..][..floats];
        for (to, from) in page.iter_mut().zip(from.as_chunks().0) {
            *to = f32::from_le_bytes(*from);
        }
    }

    /// Writes a page as it stands, in little-endian bytes.
    pub(super) fn store(&self, from: PageId, to: &mut [u8]) {
        for (to, from) in to.as_chunks_mut().0.iter_mut().zip(self.page(from)) {
            *to = from.to_le_bytes();
        }
    }

    /// Copies the first `tokens` slots of page `from` to page `to`; the pages differ and exist.
    pub(super) fn copy_slots(&mut self, from: PageId, to: PageId, tokens: usize) {
        let layout = self.layout;
        let floats = layout.page_floats();
        let (from, to) = (from.0 as usize * floats, to.0 as usize * floats);
        let (source, target) = if from < to {
            let (low, high) = self.data.split_at_mut(to);
            (&low[from..from + floats], &mut high[..floats])
        } else {
            let (low, high) = self.data.split_at_mut(from);
            (&high[..floats], &mut low[to..to + floats])
        };
        let strip = layout.head_dim * LANES;
        let whole = tokens / LANES * strip;
        for head in 0..layout.layers * layout.kv_heads {
            let range = layout.head_range(0, head);
            let (source, target) = (&source[range.clone()], &mut target[range]);
            target[..whole].copy_from_slice(&source[..whole]);
            if !tokens.is_multiple_of(LANES) {
                let rows = target[whole..whole + strip].chunks_exact_mut(LANES);
                for (to, from) in rows.zip(source[whole..whole + strip].chunks_exact(LANES)) {
                    to[..tokens % LANES].copy_from_slice(&from[..tokens % LANES]);
                }
            }
            let values = layout.page_tokens * layout.head_dim;
            let length = tokens * layout.value_stride();
            target[values..values + length].copy_from_slice(&source[values..values + length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        layers: 2,
        kv_heads: 3,
        head_dim: 6,
        page_tokens: 32,
    };

    /// A number that says where it belongs.
    fn mark(page: usize, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        ((((page * 2 + layer) * 3 + head) * 32 + slot) * 6 + d + 1) as f32
    }

    fn filled() -> Pool {
        let mut pool = Pool::new(LAYOUT, 3);
        pool.write(
            &[0u32, 2],
            |page| PageId(*page),
            |page, memory| {
                for (layer, head, slot) in
                    (0..2).flat_map(|l| (0..3).flat_map(move |h| (0..32).map(move |s| (l, h, s))))
                {
                    let key: Vec<f32> = (0..6)
                        .map(|d| mark(*page as usize, layer, head, slot, d))
                        .collect();
                    let value: Vec<f32> = key.iter().map(|v| -v).collect();
                    LAYOUT.store(memory, layer, head, slot, &key, &value);
                }
            },
        );
        pool
    }

    fn key(pool: &Pool, page: u32, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        pool.keys(PageId(page), layer, head, slot / 16 * 16)[d * 16 + slot % 16]
    }

    #[test]
    fn keys_and_values_are_read_where_they_were_stored() {
        let pool = filled();
        for page in [0, 2] {
            for (layer, head, slot, d) in [(0, 0, 0, 0), (1, 2, 31, 5), (0, 1, 16, 3), (1, 0, 7, 4)]
            {
                let expected = mark(page as usize, layer, head, slot, d);
                assert_eq!(key(&pool, page, layer, head, slot, d), expected);
                assert_eq!(pool.values(PageId(page), layer, head, slot)[d], -expected);
            }
        }
        assert!(pool.page(PageId(1)).iter().all(|v| *v == 0.0));
    }

    #[test]
    fn copying_slots_moves_those_and_no_others() {
        for tokens in [0usize, 1, 15, 16, 17, 31, 32] {
            for (from, to) in [(0, 1), (2, 1)] {
                let mut pool = filled();
                pool.copy_slots(PageId(from), PageId(to), tokens);
                for (layer, head, slot, d) in (0..2).flat_map(|l| {
                    (0..3).flat_map(move |h| {
                        (0..32).flat_map(move |s| (0..6).map(move |d| (l, h, s, d)))
                    })
                }) {
                    let expected = if slot < tokens {
                        mark(from as usize, layer, head, slot, d)
                    } else {
                        0.0
                    };
                    assert_eq!(key(&pool, to, layer, head, slot, d), expected);
                    assert_eq!(
                        pool.values(PageId(to), layer, head, slot)[d].abs(),
                        expected
                    );
                    assert_eq!(
                        key(&pool, from, layer, head, slot, d),
                        mark(from as usize, layer, head, slot, d)
                    );
                }
            }
        }
    }
}
