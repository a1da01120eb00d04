//! The pool of KV pages: the layout of keys and values in memory.
//!
//! The pool is split by layer first, so that one layer's pages can be loaded while another layer computes. A page has a
//! piece in each layer:
//!
//! ```text
//! pool: [layer] [page][kv_head] { strips [page_tokens / 16][depth][16 tokens]     rows [page_tokens][width] }
//!
//!   type      strips                                           rows
//!   F32       keys, depth head_dim                             values, width head_dim padded to 16
//!   Bf16      values, depth head_dim padded to 16              keys, width head_dim padded to 32
//!   Bf16x2    the same for high parts, then for low parts      the same for high parts, then for low parts
//!
//! host page: [layer][kv_head] { the same }, little-endian, one piece to move to a disk and back
//! ```
//!
//! Strips and rows serve as operands without conversion. In f32 they are right operands of `queries · keys` and
//! `weights · values`, in bf16 left operands of the transposed products, `keys · queries` and `values · weights` (see
//! [attention](super::attention)). A row's padding is zero, because products run over it.

use super::aligned::Aligned;
use super::host::HostPool;
use super::kernels::pairs::{self, Parts};
use super::kernels::{LANES, lanes};
use crate::backend::{Load, PageId};
use crate::models::ModelConfig;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// The unit of the memory of KV pages: the 32 bits of an f32 or of a pair of bf16.
type Word = u32;

/// The number type in which pages hold keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvType {
    F32,
    Bf16,
    /// Two bf16 whose sum is the number, to 16 significant bits.
    Bf16x2,
}

impl KvType {
    /// Returns the number type for attention that represents each number by `parts` bf16 numbers, or by f32 for `None`.
    pub(super) fn of(parts: Option<Parts>) -> Self {
        match parts {
            None => KvType::F32,
            Some(Parts::One) => KvType::Bf16,
            Some(Parts::Two) => KvType::Bf16x2,
        }
    }
}

/// Dimensions of a KV page, from which the layout of its keys and values follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Number of tokens whose keys and values fit a page, a multiple of 16.
    pub(super) page_tokens: usize,
    pub(super) kv_type: KvType,
}

impl Layout {
    pub(super) fn new(model: &ModelConfig, page_tokens: u32, kv_type: KvType) -> Self {
        Self {
            layers: model.layers,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            page_tokens: page_tokens as usize,
            kv_type,
        }
    }

    /// Returns the width of a head in elements, padded to a multiple of 16 (a vector).
    pub(super) fn padded_head(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Returns the number of elements that one token takes in a strip, which holds the keys (f32) or values (bf16) of
    /// 16 tokens transposed.
    pub(super) fn depth(&self) -> usize {
        match self.kv_type {
            KvType::F32 => self.head_dim,
            KvType::Bf16 => self.padded_head(),
            KvType::Bf16x2 => 2 * self.padded_head(),
        }
    }

    /// Returns the number of elements in a row, which holds the value (f32) or key (bf16) of one token for one head.
    pub(super) fn width(&self) -> usize {
        match self.kv_type {
            KvType::F32 => self.padded_head(),
            KvType::Bf16 => self.part_width(),
            KvType::Bf16x2 => 2 * self.part_width(),
        }
    }

    /// Returns the number of elements of a row that hold one of a number's bf16 parts: `head_dim` padded to a multiple
    /// of 32.
    pub(super) fn part_width(&self) -> usize {
        self.head_dim.next_multiple_of(pairs::DEPTH)
    }

    /// Returns the number of 32-bit words that `elements` numbers take.
    fn words(&self, elements: usize) -> usize {
        match self.kv_type {
            KvType::F32 => elements,
            KvType::Bf16 | KvType::Bf16x2 => elements / 2,
        }
    }

    /// Returns the number of 32-bit words of one head's keys and values, for one layer of a page.
    fn head_words(&self) -> usize {
        self.words(self.page_tokens * (self.depth() + self.width()))
    }

    /// Returns the number of 32-bit words of a page in one layer, for all heads.
    fn piece_words(&self) -> usize {
        self.kv_heads * self.head_words()
    }

    /// Returns the number of bytes of a page in one layer, for all heads.
    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_words() * size_of::<Word>()
    }

    /// Returns the number of bytes of a page in all layers; the same for a host page.
    pub(super) fn page_bytes(&self) -> usize {
        self.layers * self.piece_bytes()
    }

    fn head_range(&self, head: usize) -> Range<usize> {
        let start = head * self.head_words();
        start..start + self.head_words()
    }

