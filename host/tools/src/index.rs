//! `foreword index`: builds a context index (a tree that clusters requests' document lists by shared beginnings;
//! RAGBoost section 4) from a log of requests, for a gateway with the policy `context-index`.
//!
//! ```text
//!  FILE… ──lines──▶ newest distinct contexts ──cluster──▶ index ──▶ FILE: the gateway's `ordering`, with a history
//! ```
//!
//! The output is valid for every `--ordering` option and as the gateway's `ordering`; it contains no documents' text.

use anyhow::Result;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::policy::context_index::history::{MAX_CONTEXTS, write};
use foreword_ordering::policy::context_index::{ContextIndex, NodeId, Rules};
use foreword_report::files;
use foreword_report::log::{self, OnBad};
use foreword_simulation::{LogReader, Logged, LoggedKind};
use fxhash::{FxHashMap, FxHashSet};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Maximum value of the option `--contexts`.
const MOST_CONTEXTS: u32 = MAX_CONTEXTS as u32;

const HELP: &str = "Lines of a log are those of `foreword replay`. The file that is written is an `ordering` \
    with
the policy `context-index` and its `history`. It holds documents' fingerprints, and no text:
  foreword index requests.jsonl --out ordering.json
  foreword replay --ordering ordering.json later.jsonl

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty log.";

/// The command-line options of `foreword index`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Logs of requests, one JSON object per line
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File to write, to be used as the gateway's `ordering`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Most contexts to keep, the newest ones; a context of 15 documents takes 244 bytes of configuration
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CONTEXTS)))]
    contexts: u32,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Reads the logs, writes the gateway's `ordering` configuration with the lists of documents (`history`) from which the
/// index is built, and prints figures about the index to standard output.
///
/// # Errors
/// Returns an error if a file cannot be read or written, for a bad line with `--strict`, and
/// [`BadInput`](log::BadInput) if no request has documents.
pub fn run(options: &Options) -> Result<()> {
    let mut newest = Newest::new(options.contexts.clamp(1, MOST_CONTEXTS) as usize);
    // Tokens do not matter, since an index consists of documents only.
    let reader = LogReader::new(1);
    let on_bad = OnBad::when(options.strict);
    let (mut requests, mut rankings) = (0_u64, 0_u64);
    let counts = log::read(&options.files, "reading", on_bad, |_, line| {
        let logged = Logged::read(line)?;
        // In later turns the chat precedes the documents, so they cannot begin another prompt.
        let opening = reader.requests(logged.body.as_bytes())?.into_iter().next();
        if let Some(opening) = opening.filter(|opening| !opening.documents.is_empty()) {
            requests += 1;
            rankings += u64::from(logged.kind()? == LoggedKind::Ranking);
            newest.add(opening.documents.iter().map(|d| d.fingerprint).collect());
        }
        Ok(())
    })?;
    counts.tell();
    if requests == 0 {
        return Err(counts.without_documents("log", &options.files).into());
    }
    if rankings > 0 {
        eprintln!(
            "{rankings} of {requests} requests name their documents without their texts: a gateway, which knows documents by \
             their texts, will not know these; `foreword replay` of such lines will"
        );
    }
    let contexts = newest.contexts();
    let (index, leaves) = ContextIndex::build(&contexts, Rules::default());
    let figures = Figures::of(requests, &contexts, &index, &leaves);
    let ordering = json!({
        "policy": "context-index",
        "policy_options": {"history": write(&contexts)},
    });
    let text = serde_json::to_string_pretty(&ordering)? + "\n";
    files::write(&options.out, &text)?;
    files::show(options.json, || figures.to_json(), || figures.to_table())
}

/// The most recently used distinct contexts, at most `most` of them. A context is the list of a request's documents in
/// rank order, as fingerprints.
#[derive(Default)]
struct Newest {
    most: usize,
    /// Contexts (lists of requests' documents) in the order in which requests used them, each with the number of that
    /// use (1 for the first use of any context). An entry is outdated if `used` has a later number for its context.
    queue: VecDeque<(Vec<Fingerprint>, u64)>,
    /// For each context (list of a request's documents) that is kept, the number of its last use.
    used: FxHashMap<Vec<Fingerprint>, u64>,
    uses: u64,
}

