//! The knowledge trees of one tenant and model, one for each engine.

use crate::engines::{EngineId, MAX_ENGINES};
use crate::tree::{Bounds, KnowledgeTree};

/// The knowledge trees of one tenant and model, one for each engine. Trees after the first are created when needed.
#[derive(Debug)]
pub(crate) struct Trees {
    bounds: Bounds,
    first: KnowledgeTree,
    /// The trees of all engines but the first, by id.
    others: Vec<KnowledgeTree>,
}

impl Trees {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            first: KnowledgeTree::new(bounds),
            others: Vec::new(),
        }
    }

    /// Returns the tree of an engine. Ids from [`MAX_ENGINES`] on share the first one's tree, which loses reuse.
    pub(crate) fn of(&mut self, engine: EngineId) -> &mut KnowledgeTree {
        let other = usize::from(engine.0).checked_sub(1);
        if let Some(at) = other.filter(|_| engine.0 < MAX_ENGINES)
            && self.others.len() <= at
        {
            let bounds = self.bounds;
            self.others
                .resize_with(at + 1, || KnowledgeTree::new(bounds));
        }
        match other.and_then(|at| self.others.get_mut(at)) {
            Some(tree) => tree,
            None => &mut self.first,
        }
    }

    /// Returns the tree of the first engine.
    pub(crate) fn first(&self) -> &KnowledgeTree {
        &self.first
    }

    /// Returns the number of nodes in all trees.
    pub(crate) fn nodes(&self) -> usize {
        let others = self.others.iter().map(KnowledgeTree::len);
        self.first.len() + others.sum::<usize>()
    }
}
