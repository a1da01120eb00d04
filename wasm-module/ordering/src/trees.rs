//! The knowledge trees of one tenant and model, one for each engine.

use crate::engines::{EngineId, MAX_ENGINES};
use crate::tree::{Bounds, KnowledgeTree};

/// The knowledge trees (documents believed to be cached) of one tenant and model, one for each engine. Trees after the
/// first engine's are created when needed.
#[derive(Debug)]
pub(crate) struct Trees {
    bounds: Bounds,
    first: KnowledgeTree,
    /// The trees of all engines but the first one, by id less 1.
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

    /// Returns the knowledge tree (documents believed to be cached) of an engine, creating it if necessary. Engines
    /// with ids from [`MAX_ENGINES`] on share the first engine's tree, which loses reuse.
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

    /// Returns the tree of the first engine, which always exists.
    pub(crate) fn first(&self) -> &KnowledgeTree {
        &self.first
    }

    /// Returns the number of nodes in all trees of this tenant and model.
    pub(crate) fn nodes(&self) -> usize {
        let others = self.others.iter().map(KnowledgeTree::len);
        self.first.len() + others.sum::<usize>()
    }
}
