//! The trees of one tenant and model, one for each engine.

use crate::engines::{EngineId, MAX_ENGINES};
use crate::tree::{Bounds, KnowledgeTree};

/// See the module's text. A tree is made when it is first asked for.
#[derive(Debug)]
pub(crate) struct Trees {
    bounds: Bounds,
    first: KnowledgeTree,
    /// Of the engines from the second on.
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

    /// The tree of an engine. An engine above [`MAX_ENGINES`] has the first one's, which costs it reuse.
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

    /// The first engine's.
    pub(crate) fn first(&self) -> &KnowledgeTree {
        &self.first
    }

    /// Nodes in all of them.
    pub(crate) fn nodes(&self) -> usize {
        let others = self.others.iter().map(KnowledgeTree::len);
        self.first.len() + others.sum::<usize>()
    }
}
