//! `foreword compile-order`: learns a total order of documents from a log, and writes a WebAssembly module that holds it,
//! for routers and proxies that give each request a fresh instance.
//!
//! ```text
//!  FILE… ──lines──▶ trace ──┬─ first half ─▶ learn, twice ─▶ tables ─▶ replayed on the second half, beside foresight
//!                           │                                                     │ the better way
//!                           └─ all of it ──▶ learn ◀──────────────────────────────┘
//!                                              └─▶ table ─▶ module ─▶ OUT
//! ```
//!
//! There are two ways, with sifting and without. Sifting finds documents' company, and with it chance: where all documents of a
//! topic are alike, the commonest first reuse up to 3 % more in requests to come, and where they are not, up to 30 % less. So the
//! second half decides.
//!
//! [`foreword_simulation`] learns; the table's bytes are [`foreword_ordering::order_table`]'s. The module was built before,
//! so no compiler is needed here. The module holds hashes of documents, and no text.

mod figures;
mod module;

use crate::log::{self, Counts, OnBad};
use crate::replay::whole::Ordered;
use anyhow::{Context, Result};
use figures::{Check, Figures};
use foreword_ordering::Config;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::order_table::{Identity, OrderTable};
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_simulation::{
    Capacity, CompactTrace, LogReader, Logged, LoggedKind, Replay, Retrieved, Reuse, TotalOrder,
    learn, replay_table,
};
use fxhash::{FxHashMap, FxHashSet};
use serde_json::json;
use std::cmp::Reverse;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

/// The options of a compilation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Logs, which are read one after another.
    pub files: Vec<PathBuf>,
    /// The module without an order.
    pub module: PathBuf,
    /// File for the module with the order.
    pub output: PathBuf,
    /// By what a document is known again.
    pub identity: Identity,
    /// File with the gateway's `ordering`, for what documents are and for hints.
    pub ordering: Option<PathBuf>,
    /// Most documents in the table; the commonest ones are kept.
    pub max_documents: usize,
    /// Most looks at documents while learning.
    pub max_work: u64,
    /// Capacity of the simulated engine's cache, for the check.
    pub capacity: Capacity,
    /// Whether the first bad line ends the reading.
    pub strict: bool,
    /// Whether standard output gets JSON instead of lines.
    pub json: bool,
}

/// Learns, checks, writes the module, and prints the figures to standard output.
///
/// # Errors
/// Returns an error if a file cannot be read or written, for a bad line when strict, for a ranking where documents are
/// known by their text, or [`EmptyLog`](crate::EmptyLog).
pub fn run(options: &Options) -> Result<()> {
    let empty = std::fs::read(&options.module).with_context(|| missing(options))?;
    // Before anything is learned, which may take long.
    module::filled(&empty, b"").with_context(|| missing(options))?;
    let ordering = Ordered::read(options.ordering.as_deref())?;
    let settings = ordering.without_head();
    let config = Config::try_from(ordering.raw(&json!({}))?)?;
    let Read {
        trace,
        counts,
        rankings,
    } = read(options, &config)?;
    counts.tell();
    if trace.requests() == 0 {
        return Err(counts.empty("trace", &options.files).into());
    }
    if let (Identity::Text, Some(place)) = (options.identity, rankings) {
        anyhow::bail!(
            "{place} is a ranking, whose documents have ids but no text: --by id knows documents by their ids"
        );
    }
    let check = check(options, &trace, &settings)?;
    let sifts = check.as_ref().is_none_or(Check::prefers_sifted);
    let order = learned(options, &trace, sifts);
    let documents = kept(options, &trace, &order);
    let table = OrderTable::encode(options.identity, &documents, &settings)
        .context("--max-documents takes fewer")?;
    let written = module::filled(&empty, &table).with_context(|| missing(options))?;
    std::fs::write(&options.output, &written)
        .with_context(|| format!("cannot write {}", options.output.display()))?;
    let figures = Figures {
        requests: trace.requests(),
        documents: order.documents.len(),
        kept: documents.len(),
        order,
        check,
        capacity: options.capacity,
        output: options.output.display().to_string(),
        bytes: written.len(),
    };
    let printed = if options.json {
        figures.to_json() + "\n"
    } else {
        figures.to_lines()
    };
    std::io::stdout()
        .write_all(printed.as_bytes())
        .context("cannot write to standard output")
}

fn missing(options: &Options) -> String {
    format!(
        "cannot write an order into {}; a release has foreword_order_component.wasm and foreword_order_filter.wasm \
         beside this program, and in Foreword's repository `cargo xtask build` prints their paths",
        options.module.display()
    )
}

