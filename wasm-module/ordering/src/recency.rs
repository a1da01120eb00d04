//! A list of the numbered slots of an arena, ordered by last use. The arena decides which slots exist and which values
//! are in them.
//!
//! If a caller touches the nodes of a tree's path from the leaf up, parents stay more recent than their children, so
//! the oldest slot is always a leaf.

/// Numbered slots of an arena as a list ordered by last use. Every operation except iteration is O(1).
#[derive(Debug, Default)]
pub struct Recency {
    /// The neighbours of each slot in the list; a slot that is not in the list has none.
    links: Vec<Links>,
    newest: Option<u32>,
    oldest: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Links {
    newer: Option<u32>,
    older: Option<u32>,
}

impl Recency {
    /// Bytes of memory that the list takes for each slot; up to twice that while it grows.
    pub const SLOT_BYTES: usize = size_of::<Links>();

    /// Returns the number of the slot that was used least recently; `None` if the list is empty.
    pub fn oldest(&self) -> Option<u32> {
        self.oldest
    }

    /// Returns the number of the slot that was used last; `None` if the list is empty.
    pub fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// Adds `slot`, which must not be in the list, as the one used last.
    pub fn add(&mut self, slot: u32) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Links::default());
        }
        let before = self.newest.replace(slot);
        if let Some(links) = self.links_mut(slot) {
            links.older = before;
            links.newer = None;
        }
        match before.and_then(|before| self.links_mut(before)) {
            Some(before) => before.newer = Some(slot),
            None => self.oldest = Some(slot),
        }
    }

    /// Marks `slot`, which must be in the list, as the one used last.
    pub fn touch(&mut self, slot: u32) {
        self.remove(slot);
        self.add(slot);
    }

    /// Removes `slot`, which must be in the list, from it.
    pub fn remove(&mut self, slot: u32) {
        let Some(links) = self.links_mut(slot) else {
            return;
        };
        let Links { newer, older } = std::mem::take(links);
        match newer.and_then(|newer| self.links_mut(newer)) {
            Some(links) => links.older = older,
            None => self.newest = older,
        }
        match older.and_then(|older| self.links_mut(older)) {
            Some(links) => links.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Iterates over the numbers of the slots in the list, least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest, |&slot| {
            self.links.get(slot as usize).and_then(|links| links.newer)
        })
    }

    /// Iterates over the numbers of the slots in the list, most recently used first.
    pub fn iter_newest(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.newest, |&slot| {
            self.links.get(slot as usize).and_then(|links| links.older)
        })
    }

    fn links_mut(&mut self, slot: u32) -> Option<&mut Links> {
        self.links.get_mut(slot as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stand_in_the_order_of_their_last_use() {
        let mut recency = Recency::default();
        for slot in [4, 0, 2] {
            recency.add(slot);
        }
        recency.touch(4);
        recency.touch(4);
        assert_eq!(recency.iter().collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(recency.iter_newest().collect::<Vec<_>>(), [4, 2, 0]);
        recency.remove(2);
        assert_eq!(recency.iter().collect::<Vec<_>>(), [0, 4]);
        recency.remove(0);
        recency.remove(4);
        assert_eq!((recency.oldest(), recency.iter().count()), (None, 0));
        recency.add(2);
        assert_eq!(recency.oldest(), Some(2));
    }
}
