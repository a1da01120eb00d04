//! `foreword ingest`: makes or updates an index file from a folder of texts.

use anyhow::{Context, bail, ensure};
use foreword_retrieval::index::{HnswOptions, IvfOptions, Kind, Metric};
use foreword_retrieval::ingest::{Passages, Summary, documents, mirror};
use foreword_retrieval::{Collection, Embedder, Spec, Tuning};
use foreword_server::retrieval::EmbedderSource;
use foreword_tools::options::one_of;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder with .txt, .md and .jsonl files; lines of the latter: {"id", "title", "text", "metadata"}
    folder: PathBuf,
    /// Index file to create, or to bring up to date
    #[arg(long, value_name = "FILE")]
    index: PathBuf,
    /// Accept a folder without text, and delete every document of the index
    #[arg(long)]
    allow_empty: bool,
    /// Embedder of texts: `hashing`, `hashing:DIMENSIONS`, or the folder of a sentence encoder
    #[arg(long, value_name = "EMBEDDER", default_value = "hashing")]
    embedder: EmbedderSource,
    /// Search method of a new index
    #[arg(long, value_parser = one_of(KINDS), default_value = "hnsw")]
    kind: Kind,
    /// Metric of a new index
    #[arg(long, value_parser = one_of(METRICS), default_value = "cosine")]
    metric: Metric,
    // 160 words are about 220 tokens of English; MiniLM reads 256.
    /// Most words of a passage; longer texts are cut
    #[arg(long, value_name = "WORDS", default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passage_words: u32,
    /// Clusters of a new `ivf` index [default: four times the square root of the number of passages]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(IvfOptions::MOST)))]
    ivf_clusters: Option<u32>,
    /// Clusters that a search of a new `ivf` index visits [default: a sixth of them, at least 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(IvfOptions::MOST)))]
    ivf_probes: Option<u32>,
    /// Links of a passage in a new `hnsw` index, the paper's M [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=i64::from(HnswOptions::MOST)))]
    hnsw_links: Option<u16>,
    /// Candidates for the links of a passage in a new `hnsw` index, the paper's efConstruction [default: 120]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(HnswOptions::MOST)))]
    hnsw_ef_construction: Option<u16>,
    /// Candidates that a search of a new `hnsw` index keeps, the paper's ef [default: 96]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(HnswOptions::MOST)))]
    hnsw_ef: Option<u16>,
}

impl Arguments {
    /// Returns the settings for a new index.
    fn tuning(&self) -> Tuning {
        Tuning {
            clusters: self.ivf_clusters,
            probes: self.ivf_probes,
            links: self.hnsw_links,
            build_breadth: self.hnsw_ef_construction,
            breadth: self.hnsw_ef,
        }
    }

    /// Returns an error if a setting is given for another kind of index than `kind`.
    fn check(&self, kind: Kind) -> anyhow::Result<()> {
        let ivf = self.ivf_clusters.is_some() || self.ivf_probes.is_some();
        let tuning = Tuning {
            clusters: None,
            probes: None,
            ..self.tuning()
        };
        let hnsw = tuning != Tuning::default();
        let name = kind.name();
        ensure!(
            !ivf || kind == Kind::Ivf,
            "--ivf-clusters and --ivf-probes are for an ivf index, and this one is {name}"
        );
        ensure!(
            !hnsw || kind == Kind::Hnsw,
            "--hnsw-links, --hnsw-ef-construction and --hnsw-ef are for an hnsw index, and this one is {name}"
        );
        let (probes, clusters) = (self.ivf_probes, self.ivf_clusters);
        if let (Some(probes), Some(clusters)) = (probes, clusters) {
            ensure!(
                probes <= clusters,
                "--ivf-probes is {probes}, and there are {clusters} clusters"
            );
        }
        Ok(())
    }
}

const KINDS: [(&str, &str, Kind); 3] = [
    (
        "flat",
        "Compares with all vectors: exact, for some thousand documents",
        Kind::Flat,
    ),
    (
        "ivf",
        "Clusters of vectors, of which the nearest are searched: fast to build",
        Kind::Ivf,
    ),
    (
        "hnsw",
        "A graph of near vectors: fast to search",
        Kind::Hnsw,
    ),
];

const METRICS: [(&str, &str, Metric); 3] = [
    ("cosine", "Cosine of the angle", Metric::Cosine),
    ("inner-product", "Inner product", Metric::InnerProduct),
    ("l2", "Euclidean distance", Metric::L2),
];

/// Creates or updates the index file, and prints a summary.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match ingest(arguments) {
        Ok((summary, documents)) => {
            let Summary {
                embedded,
                unchanged,
                deleted,
                empty,
            } = summary;
            println!(
                "{}: {documents} documents ({embedded} new or changed, {unchanged} unchanged, {deleted} deleted, {empty} without words)",
                arguments.index.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => super::failed(&error, 1),
    }
}

fn ingest(arguments: &Arguments) -> anyhow::Result<(Summary, usize)> {
    let embedder = arguments.embedder.open()?;
    let collection = collection(arguments, &*embedder)?;
    let passages = Passages {
        words: arguments.passage_words as usize,
    };
    let documents = documents(&arguments.folder, passages)?;
    let held = collection.len();
    let folder = arguments.folder.display();
    if documents.is_empty() && held == 0 && !arguments.allow_empty {
        bail!("{folder} holds no .txt, .md or .jsonl file with text");
    }
    let bar = ProgressBar::new(documents.len() as u64);
    let style = "{prefix:>14} {wide_bar} {pos} of {len}  {eta} left";
    bar.set_style(ProgressStyle::with_template(style)?);
    bar.set_prefix("embedding");
    let mirrored = mirror(collection, &documents, &*embedder, |done, _| {
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let (collection, summary) = mirrored?;
    // A folder without text is more often the wrong one, or not mounted, than meant to empty the index.
    ensure!(
        arguments.allow_empty || held == 0 || !collection.is_empty(),
        "{folder} holds no .txt, .md or .jsonl file with text, and {} has {held} documents; --allow-empty deletes them",
        arguments.index.display()
    );
    collection.save(&arguments.index)?;
    Ok((summary, collection.len()))
}

/// Opens the collection in the index file, or makes a new one if there is no file.
fn collection(arguments: &Arguments, embedder: &dyn Embedder) -> anyhow::Result<Collection> {
    let exists = arguments.index.try_exists();
    if exists.with_context(|| arguments.index.display().to_string())? {
        let collection = Collection::open(&arguments.index)?;
        let (tuning, spec) = (arguments.tuning(), collection.spec());
        arguments.check(spec.kind)?;
        ensure!(
            tuning == Tuning::default() || tuning == spec.tuning,
            "{} was made with other settings of its index; remove it to make it anew",
            arguments.index.display()
        );
        return Ok(collection);
    }
    arguments.check(arguments.kind)?;
    Ok(Collection::new(Spec {
        dimensions: embedder.dimensions(),
        metric: arguments.metric,
        kind: arguments.kind,
        embedder: embedder.name().to_owned(),
        tuning: arguments.tuning(),
    }))
}
