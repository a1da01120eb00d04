//! The flat index: every vector is compared.

use super::{Hit, Index, Search, Slot, SlotFilter, Top, Vectors};
use crate::file::Part;

/// An index that compares all vectors, a thirty-second of them in each stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat;

const STAGES: usize = 32;

struct Scan<'a> {
    vectors: &'a Vectors,
    query: &'a [f32],
    keep: &'a SlotFilter<'a>,
    top: Top,
    next: usize,
}

impl Index for Flat {
    fn search<'a>(
        &'a self,
        vectors: &'a Vectors,
        query: &'a [f32],
        k: usize,
        keep: &'a SlotFilter<'a>,
    ) -> Box<dyn Search + 'a> {
        Box::new(Scan {
            vectors,
            query,
            keep,
            top: Top::new(k),
            next: 0,
        })
    }

    fn add(&mut self, _: &Vectors, _: Slot) {}

    fn parts(&self, _vectors: &Vectors) -> Vec<(Part, Vec<u8>)> {
        Vec::new()
    }
}

impl Search for Scan<'_> {
    fn advance(&mut self) -> bool {
        let count = self.vectors.len();
        if self.next >= count {
            return false;
        }
        let end = (self.next + count.div_ceil(STAGES)).min(count);
        for slot in (self.next..end).map(|slot| Slot(slot as u32)) {
            let score = self.vectors.score(self.query, slot);
            if self.top.admits(slot, score) && (self.keep)(slot) {
                self.top.offer(slot, score);
            }
        }
        self.next = end;
        true
    }

    fn top(&self) -> &[Hit] {
        self.top.hits()
    }
}