    /// Returns the offset, in 32-bit words, of the rows in one head's part of a page: they follow the strips (see the
    /// [module](self)).
    fn rows_start(&self) -> usize {
        self.words(self.page_tokens * self.depth())
    }

    /// Writes the key and value of one token for head `head`, each `[head_dim]`, to `piece`, one layer's part of a
    /// page. `slot` is the token's index within the page.
    #[inline(always)]
    pub(super) fn store(
        &self,
        piece: &mut [Word],
        head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (strips, rows) = piece[self.head_range(head)].split_at_mut(self.rows_start());
        let strip = self.depth() * LANES;
        let strip = &mut strips[self.words(slot / LANES * strip)..][..self.words(strip)];
        let row = &mut rows[self.words(slot * self.width())..][..self.words(self.width())];
        let slot = slot % LANES;
        match self.kv_type {
            KvType::F32 => write::<f32>(strip, slot, key, row, value, |x| x),
            KvType::Bf16 => write::<bf16>(strip, slot, value, row, key, lanes::narrow),
            KvType::Bf16x2 => {
                let (high_strip, low_strip) = strip.split_at_mut(strip.len() / 2);
                let (high_row, low_row) = row.split_at_mut(row.len() / 2);
                write::<bf16>(high_strip, slot, value, high_row, key, lanes::narrow);
                let low = |x| lanes::split(x)[1];
                write::<bf16>(low_strip, slot, value, low_row, key, low);
            }
        }
    }

    /// Copies the keys and values of the first `tokens` tokens of a page, for one head in one layer.
    fn copy<E: Pod>(&self, from: &[Word], to: &mut [Word], tokens: usize) {
        let (strips, rows) = cast_slice::<_, E>(from).split_at(self.page_tokens * self.depth());
        let (to_strips, to_rows) =
            cast_slice_mut::<_, E>(to).split_at_mut(self.page_tokens * self.depth());
        let strip = self.depth() * LANES;
        let whole = tokens / LANES * strip;
        to_strips[..whole].copy_from_slice(&strips[..whole]);
        let rest = tokens % LANES;
        if rest > 0 {
            let columns = to_strips[whole..][..strip].chunks_exact_mut(LANES);
            for (to, from) in columns.zip(strips[whole..].chunks_exact(LANES)) {
                to[..rest].copy_from_slice(&from[..rest]);
            }
        }
        let length = tokens * self.width();
        to_rows[..length].copy_from_slice(&rows[..length]);
    }
}

/// Writes elements `in_strip` to column `slot` of a strip (16 tokens, transposed), and `in_row` to a row (one token).
/// Both are `[head_dim]`; the rest of the row is filled with zeroes.
#[inline(always)]
fn write<E: Pod>(
    strip: &mut [Word],
    slot: usize,
    in_strip: &[f32],
    row: &mut [Word],
    in_row: &[f32],
    narrow: impl Fn(f32) -> E,
) {
    let column = cast_slice_mut::<_, E>(strip).iter_mut();
    for (to, from) in column.skip(slot).step_by(LANES).zip(in_strip) {
        *to = narrow(*from);
    }
    let (row, padding) = cast_slice_mut::<_, E>(row).split_at_mut(in_row.len());
    for (to, from) in row.iter_mut().zip(in_row) {
        *to = narrow(*from);
    }
    padding.fill(E::zeroed());
}

/// The KV pages that the backend computes on, stored by layer.
pub(super) struct Pool {
    pub(super) layout: Layout,
    layers: Vec<LayerPool>,
}

/// One layer's part of every KV page: keys and values of all heads.
pub(super) struct LayerPool {
    pub(super) layout: Layout,
    layer: usize,
    data: Aligned<Word>,
}

impl Pool {
    /// Returns a pool of `pages` pages. All memory is written at once, in parallel, because a step that is the first to
    /// touch a page waits for the system to find and clear it.
    pub(super) fn new(layout: Layout, pages: u32) -> Self {
        let layer = |layer| LayerPool {
            layout,
            layer,
            data: Aligned::touched(layout.piece_words() * pages as usize),
        };
        Self {
            layout,
            layers: (0..layout.layers).into_par_iter().map(layer).collect(),
        }
    }

    /// Returns one element for each layer, in order: the layer's part of every page.
    pub(super) fn layers_mut(&mut self) -> &mut [LayerPool] {
        &mut self.layers
    }

    /// Writes the bytes of page `from`, over all layers, to `to`, in the format of a host page.
    pub(super) fn store(&self, from: PageId, to: &mut [u8]) {
        let pieces = to.chunks_exact_mut(self.layout.piece_bytes());
        for (layer, piece) in self.layers.iter().zip(pieces) {
            let words = layer.piece(from);
            for (to, from) in piece.as_chunks_mut().0.iter_mut().zip(words) {
                *to = from.to_le_bytes();
            }
        }
    }

