//! `foreword ingest`: makes an index file of a folder of texts.

use anyhow::{Context, bail};
use clap::ValueEnum;
use foreword_retrieval::index::{Kind, Metric};
use foreword_retrieval::ingest::{Passages, Summary, documents, mirror};
use foreword_retrieval::{Collection, Embedder, Spec};
use foreword_server::retrieval::EmbedderSource;
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
    /// Embedder of texts: `hashing`, `hashing:DIMENSIONS`, or the folder of a sentence encoder
    #[arg(long, value_name = "EMBEDDER", default_value = "hashing")]
    embedder: EmbedderSource,
    /// Search method of a new index
    #[arg(long, value_enum, default_value_t = IndexKind::Hnsw)]
    kind: IndexKind,
    /// Metric of a new index
    #[arg(long, value_enum, default_value_t = By::Cosine)]
    metric: By,
    /// Most words of a passage; longer texts are cut
    #[arg(long, value_name = "WORDS", default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passage_words: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum IndexKind {
    /// Compares with all vectors: exact, for some thousand documents
    Flat,
    /// Clusters of vectors, of which the nearest are searched: fast to build
    Ivf,
    /// A graph of near vectors: fast to search
    Hnsw,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// Cosine of the angle
    Cosine,
    /// Inner product
    InnerProduct,
    /// Euclidean distance
    L2,
}

/// Makes the index, or brings it up to date, and reports what was done.
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
    if documents.is_empty() && collection.is_empty() {
        bail!(
            "{} holds no .txt, .md or .jsonl file with text",
            arguments.folder.display()
        );
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
    collection.save(&arguments.index)?;
    Ok((summary, collection.len()))
}

/// Opens the collection in the file, or a new one if there is no file.
fn collection(arguments: &Arguments, embedder: &dyn Embedder) -> anyhow::Result<Collection> {
    let exists = arguments.index.try_exists();
    if exists.with_context(|| arguments.index.display().to_string())? {
        return Ok(Collection::open(&arguments.index)?);
    }
    Ok(Collection::new(Spec {
        dimensions: embedder.dimensions(),
        metric: match arguments.metric {
            By::Cosine => Metric::Cosine,
            By::InnerProduct => Metric::InnerProduct,
            By::L2 => Metric::L2,
        },
        kind: match arguments.kind {
            IndexKind::Flat => Kind::Flat,
            IndexKind::Ivf => Kind::Ivf,
            IndexKind::Hnsw => Kind::Hnsw,
        },
        embedder: embedder.name().to_owned(),
    }))
}
