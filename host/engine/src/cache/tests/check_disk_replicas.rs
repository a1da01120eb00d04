//! Checks of the invariants of the copies on disk.

use super::*;

impl PrefixCache {
    /// Asserts that the states of all pages agree with the sets of pages that are due or have a copy on disk.
    pub(in crate::cache) fn check_disk_replicas(&self) {
        let replicas = &self.disk_replicas;
        let standings = |wanted: fn(State) -> Option<Standing>| {
            let nodes = self.tree.nodes();
            let found = nodes.filter_map(|(id, node)| {
                let standing = wanted(node.at.disk_copy.0)?;
                assert_eq!(standing.node, id);
                assert!(
                    node.hash.is_some(),
                    "partial {id:?} cannot be found on disk"
                );
                Some(standing)
            });
            found.collect::<BTreeSet<_>>()
        };
        let due = standings(|state| match state {
            State::Due(standing) => Some(standing),
            _ => None,
        });
        let kept = standings(|state| match state {
            State::Kept(standing) => Some(standing),
            _ => None,
        });
        assert_eq!(replicas.due, due, "due replicas are misfiled");
        assert_eq!(replicas.kept, kept, "kept replicas are misfiled");
        assert!(replicas.kept() <= replicas.bounds.pages);
    }
}
