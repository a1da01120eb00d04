//! The children of a node of the knowledge tree, found by document.

use super::NodeId;
use crate::document::DocumentId;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// The children of a node of the knowledge tree (documents believed to be cached), by their documents: a list, or a map
/// if there are many. Most nodes have one or two; the root of a scope (the node for a prompt before documents) has
/// thousands.
#[derive(Debug)]
pub(super) enum Children {
    Few(SmallVec<[(DocumentId, NodeId); 2]>),
    Many(Box<FxHashMap<DocumentId, NodeId>>),
}

/// The maximum number of children that are stored as a list: up to this number, a scan is faster than hashing.
const FEW: usize = 12;

impl Default for Children {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Children {
    pub(super) fn get(&self, document: DocumentId) -> Option<NodeId> {
        match self {
            Self::Few(few) => (few.iter())
                .find(|(d, _)| *d == document)
                .map(|&(_, node)| node),
            Self::Many(many) => many.get(&document).copied(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DocumentId, NodeId)> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().copied();
        few.chain(
            many.into_iter()
                .flat_map(|many| many.iter().map(|(&document, &node)| (document, node))),
        )
    }

    pub(super) fn insert(&mut self, document: DocumentId, node: NodeId) {
        match self {
            Self::Few(few) if few.len() < FEW => few.push((document, node)),
            Self::Few(few) => {
                let mut many: FxHashMap<_, _> = few.drain(..).collect();
                many.insert(document, node);
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => {
                many.insert(document, node);
            }
        }
    }

    pub(super) fn remove(&mut self, document: DocumentId) {
        match self {
            Self::Few(few) => few.retain(|(d, _)| *d != document),
            Self::Many(many) => {
                many.remove(&document);
                // Below half of FEW, so that a node at the boundary is not rebuilt with every change.
                if many.len() <= FEW / 2 {
                    *self = Self::Few(
                        many.iter()
                            .map(|(&document, &node)| (document, node))
                            .collect(),
                    );
                }
            }
        }
    }
}
