//! The knowledge trees of one tenant and model, one for each engine.

use crate::engines::{EngineId, MAX_ENGINES};
use crate::tree::{Bounds, KnowledgeTree};

/// The knowledge trees of one tenant and model, one for each engine. A tree is created when it is first used.
#[derive(Debug)]
pub(crate) struct Trees {
    bounds: Bounds,
    first: KnowledgeTree,
    /// The trees of the second engine and of those after it.
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

    /// Returns the tree of an engine. An engine from [`MAX_ENGINES`] on shares the first one's tree, which loses reuse.
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

    /// Returns the first engine's tree.
    pub(crate) fn first(&self) -> &KnowledgeTree {
        &self.first
    }

    /// Counts the nodes of all trees.
    pub(crate) fn nodes(&self) -> usize {
        let others = self.others.iter().map(KnowledgeTree::len);
        self.first.len() + others.sum::<usize>()
    }
}