/// The content of the log.
struct Read {
    trace: CompactTrace,
    counts: Counts,
    /// Place of the first ranking.
    rankings: Option<String>,
}

fn read(options: &Options, config: &Config) -> Result<Read> {
    /// Tokens of a document whose ranking does not state them.
    const DOCUMENT_TOKENS: u32 = 256;
    let reader = LogReader::new(DOCUMENT_TOKENS).under(config.clone());
    let mut trace = CompactTrace::default();
    let mut rankings = None;
    let on_bad = OnBad::when(options.strict);
    let counts = log::read(&options.files, "reading", on_bad, |place, line| {
        let logged = Logged::read(line)?;
        if rankings.is_none() && logged.kind()? == LoggedKind::Ranking {
            let file = options.files.get(place.file);
            let file = file.map_or(String::new(), |file| file.display().to_string());
            rankings = Some(format!("{file}:{}", place.number));
        }
        trace.push(reader.requests(logged.body.as_bytes())?);
        Ok(())
    })?;
    Ok(Read {
        trace,
        counts,
        rankings,
    })
}

/// Learns an order of the trace: sifted, or the commonest documents first.
fn learned(options: &Options, trace: &CompactTrace, sifts: bool) -> TotalOrder {
    let key = |found: &Retrieved| key(options, found);
    learn(trace, key, if sifts { options.max_work } else { 0 })
}

fn key(options: &Options, found: &Retrieved) -> Fingerprint {
    options.identity.key(&found.label, found.fingerprint)
}

/// Returns the order without the rarest documents, if it has too many.
fn kept(options: &Options, trace: &CompactTrace, order: &TotalOrder) -> Vec<Fingerprint> {
    if order.documents.len() <= options.max_documents {
        return order.documents.clone();
    }
    let mut counts: FxHashMap<Fingerprint, u64> = FxHashMap::default();
    for found in trace.parts().flat_map(|(_, part)| part) {
        *counts.entry(key(options, found)).or_default() += 1;
    }
    let mut commonest: Vec<_> = counts.into_iter().collect();
    commonest.sort_unstable_by_key(|&(document, count)| (Reverse(count), document));
    commonest.truncate(options.max_documents);
    let commonest: FxHashSet<_> = commonest
        .into_iter()
        .map(|(document, _)| document)
        .collect();
    let order = order.documents.iter().copied();
    order
        .filter(|document| commonest.contains(document))
        .collect()
}

/// Learns from the first half of the trace, and replays the second.
fn check(options: &Options, trace: &CompactTrace, settings: &[u8]) -> Result<Option<Check>> {
    let requests = trace.requests();
    if requests < 2 {
        return Ok(None);
    }
    let first = part_of(trace, 0..requests / 2);
    let rest = part_of(trace, requests / 2..requests);
    let table = |sifts| -> Result<Vec<u8>> {
        let order = learned(options, &first, sifts);
        let documents = kept(options, &first, &order);
        OrderTable::encode(options.identity, &documents, settings)
            .context("--max-documents takes fewer")
    };
    let tables = [table(true)?, table(false)?];
    let [sifted, commonest_first] = [OrderTable::read(&tables[0])?, OrderTable::read(&tables[1])?];
    let (mut known, mut all) = (0_u64, 0_u64);
    for found in rest.parts().flat_map(|(_, part)| part) {
        known += u64::from(sifted.rank(key(options, found)).is_some());
        all += 1;
    }
    let policy = |kind| replay_policy(&rest, kind, options.capacity);
    Ok(Some(Check {
        requests: rest.requests(),
        known: known as f64 / all.max(1) as f64,
        came: policy(PolicyKind::Retrieval),
        sifted: replay_table(&rest, &sifted, options.capacity),
        commonest_first: replay_table(&rest, &commonest_first, options.capacity),
        foresight: policy(PolicyKind::Foresight),
    }))
}

fn part_of(trace: &CompactTrace, requests: Range<usize>) -> CompactTrace {
    let mut part = CompactTrace::default();
    requests.for_each(|at| part.push(trace.request(at).collect()));
    part
}