    /// Copies the keys and values of the first `tokens` tokens of page `from` to page `to`, in all layers. The pages
    /// must exist and differ.
    pub(super) fn copy_slots(&mut self, from: PageId, to: PageId, tokens: usize) {
        for layer in &mut self.layers {
            layer.copy_slots(from, to, tokens);
        }
    }
}

impl LayerPool {
    /// Returns the strip `[depth][16]` of head `head`: keys (f32) or values (bf16) of 16 tokens, transposed. They are
    /// the tokens of the page from index `slot` on, which is a multiple of 16.
    pub(super) fn strip<E: Pod>(&self, page: PageId, head: usize, slot: usize) -> &[E] {
        let layout = &self.layout;
        let strip = layout.words(layout.depth() * LANES);
        cast_slice(&self.piece(page)[layout.head_range(head)][slot / LANES * strip..][..strip])
    }

    /// Returns the rows `[tokens][width]` of head `head`: values (f32) or keys (bf16), one token a row, from the token
    /// with index `slot` to the page's end.
    pub(super) fn rows<E: Pod>(&self, page: PageId, head: usize, slot: usize) -> &[E] {
        let layout = &self.layout;
        let start = layout.rows_start() + slot * layout.words(layout.width());
        cast_slice(&self.piece(page)[layout.head_range(head)][start..])
    }

    fn piece(&self, page: PageId) -> &[Word] {
        let words = self.layout.piece_words();
        &self.data[page.0 as usize * words..][..words]
    }

    /// Overwrites this layer's part of pages with bytes of host pages, as [`Pool::store`] wrote them. `loads` must
    /// ascend by the page that is overwritten.
    pub(super) fn load(&mut self, loads: &[Load], host: &HostPool) {
        let piece = self.layer * self.layout.piece_bytes()..;
        self.write(
            loads,
            |load| load.to,
            |load, to| {
                let from = host.page(load.from)[piece.clone()].as_chunks().0;
                for (to, from) in to.iter_mut().zip(from) {
                    *to = Word::from_le_bytes(*from);
                }
            },
        );
    }

