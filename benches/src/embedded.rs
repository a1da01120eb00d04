//! Embeddings of texts, kept between runs: an encoder takes minutes for what a bench compares in seconds.

use foreword_retrieval::Embedder;
use foreword_retrieval::embedder::{Hashing, MiniLm};
use std::fs;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Environment variable that names a sentence encoder's folder, such as `cargo xtask setup-embedder` makes.
pub const VARIABLE: &str = "FOREWORD_EMBEDDER";

/// Returns the encoder in the folder that [`VARIABLE`] names, or the hashing embedder with 768 dimensions.
///
/// # Panics
/// Panics when the folder contains no encoder.
#[must_use]
pub fn embedder() -> Box<dyn Embedder> {
    match std::env::var_os(VARIABLE) {
        Some(folder) => Box::new(MiniLm::load(Path::new(&folder)).expect("a sentence encoder")),
        None => Box::new(Hashing::new(768).expect("the benches' dimensions")),
    }
}

/// Returns the vectors of `texts`: those kept in `target/embedded/` from an earlier run, or new ones, which are kept
/// there. Files are identified by the embedder's name and the texts.
///
/// # Panics
/// Panics when a text has no words, or the file cannot be written.
#[must_use]
pub fn vectors<S: AsRef<str>>(embedder: &dyn Embedder, texts: &[S]) -> Vec<Vec<f32>> {
    let dimensions = embedder.dimensions() as usize;
    let file = file(embedder.name(), texts);
    let kept = fs::read(&file).unwrap_or_default();
    let (numbers, _) = kept.as_chunks::<4>();
    if numbers.len() == texts.len() * dimensions {
        let numbers: Vec<f32> = numbers.iter().map(|n| f32::from_le_bytes(*n)).collect();
        return numbers
            .chunks_exact(dimensions)
            .map(<[f32]>::to_vec)
            .collect();
    }
    let mut vectors = Vec::with_capacity(texts.len());
    for batch in texts.chunks(64) {
        let batch: Vec<&str> = batch.iter().map(AsRef::as_ref).collect();
        let embedded = embedder.embed(&batch).expect("texts with words");
        vectors.extend(embedded.into_iter().map(|embedding| embedding.vector));
        eprint!("\rembedded {} of {} texts", vectors.len(), texts.len());
    }
    eprintln!();
    let numbers = vectors.iter().flatten().flat_map(|n| n.to_le_bytes());
    let numbers: Vec<u8> = numbers.collect();
    let folder = file.parent().expect("it is in a folder");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, numbers));
    written.expect("room for the vectors");
    vectors
}

fn file<S: AsRef<str>>(embedder: &str, texts: &[S]) -> PathBuf {
    let mut hash = Xxh3::new();
    for text in texts {
        let text = text.as_ref();
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    let name = format!("{embedder}-{:016x}.f32", hash.digest());
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/embedded");
    Path::new(target).join(name)
}