fn replay_policy(trace: &CompactTrace, kind: PolicyKind, capacity: Capacity) -> Reuse {
    let options = PolicyOptions {
        block_tokens: capacity.page_tokens,
        ..PolicyOptions::default()
    };
    let parts = (0..trace.requests()).flat_map(|at| trace.request(at));
    Replay::new(kind, &options, capacity).run(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn options(folder: &Path) -> Options {
        Options {
            files: vec![folder.join("log.jsonl")],
            module: folder.join("empty.wasm"),
            output: folder.join("full.wasm"),
            identity: Identity::Text,
            ordering: None,
            max_documents: 100,
            max_work: 1 << 20,
            capacity: Capacity::UNBOUNDED,
            strict: false,
            json: false,
        }
    }

    fn folder(log: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("log.jsonl"), log).unwrap();
        std::fs::write(
            folder.path().join("empty.wasm"),
            module::tests::module(4096),
        )
        .unwrap();
        folder
    }

    fn line(ids: &[&str]) -> String {
        let documents = ids
            .iter()
            .map(|id| format!(r#"{{"id":"{id}","text":"text of {id}"}}"#));
        let documents = documents.collect::<Vec<_>>().join(",");
        format!(r#"{{"messages":[{{"role":"user","content":"?"}}],"documents":[{documents}]}}"#)
            + "\n"
    }

    /// Returns the table that was written, found by its mark.
    fn table(folder: &Path) -> Vec<u8> {
        let module = std::fs::read(folder.join("full.wasm")).unwrap();
        let at = module
            .windows(8)
            .position(|bytes| bytes == b"FWORDER1")
            .unwrap();
        module[at..].to_vec()
    }

    #[test]
    fn the_module_holds_the_logs_documents_and_the_settings() {
        let folder =
            folder(&[line(&["a", "b", "c"]), line(&["b", "c"]), line(&["c", "a"])].concat());
        let ordering = folder.path().join("ordering.json");
        std::fs::write(
            &ordering,
            r#"{"ordering":{"hint":{"enabled":false},"head":{"mode":"apply"}}}"#,
        )
        .unwrap();
        let mut options = options(folder.path());
        options.ordering = Some(ordering);
        options.identity = Identity::Id;
        run(&options).unwrap();
        let bytes = table(folder.path());
        let table = OrderTable::read(&bytes).unwrap();
        let rank = |id: &str| table.rank(Identity::Id.key(id, Fingerprint(0)));
        assert_eq!((table.len(), rank("c"), rank("d")), (3, Some(0), None));
        assert_eq!(table.settings(), br#"{"hint":{"enabled":false}}"#);
    }

    #[test]
    fn the_commonest_documents_are_kept() {
        let folder =
            folder(&[line(&["a", "b", "c"]), line(&["b", "c"]), line(&["d", "c"])].concat());
        let mut options = options(folder.path());
        options.max_documents = 2;
        options.identity = Identity::Id;
        run(&options).unwrap();
        let bytes = table(folder.path());
        let table = OrderTable::read(&bytes).unwrap();
        let known = ["a", "b", "c", "d"]
            .map(|id| table.rank(Identity::Id.key(id, Fingerprint(0))).is_some());
        assert_eq!(known, [false, true, true, false]);
    }

    #[test]
    fn what_cannot_be_compiled_says_why() {
        let told = |log: &str, change: &dyn Fn(&mut Options)| {
            let folder = folder(log);
            let mut options = options(folder.path());
            change(&mut options);
            let error = run(&options).unwrap_err();
            (format!("{error:#}"), error.is::<crate::EmptyLog>())
        };
        let ranking = "{\"docs\":[1,2]}\n";
        let (words, _) = told(ranking, &|_| {});
        assert!(
            words.contains("log.jsonl:1 is a ranking") && words.contains("--by id"),
            "{words}"
        );
        assert!(told("{\"docs\":[]}\n", &|_| {}).1);
        let module = |options: &mut Options| std::fs::write(&options.module, b"text").unwrap();
        let (words, _) = told(ranking, &module);
        assert!(
            words.contains("neither a WebAssembly module nor a component"),
            "{words}"
        );
        let (words, _) = told(ranking, &|options: &mut Options| {
            options.module = "/nowhere.wasm".into();
        });
        assert!(words.contains("cargo xtask build"), "{words}");
    }

    #[test]
    fn a_ranking_is_learned_by_its_ids() {
        let folder = folder(&"{\"docs\":[1,2]}\n{\"docs\":[2]}\n".repeat(4));
        let mut options = options(folder.path());
        options.identity = Identity::Id;
        run(&options).unwrap();
        let bytes = table(folder.path());
        let table = OrderTable::read(&bytes).unwrap();
        let rank = |id: &str| table.rank(Identity::Id.key(id, Fingerprint(0)));
        assert_eq!([rank("2"), rank("1")], [Some(0), Some(1)]);
    }
}