impl Newest {
    fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    fn add(&mut self, context: Vec<Fingerprint>) {
        self.uses += 1;
        self.used.insert(context.clone(), self.uses);
        self.queue.push_back((context, self.uses));
        // Drops outdated entries (contexts used again later), and the oldest context if there are too many.
        while let Some((context, at)) = self.queue.front()
            && (self.used.get(context) != Some(at) || self.used.len() > self.most)
        {
            if self.used.get(context) == Some(at) {
                self.used.remove(context);
            }
            self.queue.pop_front();
        }
    }

    /// Returns the contexts (lists of requests' documents) that are kept, the least recently used first.
    fn contexts(self) -> Vec<Vec<Fingerprint>> {
        let Self { queue, used, .. } = self;
        let newest = queue.into_iter();
        let newest = newest.filter(|(context, at)| used.get(context) == Some(at));
        newest.map(|(context, _)| context).collect()
    }
}

/// Figures about an index, for the printed table or JSON object.
#[derive(Serialize)]
struct Figures {
    requests: u64,
    contexts: usize,
    documents: usize,
    /// Number of contexts (lists of requests' documents) that begin with the same documents as another context in the
    /// index.
    #[serde(rename = "sharing_contexts")]
    sharing: usize,
    /// Fraction (0 to 1) of all contexts' documents that are in a beginning shared with another context (list of a
    /// request's documents).
    shared_documents: f64,
    /// Number of contexts (lists of requests' documents) at each depth of the index, a tree of shared beginnings; the
    /// first entry is for depth 1.
    #[serde(rename = "contexts_by_path_length")]
    depths: Vec<usize>,
}

impl Figures {
    fn of(
        requests: u64,
        contexts: &[Vec<Fingerprint>],
        index: &ContextIndex,
        leaves: &[NodeId],
    ) -> Self {
        let distinct: FxHashSet<_> = contexts.iter().flatten().collect();
        let all: usize = contexts.iter().map(Vec::len).sum();
        let (mut sharing, mut shared) = (0, 0);
        let mut depths = Vec::new();
        for &leaf in leaves {
            let depth = index.path(leaf).len() - 1;
            if depths.len() < depth {
                depths.resize(depth, 0);
            }
            if let Some(count) = depth.checked_sub(1).and_then(|at| depths.get_mut(at)) {
                *count += 1;
            }
            let above = index.inherited(leaf);
            sharing += usize::from(above > 0);
            shared += above;
        }
        Self {
            requests,
            contexts: contexts.len(),
            documents: distinct.len(),
            sharing,
            shared_documents: shared as f64 / all.max(1) as f64,
            depths,
        }
    }

    fn to_json(&self) -> String {
        json!(self).to_string()
    }

    fn to_table(&self) -> String {
        let depths: Vec<String> = (self.depths.iter().zip(1..))
            .map(|(contexts, length)| format!("{length}: {contexts}"))
            .collect();
        format!(
            "requests with documents          {}\n\
             distinct contexts kept           {}, of {} documents\n\
             open like another context        {} ({:.1} % of their documents)\n\
             contexts by search path's length {}\n",
            self.requests,
            self.contexts,
            self.documents,
            self.sharing,
            100.0 * self.shared_documents,
            depths.join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().copied().map(Fingerprint).collect()
    }

    #[test]
    fn the_newest_distinct_contexts_are_kept() {
        let mut newest = Newest::new(2);
        for documents in [[1, 2], [3, 4], [1, 2], [1, 2], [5, 6]] {
            newest.add(prints(&documents));
        }
        assert!(newest.queue.len() <= 3);
        assert_eq!(newest.contexts(), [prints(&[1, 2]), prints(&[5, 6])]);
    }

    #[test]
    fn figures_count_what_contexts_inherit() {
        let contexts = [[2, 1, 3], [2, 6, 1], [4, 1, 0], [7, 8, 9]].map(|c| prints(&c));
        let (index, leaves) = ContextIndex::build(&contexts, Rules::default());
        let figures = Figures::of(5, &contexts, &index, &leaves);
        assert_eq!((figures.documents, figures.sharing), (9, 3));
        // 1 and 2 twice, 1 alone once, of twelve documents.
        assert_eq!(figures.shared_documents, 5.0 / 12.0);
        assert_eq!(figures.depths, [1, 1, 2]);
    }
}
