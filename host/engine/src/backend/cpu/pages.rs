//! The pool of KV pages: the layout of keys and values in memory.
//!
//! The pool is split by layer first, so that one layer's pages can be loaded while another layer computes. A page has a
//! piece in each layer:
//!
//! ```text
//! pool: [layer] [page][kv_head] { keys   [page_tokens / 16][head_dim][16 tokens]   a strip per 16 tokens
//!                                 values [page_tokens][head_dim, padded to 16] }   a strip per 16 columns
//!
//! host page: [layer][kv_head] { the same }, little-endian, one piece to move to a disk and back
//! ```
//!
//! Both halves are f32 and serve as right operands without conversion: scores are `queries · keys`, and outputs are
//! `weights · values`.

use super::aligned::Aligned;
use super::host::HostPool;
use super::kernels::LANES;
use crate::backend::{Load, PageId};
use crate::models::ModelConfig;
use std::ops::Range;

/// Dimensions of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Tokens in a page, a multiple of 16.
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

    /// Returns the floats from one token's values to the next token's.
    pub(super) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Returns the floats of one head's keys and values in one layer.
    fn head_floats(&self) -> usize {
        self.page_tokens * (self.head_dim + self.value_stride())
    }

    /// Returns the floats of one layer's piece of a page.
    fn piece_floats(&self) -> usize {
        self.kv_heads * self.head_floats()
    }

    /// Returns the bytes of one layer's piece of a host page.
    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_floats() * size_of::<f32>()
    }

    /// Returns the bytes of a page with all its pieces, which are those of a host page.
    pub(super) fn page_bytes(&self) -> usize {
        self.layers * self.piece_bytes()
    }

    fn head_range(&self, head: usize) -> Range<usize> {
        let start = head * self.head_floats();
        start..start + self.head_floats()
    }

    /// Writes a token's key and value, each `[head_dim]`, to slot `slot` of `piece`, one layer's piece of a page.
    pub(super) fn store(
        &self,
        piece: &mut [f32],
        head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let place = &mut piece[self.head_range(head)];
        let (keys, values) = place.split_at_mut(self.page_tokens * self.head_dim);
        let strip = &mut keys[slot / LANES * self.head_dim * LANES..][..self.head_dim * LANES];
        for (to, key) in strip.iter_mut().skip(slot % LANES).step_by(LANES).zip(key) {
            *to = *key;
        }
        values[slot * self.value_stride()..][..self.head_dim].copy_from_slice(value);
    }
}

/// The pool of all pages, split by layer.
pub(super) struct Pool {
    pub(super) layout: Layout,
    layers: Vec<LayerPool>,
}

/// One layer's pieces of all pages.
pub(super) struct LayerPool {
    pub(super) layout: Layout,
    layer: usize,
    data: Aligned<f32>,
}

impl Pool {
    pub(super) fn new(layout: Layout, pages: u32) -> Self {
        let layer = |layer| LayerPool {
            layout,
            layer,
            data: Aligned::new(layout.piece_floats() * pages as usize),
        };
        Self {
            layout,
            layers: (0..layout.layers).map(layer).collect(),
        }
    }

    /// Returns every layer's pool, in order.
    pub(super) fn layers_mut(&mut self) -> &mut [LayerPool] {
        &mut self.layers
    }

    /// Writes a page's bytes to `to`, in the format of a host page.
    pub(super) fn store(&self, from: PageId, to: &mut [u8]) {
        let pieces = to.chunks_exact_mut(self.layout.piece_bytes());
        for (layer, piece) in self.layers.iter().zip(pieces) {
            let floats = layer.piece(from);
            for (to, from) in piece.as_chunks_mut().0.iter_mut().zip(floats) {
                *to = from.to_le_bytes();
            }
        }
    }

    /// Copies the first `tokens` slots of page `from` to page `to`. The pages must exist and differ.
    pub(super) fn copy_slots(&mut self, from: PageId, to: PageId, tokens: usize) {
        for layer in &mut self.layers {
            layer.copy_slots(from, to, tokens);
        }
    }
}

impl LayerPool {
    /// Returns the keys `[head_dim][16]` of the 16 tokens from slot `slot` on, a multiple of 16.
    pub(super) fn keys(&self, page: PageId, head: usize, slot: usize) -> &[f32] {
        let strip = self.layout.head_dim * LANES;
        &self.piece(page)[self.layout.head_range(head)][slot / LANES * strip..][..strip]
    }

    /// Returns the values `[slots][value_stride]` from slot `slot` to the page's end.
    pub(super) fn values(&self, page: PageId, head: usize, slot: usize) -> &[f32] {
        let layout = &self.layout;
        let values = layout.page_tokens * layout.head_dim + slot * layout.value_stride();
        &self.piece(page)[layout.head_range(head)][values..]
    }