    /// Calls `write` in parallel for each element of `writes`, with this layer's part of the page that `page` returns
    /// for the element. The pages must ascend.
    pub(super) fn write<T: Sync>(
        &mut self,
        writes: &[T],
        page: impl Fn(&T) -> PageId + Sync,
        write: impl Fn(&T, &mut [Word]) + Sync,
    ) {
        fn halve<T: Sync>(
            memory: &mut [Word],
            first: usize,
            words: usize,
            writes: &[T],
            page: &(impl Fn(&T) -> PageId + Sync),
            write: &(impl Fn(&T, &mut [Word]) + Sync),
        ) {
            match writes {
                [] => {}
                [one] => write(
                    one,
                    &mut memory[(page(one).0 as usize - first) * words..][..words],
                ),
                _ => {
                    let (left, right) = writes.split_at(writes.len() / 2);
                    let middle = page(&right[0]).0 as usize;
                    let (low, high) = memory.split_at_mut((middle - first) * words);
                    rayon::join(
                        || halve(low, first, words, left, page, write),
                        || halve(high, middle, words, right, page, write),
                    );
                }
            }
        }
        let words = self.layout.piece_words();
        halve(&mut self.data, 0, words, writes, &page, &write);
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: usize) {
        let layout = self.layout;
        let words = layout.piece_words();
        let (from, to) = (from.0 as usize * words, to.0 as usize * words);
        let (source, target) = if from < to {
            let (low, high) = self.data.split_at_mut(to);
            (&low[from..from + words], &mut high[..words])
        } else {
            let (low, high) = self.data.split_at_mut(from);
            (&high[..words], &mut low[to..to + words])
        };
        for head in 0..layout.kv_heads {
            let range = layout.head_range(head);
            let (source, target) = (&source[range.clone()], &mut target[range]);
            match layout.kv_type {
                KvType::F32 => layout.copy::<f32>(source, target, tokens),
                KvType::Bf16 | KvType::Bf16x2 => layout.copy::<bf16>(source, target, tokens),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::HostPageId;

    const SLOTS: usize = 32;

    /// Layouts of all types with a head that is padded.
    fn layouts() -> [Layout; 3] {
        [KvType::F32, KvType::Bf16, KvType::Bf16x2].map(|kv_type| Layout {
            layers: 2,
            kv_heads: 3,
            head_dim: 6,
            page_tokens: SLOTS,
            kv_type,
        })
    }

    /// Returns a number that encodes its own location and that the layout's type holds exactly, but no smaller type.
    fn mark(layout: Layout, page: usize, layer: usize, head: usize, slot: usize, d: usize) -> f32 {
        let number = ((((page * 2 + layer) * 3 + head) * SLOTS + slot) * 6 + d) as u32;
        let low = match layout.kv_type {
            KvType::F32 => 0x2a01,
            KvType::Bf16 => 0,
            KvType::Bf16x2 => 0x2a00,
        };
        f32::from_bits((number + 0x3f80) << 16 | low)
    }

    fn filled(layout: Layout) -> Pool {
        let mut pool = Pool::new(layout, 3);
        for (layer, pieces) in pool.layers_mut().iter_mut().enumerate() {
            pieces.write(
                &[0u32, 2],
                |page| PageId(*page),
                |page, piece| {
                    for (head, slot) in (0..3).flat_map(|h| (0..SLOTS).map(move |s| (h, s))) {
                        let key: Vec<f32> = (0..6)
                            .map(|d| mark(layout, *page as usize, layer, head, slot, d))
                            .collect();
                        let value: Vec<f32> = key.iter().map(|v| -v).collect();
                        layout.store(piece, head, slot, &key, &value);
                    }
                },
            );
        }
        pool
    }

    /// Returns element `d` of a token's key and value, as the layout's table says where they lie.
    fn read(pool: &Pool, page: u32, layer: usize, head: usize, slot: usize, d: usize) -> [f32; 2] {
        let (pool, page) = (&pool.layers[layer], PageId(page));
        let (strip, column) = (slot / 16 * 16, slot % 16);
        if pool.layout.kv_type == KvType::F32 {
            let key = pool.strip::<f32>(page, head, strip)[d * 16 + column];
            return [key, pool.rows::<f32>(page, head, slot)[d]];
        }
        let values = pool.strip::<bf16>(page, head, strip);
        let keys = pool.rows::<bf16>(page, head, slot);
        // A head of 6 elements is padded to 16 in strips and to 32 in rows.
        let part = |part: usize| [keys[part * 32 + d], values[(part * 16 + d) * 16 + column]];
        let parts = (0..pool.layout.depth() / 16).map(part);
        parts.fold([0.0; 2], |[key, value], part| {
            [key + part[0].to_f32(), value + part[1].to_f32()]
        })
    }

    const PLACES: [(usize, usize, usize, usize); 4] =
        [(0, 0, 0, 0), (1, 2, 31, 5), (0, 1, 16, 3), (1, 0, 7, 4)];

    #[test]
    fn keys_and_values_are_read_where_they_were_stored() {
        for layout in layouts() {
            let pool = filled(layout);
            for page in [0, 2] {
                for (layer, head, slot, d) in PLACES {
                    let expected = mark(layout, page as usize, layer, head, slot, d);
                    let got = read(&pool, page, layer, head, slot, d);
                    assert_eq!(got, [expected, -expected]);
                }
            }
            let mut untouched = pool.layers.iter().flat_map(|layer| layer.piece(PageId(1)));
            assert!(untouched.all(|v| *v == 0));
        }
    }

    #[test]
    fn a_page_goes_to_the_host_pool_and_to_another_place_as_it_was() {
        for layout in layouts() {
            let (mut pool, mut host) = (filled(layout), HostPool::new(layout.page_bytes(), 4));
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
                for (layer, head, slot, d) in PLACES {
                    let expected = mark(layout, source, layer, head, slot, d);
                    let got = read(&pool, page, layer, head, slot, d);
                    assert_eq!(got, [expected, -expected]);
                }
            }
        }
    }

    #[test]
    fn copying_slots_moves_those_and_no_others() {
        for layout in layouts() {
            for tokens in [0usize, 1, 15, 16, 17, 31, 32] {
                for (from, to) in [(0, 1), (2, 1)] {
                    let mut pool = filled(layout);
                    pool.copy_slots(PageId(from), PageId(to), tokens);
                    for (layer, head, slot, d) in (0..2).flat_map(|l| {
                        (0..3).flat_map(move |h| {
                            (0..SLOTS).flat_map(move |s| (0..6).map(move |d| (l, h, s, d)))
                        })
                    }) {
                        let source = mark(layout, from as usize, layer, head, slot, d);
                        let expected = if slot < tokens { source } else { 0.0 };
                        let got = read(&pool, to, layer, head, slot, d);
                        assert_eq!(got, [expected, -expected]);
                        let got = read(&pool, from, layer, head, slot, d);
                        assert_eq!(got, [source, -source]);
                    }
                }
            }
        }
    }
}
