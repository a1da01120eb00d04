//! Stores keys as rows of equal length in blocks, so that growth copies nothing and memory is proportional to the
//! entries.

use super::distance::SEGMENT;

/// Number of rows in a block. A block is the unit of growth: 192 KiB for 768 dimensions.
const ROWS_PER_BLOCK: usize = 64;

/// Rows by slot. A slot beyond the allocated blocks reads as empty, an unwritten one below as zeros.
#[derive(Debug)]
pub(super) struct Rows {
    blocks: Vec<Box<[f32]>>,
    /// Number of components of a row, padding included; at least one segment.
    stride: usize,
}

impl Rows {
    /// Returns an empty store for rows of `dimensions` components.
    pub(super) fn new(dimensions: u32) -> Self {
        Self {
            blocks: Vec::new(),
            stride: stride(dimensions),
        }
    }

    /// Returns the number of components of a row, padding included.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the row in `slot`; empty if no block is allocated for it.
    pub(super) fn get(&self, slot: u32) -> &[f32] {
        let (block, from) = self.place(slot);
        self.blocks
            .get(block)
            .and_then(|block| block.get(from..from + self.stride))
            .unwrap_or_default()
    }

    /// Writes `row`, padded, to `slot`, allocating blocks up to it.
    pub(super) fn set(&mut self, slot: u32, row: &[f32]) {
        let (block, from) = self.place(slot);
        while self.blocks.len() <= block {
            self.blocks
                .push(vec![0.0; self.stride * ROWS_PER_BLOCK].into());
        }
        let place = self
            .blocks
            .get_mut(block)
            .and_then(|block| block.get_mut(from..from + self.stride));
        if let Some(place) = place
            && place.len() == row.len()
        {
            place.copy_from_slice(row);
        }
    }

    /// Iterates over the rows of all slots below `count`, in order.
    pub(super) fn iter(&self, count: usize) -> impl Iterator<Item = &[f32]> {
        self.blocks
            .iter()
            .flat_map(|block| block.chunks_exact(self.stride))
            .take(count)
    }

    /// Returns the most bytes used by `count` rows.
    pub(super) fn max_bytes(dimensions: u32, count: u32) -> u64 {
        let blocks = u64::from(count).div_ceil(ROWS_PER_BLOCK as u64);
        let rows = Self::row_bytes(dimensions) * ROWS_PER_BLOCK as u64;
        // The list of blocks grows by doubling.
        blocks * (rows + 2 * size_of::<Box<[f32]>>() as u64)
    }

    pub(super) fn row_bytes(dimensions: u32) -> u64 {
        stride(dimensions) as u64 * size_of::<f32>() as u64
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / ROWS_PER_BLOCK, slot % ROWS_PER_BLOCK * self.stride)
    }
}

/// Returns `dimensions` rounded up to whole segments.
fn stride(dimensions: u32) -> usize {
    (dimensions.max(1) as usize).next_multiple_of(SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_and_stay_where_they_are() {
        let mut rows = Rows::new(33);
        assert_eq!(rows.stride(), 128);
        let row = |value: f32| vec![value; 128];
        for slot in [0, 63, 64, 200] {
            rows.set(slot, &row(slot as f32));
        }
        for slot in [0, 63, 64, 200] {
            assert_eq!(rows.get(slot), row(slot as f32));
        }
        assert_eq!(rows.get(1), row(0.0));
        assert!(rows.get(256).is_empty());
        assert_eq!(rows.iter(65).count(), 65);
        assert_eq!(rows.iter(65).last(), Some(row(64.0).as_slice()));
        // An address and a length (16 bytes natively, 8 in Wasm), twice because of doubling.
        let block = 2 * 2 * size_of::<usize>() as u64;
        assert_eq!(Rows::max_bytes(33, 65), 2 * (64 * 128 * 4 + block));
    }
}