    fn piece(&self, page: PageId) -> &[f32] {
        let floats = self.layout.piece_floats();
        &self.data[page.0 as usize * floats..][..floats]
    }

    /// Overwrites this layer's pieces of pages with what [`Pool::store`] wrote. `loads` must ascend by page.
    pub(super) fn load(&mut self, loads: &[Load], host: &HostPool) {
        let piece = self.layer * self.layout.piece_bytes()..;
        self.write(
            loads,
            |load| load.to,
            |load, to| {
                let from = host.page(load.from)[piece.clone()].as_chunks().0;
                for (to, from) in to.iter_mut().zip(from) {
                    *to = f32::from_le_bytes(*from);
                }
            },
        );
    }

    /// Calls `write` in parallel for each of `writes`, with the piece of its page. The pages must ascend.
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
        let floats = self.layout.piece_floats();
        halve(&mut self.data, 0, floats, writes, &page, &write);
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: usize) {
        let layout = self.layout;
        let floats = layout.piece_floats();
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
        for head in 0..layout.kv_heads {
            let range = layout.head_range(head);
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
    use crate::backend::HostPageId;

    const LAYOUT: Layout = Layout {
        layers: 2,
        kv_heads: 3,
        head_dim: 6,
        page_tokens: 32,
    };

    /// Returns a number that encodes its own location.
    fn mark(page: usize, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        ((((page * 2 + layer) * 3 + head) * 32 + slot) * 6 + d + 1) as f32
    }

    fn filled() -> Pool {
        let mut pool = Pool::new(LAYOUT, 3);
        for (layer, pieces) in pool.layers_mut().iter_mut().enumerate() {
            pieces.write(
                &[0u32, 2],
                |page| PageId(*page),
                |page, piece| {
                    for (head, slot) in (0..3).flat_map(|h| (0..32).map(move |s| (h, s))) {
                        let key: Vec<f32> = (0..6)
                            .map(|d| mark(*page as usize, layer, head, slot, d))
                            .collect();
                        let value: Vec<f32> = key.iter().map(|v| -v).collect();
                        LAYOUT.store(piece, head, slot, &key, &value);
                    }
                },
            );
        }
        pool
    }

    fn key(pool: &Pool, page: u32, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        pool.layers[layer].keys(PageId(page), head, slot / 16 * 16)[d * 16 + slot % 16]
    }

    fn value(pool: &Pool, page: u32, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        pool.layers[layer].values(PageId(page), head, slot)[d]
    }

    #[test]
    fn keys_and_values_are_read_where_they_were_stored() {
        let pool = filled();
        for page in [0, 2] {
            for (layer, head, slot, d) in [(0, 0, 0, 0), (1, 2, 31, 5), (0, 1, 16, 3), (1, 0, 7, 4)]
            {
                let expected = mark(page as usize, layer, head, slot, d);
                assert_eq!(key(&pool, page, layer, head, slot, d), expected);
                assert_eq!(value(&pool, page, layer, head, slot, d), -expected);
            }
        }
        let mut untouched = pool.layers.iter().flat_map(|layer| layer.piece(PageId(1)));
        assert!(untouched.all(|v| *v == 0.0));
    }

    #[test]
    fn a_page_goes_to_the_host_pool_and_to_another_place_as_it_was() {
        let (mut pool, mut host) = (filled(), HostPool::new(LAYOUT.page_bytes(), 4));
        for (page, host_page) in [(0, 3), (2, 1)] {
            pool.store(PageId(page), host.page_mut(HostPageId(host_page)));
        }
        // The loads go to places that are known to hold something else.
        let loads = [(3, 1), (3, 2), (1, 0)].map(|(from, to)| Load {
            from: HostPageId(from),
            to: PageId(to),
        });
        let ascending = [loads[2], loads[0], loads[1]];
        for layer in pool.layers_mut() {
            layer.load(&ascending, &host);
        }
        for (page, source) in [(0, 2), (1, 0), (2, 0)] {
            for (layer, head, slot, d) in [(0, 0, 0, 0), (1, 2, 31, 5), (0, 1, 16, 3), (1, 0, 7, 4)]
            {
                let expected = mark(source, layer, head, slot, d);
                assert_eq!(key(&pool, page, layer, head, slot, d), expected);
                assert_eq!(value(&pool, page, layer, head, slot, d), -expected);
            }
        }
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
                    assert_eq!(value(&pool, to, layer, head, slot, d).abs(), expected);
                    assert_eq!(
                        key(&pool, from, layer, head, slot, d),
                        mark(from as usize, layer, head, slot, d)
                    );
                }
            }
        }
    }
}
