//! all-MiniLM-L6-v2 and other sentence encoders of the same design: BERT, the mean of its last hidden states, scaled to
//! length 1.
//!
//! Texts longer than the model's limit are truncated, as in sentence-transformers. Documents are cut into shorter
//! passages beforehand (see [`crate::ingest`]).

use super::bert::{Bert, Config, Scratch};
use super::{EmbedError, Embedder, Embedding};
use crate::words::has_words;
use foreword_engine::models::Tensors;
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// A sentence encoder. It computes one batch at a time, on all cores.
pub struct MiniLm {
    name: String,
    tokenizer: Tokenizer,
    bert: Bert,
    /// Maximum number of tokens of a text, including special tokens.
    max_tokens: usize,
    scratch: Mutex<Scratch>,
}

/// The reason why a folder contains no usable encoder.
#[derive(Debug, thiserror::Error)]
#[error("cannot load the embedding model: {}: {reason}", file.display())]
pub struct LoadError {
    /// The file, or the folder.
    pub file: PathBuf,
    /// The fault that was found.
    pub reason: String,
}

#[derive(Deserialize)]
struct Pooling {
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
}

#[derive(Deserialize)]
struct Sentence {
    max_seq_length: usize,
}

/// Maximum number of tokens computed at once, unless one text has more: few enough that their activations stay in the
/// CPU's cache.
const BATCH_TOKENS: usize = 512;

impl MiniLm {
    /// Loads a folder in sentence-transformers' layout: `config.json`, `model.safetensors`, `tokenizer.json`,
    /// `sentence_bert_config.json`, `1_Pooling/config.json`.
    ///
    /// # Errors
    /// Returns a [`LoadError`] when a file is missing, malformed or of another kind of model.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let config: Config = read(&folder.join("config.json"))?;
        if let Some(reason) = config.unsupported() {
            return Err(LoadError {
                file: folder.join("config.json"),
                reason,
            });
        }
        let file = folder.join("1_Pooling/config.json");
        let pooling: Pooling = read(&file)?;
        if !pooling.pooling_mode_mean_tokens
            || pooling.pooling_mode_cls_token
            || pooling.pooling_mode_max_tokens
        {
            let reason = "only pooling_mode_mean_tokens is supported".to_owned();
            return Err(LoadError { file, reason });
        }
        let file = folder.join("sentence_bert_config.json");
        let Sentence { max_seq_length } = read(&file)?;
        let positions = config.max_position_embeddings;
        if !(2..=positions).contains(&max_seq_length) {
            let reason = format!("max_seq_length is {max_seq_length}, it must be 2 to {positions}");
            return Err(LoadError { file, reason });
        }
        let wrong = |error: foreword_engine::models::CheckpointError| LoadError {
            file: PathBuf::from(error.file),
            reason: error.reason,
        };
        let tensors = Tensors::open(folder).map_err(wrong)?;
        let name = folder.canonicalize().ok().and_then(|folder| {
            let name = folder.file_name()?.to_str()?;
            Some(name.to_owned())
        });
        Ok(Self {
            name: name.unwrap_or_else(|| "minilm".to_owned()),
            tokenizer: tokenizer(&folder.join("tokenizer.json"), max_seq_length)?,
            bert: Bert::load(&tensors, config).map_err(wrong)?,
            max_tokens: max_seq_length,
            scratch: Mutex::default(),
        })
    }

    /// Returns the tokens of a text, including special tokens, truncated to the model's limit. `at` is the text's
    /// index, for errors.
    fn tokens(&self, at: usize, text: &str) -> Result<Vec<u32>, EmbedError> {
        let failed = |reason: String| EmbedError::Failed { at, reason };
        let encoded = catch_unwind(AssertUnwindSafe(|| self.tokenizer.encode_fast(text, true)));
        let encoding = encoded
            .map_err(|_| failed("the tokenizers crate panicked".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        let mut tokens = encoding.get_ids().to_vec();
        tokens.truncate(self.max_tokens);
        let vocabulary = self.bert.config().vocab_size;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            let reason = format!("token {token} is not below the vocabulary of {vocabulary}");
            return Err(failed(reason));
        }
        if !has_words(text) || tokens.is_empty() {
            return Err(EmbedError::Empty { at });
        }
        Ok(tokens)
    }
}

impl Embedder for MiniLm {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimensions(&self) -> u32 {
        // Loading has checked that the width fits.
        self.bert.config().hidden_size as u32
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let tokens = texts
            .iter()
            .enumerate()
            .map(|(at, text)| self.tokens(at, text))
            .collect::<Result<Vec<_>, _>>()?;
        let hidden = self.bert.config().hidden_size;
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let mut sum = 0;
            let fits = |text: &&Vec<u32>| {
                sum += text.len();
                sum <= BATCH_TOKENS
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (batch, others) = rest.split_at(count);
            let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
            // The scratch memory is written before it is read, so its old content does not matter. Between batches,
            // others that wait come first: a question among them waits for one batch alone.
            let mut scratch = self.scratch.lock();
            let mut states = self.bert.forward(&batch, &mut scratch);
            for text in batch {
                let (own, others) = states.split_at(text.len() * hidden);
                embeddings.push(Embedding {
                    vector: mean(own, hidden),
                    tokens: text.len() as u32,
                });
                states = others;
            }
            MutexGuard::unlock_fair(scratch);
            rest = others;
        }
        Ok(embeddings)
    }
}

/// Returns the mean of the rows, scaled to length 1.
fn mean(rows: &[f32], hidden: usize) -> Vec<f32> {
    let mut sum = vec![0.0; hidden];
    for row in rows.chunks_exact(hidden) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
    let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
    // sentence-transformers' bound: a vanishing mean stays zero.
    let length = length.max(1e-12);
    for value in &mut sum {
        *value /= length;
    }
    sum
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T, LoadError> {
    let wrong = |reason: String| LoadError {
        file: file.to_owned(),
        reason,
    };
    let bytes = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

fn tokenizer(file: &Path, max_tokens: usize) -> Result<Tokenizer, LoadError> {
    let wrong = |reason: String| LoadError {
        file: file.to_owned(),
        reason,
    };
    let bytes = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    // The crate has assertions for some malformed files instead of errors.
    let mut tokenizer = catch_unwind(|| Tokenizer::from_bytes(&bytes))
        .map_err(|_| wrong("malformed: the tokenizers crate panicked on it".to_owned()))?
        .map_err(|error| wrong(error.to_string()))?;
    let truncation = tokenizers::TruncationParams {
        max_length: max_tokens,
        ..tokenizers::TruncationParams::default()
    };
    tokenizer
        .with_truncation(Some(truncation))
        .map_err(|error| wrong(error.to_string()))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}
