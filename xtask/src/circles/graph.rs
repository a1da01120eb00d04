//! The graph of which files of a crate use which, and its circles.

use std::collections::{BTreeMap, BTreeSet};

use super::Module;
use super::source::Source;

/// For each file, the files that it uses, each with one of the names used.
pub(super) struct Graph<'s> {
    sources: &'s BTreeMap<Module, Source>,
    uses: BTreeMap<&'s [String], BTreeMap<&'s [String], String>>,
}

impl<'s> Graph<'s> {
    pub(super) fn of(sources: &'s BTreeMap<Module, Source>) -> Self {
        let mut graph = Self {
            sources,
            uses: BTreeMap::new(),
        };
        for (module, source) in sources {
            let mut uses = BTreeMap::new();
            let imported = source.uses.iter();
            // A re-export that the file itself does not name is resolved elsewhere, as is the name of a whole module.
            let imported = imported
                .filter(|one| !one.is_shared || source.words.contains(&one.name))
                .map(|one| &one.path)
                .filter(|path| !graph.is_module(module, path));
            for path in imported.chain(&source.paths) {
                let Some(used) = graph.resolve(module, path, 0) else {
                    continue;
                };
                if !module.starts_with(used) {
                    uses.entry(used).or_insert_with(|| path.join("::"));
                }
            }
            graph.uses.insert(module, uses);
        }
        graph
    }

    /// Returns the circles, each as the files that use each other.
    pub(super) fn circles(&self) -> Vec<Vec<&'s [String]>> {
        let reached: BTreeMap<_, _> = (self.uses.keys())
            .map(|module| (*module, self.reached(module)))
            .collect();
        let mut circles = BTreeSet::new();
        for (module, ways) in &reached {
            if ways.contains(module) {
                let back = ways.iter().filter(|other| reached[*other].contains(module));
                circles.insert(back.copied().collect::<Vec<_>>());
            }
        }
        circles.into_iter().collect()
    }

    /// Iterates over the uses between files of a circle.
    pub(super) fn edges_within<'g>(
        &'g self,
        circle: &'g [&'s [String]],
    ) -> impl Iterator<Item = (&'s [String], &'s [String], &'g str)> {
        circle.iter().flat_map(move |from| {
            let uses = self.uses[from].iter();
            let inside = uses.filter(|(to, _)| circle.contains(to));
            inside.map(move |(to, name)| (*from, *to, name.as_str()))
        })
    }

    fn reached(&self, from: &[String]) -> BTreeSet<&'s [String]> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&[String]> = self.uses[from].keys().copied().collect();
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(self.uses[module].keys());
            }
        }
        reached
    }

    /// Returns the module at the beginning of a path, and the rest of the path; `None` if it begins with no module.
    fn walk<'p>(
        &self,
        from: &[String],
        path: &'p [String],
    ) -> Option<(&'s [String], &'p [String])> {
        let mut base: &[String] = from;
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (&[], &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    (base, rest) = (base.split_last()?.1, &rest[1..]);
                }
            }
            part if self.child(from, part).is_none() => return None,
            _ => {}
        }
        let (mut base, _) = self.sources.get_key_value(base)?;
        while let Some(child) = rest.first().and_then(|part| self.child(base, part)) {
            (base, rest) = (child, &rest[1..]);
        }
        Some((base, rest))
    }

    fn child(&self, module: &[String], name: &str) -> Option<&'s Module> {
        let child = [module, &[name.to_owned()]].concat();
        self.sources.get_key_value(&child).map(|(child, _)| child)
    }

    fn is_module(&self, from: &[String], path: &[String]) -> bool {
        self.walk(from, path)
            .is_some_and(|(_, rest)| rest.is_empty())
    }

    /// Returns the file that defines the item at a path in a file.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<&'s [String]> {
        if depth > MAX_DEPTH {
            return None;
        }
        let Some((module, rest)) = self.walk(from, path) else {
            let (first, rest) = path.split_first()?;
            let mut imports = self.sources.get(from)?.uses.iter();
            let import =
                imports.find(|one| one.name == *first && one.path.first() != Some(first))?;
            return self.resolve(from, &[&import.path, rest].concat(), depth + 1);
        };
        let Some(name) = rest.first().filter(|name| *name != "*") else {
            return Some(module);
        };
        let source = &self.sources[module];
        if source.items.contains(name) {
            return Some(module);
        }
        for import in &source.uses {
            if import.name == *name {
                return self.resolve(module, &[&import.path, &rest[1..]].concat(), depth + 1);
            }
            if import.name == "*" && import.is_shared {
                let inside = &import.path[..import.path.len() - 1];
                let found = self.resolve(module, &[inside, rest].concat(), depth + 1);
                if found.is_some_and(|found| self.sources[found].items.contains(name)) {
                    return found;
                }
            }
        }
        Some(module)
    }
}

/// Most re-exports followed for one path.
const MAX_DEPTH: usize = 16;
