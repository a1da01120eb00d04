//! Tokenising prompts of documents that were seen before: piece by piece from a cache, against the whole text each
//! time.
//!
//! ```text
//! cargo bench -p foreword-benches -- tokens [FOLDER]
//! cargo bench -p foreword-benches -- tokens vocabularies MODELS    tokens of GGUF files against llama.cpp's
//! ```
//!
//! MODELS is the folder `models` of llama.cpp's sources: beside `ggml-vocab-NAME.gguf` are texts (`.inp`) and their tokens
//! (`.out`).
//!
//! FOLDER contains a `tokenizer.json`; the default is the engine's test tokenizer (4,096 tokens). The prompts are the
//! handbook's questions, each with its five retrieved documents, so documents recur at other positions and beside other
//! documents. Three cases alternate, prompt by prompt: the whole text, a cache that has seen all prompts, and a cache
//! that has seen none (the overhead of having one). Every result is compared with that of the whole text. The table
//! shows medians over the prompts.

use anyhow::{Context, Result, ensure};
use foreword_benches::Arguments;
use foreword_engine::text::{TokenCache, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const CACHE_BYTES: usize = 64 << 20;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if let [mode, models] = &arguments.words[..]
        && mode == "vocabularies"
    {
        return vocabularies(Path::new(models));
    }
    let folder = arguments.words.first();
    let folder = folder.map_or_else(|| root.join("host/engine/fixtures/qwen2"), PathBuf::from);
    let tokenizer = Tokenizer::load(&folder)?;
    let prompts = prompts(&root.join("examples/handbook"))?;

    let warm = TokenCache::new(&tokenizer, CACHE_BYTES);
    ensure!(warm.is_on(), "texts of {} cannot be cut", folder.display());
    let mut tokens = 0;
    for prompt in &prompts {
        let whole = tokenizer.encode(prompt, false)?;
        tokens += whole.len();
        ensure!(
            warm.encode(&tokenizer, prompt, false, "")? == whole,
            "the tokens differ"
        );
        ensure!(
            warm.encode(&tokenizer, prompt, false, "")? == whole,
            "the tokens differ"
        );
    }

    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for prompt in &prompts {
            let cold = TokenCache::new(&tokenizer, CACHE_BYTES);
            let whole = || tokenizer.encode(prompt, false).map(drop);
            let cases: [&dyn Fn() -> Result<(), _>; 3] = [
                &whole,
                &|| warm.encode(&tokenizer, prompt, false, "").map(drop),
                &|| cold.encode(&tokenizer, prompt, false, "").map(drop),
            ];
            for (case, times) in cases.iter().zip(&mut times) {
                let start = Instant::now();
                black_box(case())?;
                times.push(start.elapsed());
            }
        }
    }
    let [whole, warm_time, cold] = times.map(median);
    let ratio = |time: Duration| whole.as_secs_f64() / time.as_secs_f64();
    println!(
        "{} prompts, {} tokens each on average",
        prompts.len(),
        tokens / prompts.len()
    );
    println!("whole          {whole:10.1?}");
    println!(
        "cache, warm    {warm_time:10.1?}  {:5.1} times as fast",
        ratio(warm_time)
    );
    println!(
        "cache, cold    {cold:10.1?}  {:5.2} times as fast",
        ratio(cold)
    );
    let held = warm.stats().held_bytes;
    println!(
        "memory         {:.1} MiB for {} prompts",
        held as f64 / f64::from(1 << 20),
        prompts.len()
    );
    Ok(())
}

/// Returns the handbook's questions as prompts.
fn prompts(folder: &Path) -> Result<Vec<String>> {
    let documents: HashMap<String, String> = lines(&folder.join("documents.jsonl"))?
        .into_iter()
        .map(|document| {
            let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
            let id = text("id");
            let block = format!(
                "<document id=\"{id}\" title=\"{}\">\n{}\n</document>\n",
                text("title"),
                text("text")
            );
            (id, block)
        })
        .collect();
    let questions: HashMap<String, String> = lines(&folder.join("questions.jsonl"))?
        .into_iter()
        .filter_map(|line| {
            Some((
                line["id"].as_str()?.to_owned(),
                line["question"].as_str()?.to_owned(),
            ))
        })
        .collect();
    let retrieved = lines(&folder.join("retrieved.jsonl"))?;
    let prompts = retrieved.iter().map(|line| {
        let mut prompt = String::from("<|im_start|>system\nAnswer from the documents.\n");
        for id in line["documents"]
            .as_array()
            .context("no documents")?
            .iter()
            .take(5)
        {
            let id = id.as_str().context("an id is no string")?;
            prompt += documents
                .get(id)
                .with_context(|| format!("no document {id}"))?;
        }
        let id = line["question"].as_str().context("no question")?;
        let question = questions
            .get(id)
            .with_context(|| format!("no question {id}"))?;
        Ok(prompt
            + "<|im_end|>\n<|im_start|>user\n"
            + question
            + "<|im_end|>\n<|im_start|>assistant\n")
    });
    prompts.collect()
}

fn lines(file: &Path) -> Result<Vec<Value>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Compares the tokens of llama.cpp's own test texts with those that it states. Vocabularies that this host does not
/// serve are listed with the reason.
fn vocabularies(models: &Path) -> Result<()> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(models)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(".gguf.inp"));
    files.sort();
    ensure!(
        !files.is_empty(),
        "{} has no vocabularies",
        models.display()
    );
    let mut differ = 0;
    println!("| vocabulary | texts | with llama.cpp's tokens |\n| --- | --- | --- |");
    for texts in files {
        let file = texts.with_extension("");
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let tokenizer = match Tokenizer::load(&file) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                println!("| {name} | | {error} |");
                continue;
            }
        };
        let tokens = std::fs::read_to_string(file.with_extension("gguf.out"))?;
        let texts = std::fs::read_to_string(&texts)?;
        let mut texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        // The last text is followed by a separator too.
        texts.pop();
        let tokens: Vec<&str> = tokens.lines().collect();
        ensure!(
            texts.len() == tokens.len(),
            "{name}: {} texts and tokens of {}",
            texts.len(),
            tokens.len()
        );
        let mut equal = 0;
        for (text, expected) in texts.iter().zip(tokens) {
            let expected: Vec<u32> = expected
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()?;
            let found = tokenizer.encode(text, false)?;
            if found == expected {
                equal += 1;
            } else {
                println!("{name}: {text:?} has {found:?}, llama.cpp {expected:?}");
            }
        }
        differ += texts.len() - equal;
        println!("| {name} | {} | {equal} |", texts.len());
    }
    ensure!(differ == 0, "{differ} texts differ");
    Ok(())
}
