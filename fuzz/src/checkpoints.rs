//! A model's file: GGUF where the first byte is even, otherwise safetensors beside a small model's configuration.

use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::models::Checkpoint;
use foreword_engine::text::{ChatTemplate, Tokenizer};
use std::cell::OnceCell;
use std::path::Path;
use tempfile::TempDir;

thread_local! {
    /// Each thread's folder of files, which are mapped, not read. It has the configuration of the safetensors.
    static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
}

pub(crate) fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("config.json"), CONFIG).expect("a file");
            folder
        });
        if kind % 2 == 0 {
            let path = folder.path().join("model.gguf");
            std::fs::write(&path, bytes).expect("a file");
            load(&path);
        } else {
            std::fs::write(folder.path().join("model.safetensors"), bytes).expect("a file");
            load(folder.path());
        }
    });
}

/// Loads everything that a server would: the file is loaded, or refused with an error.
fn load(path: &Path) {
    if let Ok(tokenizer) = Tokenizer::load(path) {
        let _ = tokenizer.encode("The cellar holds 12 barrels.", true);
    }
    let _ = ChatTemplate::load(path, None);
    let Ok(checkpoint) = Checkpoint::open(path) else {
        return;
    };
    let _ = checkpoint.fingerprint();
    let _ = CpuBackend::new(&checkpoint, &BACKEND);
}

/// A CPU backend with the least memory that a checkpoint can be opened with.
const BACKEND: CpuConfig = CpuConfig {
    pages: 1,
    host_pages: 0,
    page_tokens: 16,
    threads: Some(1),
    precision: Precision::Auto,
};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

/// Stands for the hidden size in a tensor's shape.
const HIDDEN: u64 = 0;

/// The tensors of a small model: GGUF's name, safetensors' name, and the shape, the innermost dimension last.
/// [`HIDDEN`] stands for the hidden size.
const TENSORS: [(&str, &str, &[u64]); 11] = [
    (
        "token_embd.weight",
        "model.embed_tokens.weight",
        &[16, HIDDEN],
    ),
    ("output_norm.weight", "model.norm.weight", &[HIDDEN]),
    (
        "blk.0.attn_norm.weight",
        "model.layers.0.input_layernorm.weight",
        &[HIDDEN],
    ),
    (
        "blk.0.attn_q.weight",
        "model.layers.0.self_attn.q_proj.weight",
        &[32, HIDDEN],
    ),
    (
        "blk.0.attn_k.weight",
        "model.layers.0.self_attn.k_proj.weight",
        &[16, HIDDEN],
    ),
    (
        "blk.0.attn_v.weight",
        "model.layers.0.self_attn.v_proj.weight",
        &[16, HIDDEN],
    ),
    (
        "blk.0.attn_output.weight",
        "model.layers.0.self_attn.o_proj.weight",
        &[HIDDEN, 32],
    ),
    (
        "blk.0.ffn_norm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        &[HIDDEN],
    ),
    (
        "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.gate_proj.weight",
        &[32, HIDDEN],
    ),
    (
        "blk.0.ffn_up.weight",
        "model.layers.0.mlp.up_proj.weight",
        &[32, HIDDEN],
    ),
    (
        "blk.0.ffn_down.weight",
        "model.layers.0.mlp.down_proj.weight",
        &[HIDDEN, 32],
    ),
];

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![safetensors()];
    // F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, BF16, and Q4_K, Q5_K, Q6_K.
    let blocks = [
        (0, 32, 128),
        (1, 32, 64),
        (2, 32, 18),
        (3, 32, 20),
        (6, 32, 22),
        (7, 32, 24),
        (30, 32, 64),
        (12, 256, 144),
        (13, 256, 176),
        (14, 256, 210),
    ];
    let blocks = blocks.map(|(kind, numbers, bytes)| Block {
        kind,
        numbers,
        bytes,
    });
    seeds.extend(
        blocks
            .iter()
            .chain([&Q8_0])
            .map(|block| gguf("llama", block)),
    );
    seeds.push(gguf("gemma3", &blocks[6]));
    seeds
}

/// Tensors that only Gemma 3 has, by GGUF's name.
const GEMMA_TENSORS: [(&str, &[u64]); 4] = [
    ("blk.0.attn_q_norm.weight", &[16]),
    ("blk.0.attn_k_norm.weight", &[16]),
    ("blk.0.post_attention_norm.weight", &[HIDDEN]),
    ("blk.0.post_ffw_norm.weight", &[HIDDEN]),
];

/// A kind of GGUF's tensors, by its number there, with the bytes that so many numbers take.
struct Block {
    kind: u32,
    numbers: u64,
    bytes: u64,
}

const F32: Block = Block {
    kind: 0,
    numbers: 1,
    bytes: 4,
};

const Q8_0: Block = Block {
    kind: 8,
    numbers: 32,
    bytes: 34,
};

/// The factors that Llama's rotary frequencies are divided by.
const ROPE_FACTORS: (&str, &[u64]) = ("rope_freqs.weight", &[8]);

/// Returns a model whose matrices are of this kind, or of Q8_0 where their rows are no whole blocks of it. A block is at
/// most as long as the hidden size.
fn gguf(architecture: &str, packed: &Block) -> Vec<u8> {
    let hidden = packed.numbers.max(32);
    let is_gemma = architecture == "gemma3";
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut fields: Vec<Vec<u8>> = Vec::new();
    let mut field = |name: &str, kind: u32, value: &[u8]| {
        let mut bytes = Vec::new();
        text(&mut bytes, name);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        fields.push(bytes);
    };
    let string = |value: &str| {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        bytes
    };
    let strings = |values: &[&str]| {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| text(&mut bytes, value));
        bytes
    };
    field("general.architecture", 8, &string(architecture));
    for (name, value) in [
        ("embedding_length", hidden as u32),
        ("feed_forward_length", 32),
        ("block_count", 1),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
        ("context_length", 64),
    ] {
        field(&format!("{architecture}.{name}"), 4, &value.to_le_bytes());
    }
    if is_gemma {
        let window = 20_u32.to_le_bytes();
        field("gemma3.attention.sliding_window", 4, &window);
    }
    field("tokenizer.ggml.eos_token_id", 4, &15_u32.to_le_bytes());
    field(
        &format!("{architecture}.attention.layer_norm_rms_epsilon"),
        6,
        &1e-5_f32.to_le_bytes(),
    );
    let model = if is_gemma { "llama" } else { "gpt2" };
    field("tokenizer.ggml.model", 8, &string(model));
    field("tokenizer.ggml.add_space_prefix", 7, &[0]);
    field("tokenizer.ggml.pre", 8, &string("smollm"));
    field(
        "tokenizer.chat_template",
        8,
        &string("{{ messages[0].content }}"),
    );
    let tokens = [
        "a",
        "b",
        "c",
        "d",
        "e",
        "h",
        "l",
        "o",
        "r",
        "s",
        "t",
        "\u{120}",
        "th",
        "the",
        "\u{120}the",
        "<end>",
    ];
    field("tokenizer.ggml.tokens", 9, &strings(&tokens));
    // Ordinary tokens, and one that ends an answer.
    let kinds = [1; 15].into_iter().chain([3_i32]);
    let kinds: Vec<u8> = kinds.flat_map(i32::to_le_bytes).collect();
    let count = 16_u64.to_le_bytes();
    field(
        "tokenizer.ggml.token_type",
        9,
        &[&5_u32.to_le_bytes()[..], &count, &kinds].concat(),
    );
    let scores: Vec<u8> = (0_i16..16)
        .flat_map(|id| f32::from(-id).to_le_bytes())
        .collect();
    field(
        "tokenizer.ggml.scores",
        9,
        &[&6_u32.to_le_bytes()[..], &count, &scores].concat(),
    );
    field(
        "tokenizer.ggml.merges",
        9,
        &strings(&["t h", "th e", "\u{120} the"]),
    );
    let mut out = vec![0];
    out.extend(b"GGUF");
    out.extend(3_u32.to_le_bytes());
    let own = match is_gemma {
        true => GEMMA_TENSORS.as_slice(),
        false => &[ROPE_FACTORS],
    };
    let tensors = TENSORS.iter().map(|(name, _, shape)| (*name, *shape));
    let tensors: Vec<(&str, &[u64])> = tensors.chain(own.iter().copied()).collect();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((fields.len() as u64).to_le_bytes());
    out.extend(fields.concat());
    let mut data = Vec::new();
    for (name, shape) in tensors {
        let shape = of(hidden, shape);
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .rev()
            .for_each(|size| out.extend(size.to_le_bytes()));
        let block = match *shape {
            // Norms are never packed.
            [_] => &F32,
            [.., row] if row % packed.numbers == 0 => packed,
            _ => &Q8_0,
        };
        out.extend(block.kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        // Weights are zero, and factors, which may not be, are one.
        let bytes = (shape.iter().product::<u64>() / block.numbers * block.bytes) as usize;
        let value = f32::from(u8::from(name == ROPE_FACTORS.0));
        data.extend(value.to_le_bytes().into_iter().cycle().take(bytes));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    // The first byte is the input's, not the file's.
    let header = (out.len() - 1).next_multiple_of(32);
    out.resize(1 + header, 0);
    out.extend(data);
    out
}

/// Returns a shape with this hidden size.
fn of(hidden: u64, shape: &[u64]) -> Vec<u64> {
    let size = |&size: &u64| if size == HIDDEN { hidden } else { size };
    shape.iter().map(size).collect()
}

fn safetensors() -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (_, name, shape) in TENSORS {
        let shape = of(32, shape);
        let end = offset + 4 * shape.iter().product::<u64>();
        let entry =
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.to_owned(), entry);
        offset = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut out = vec![1];
    out.extend((header.len() as u64).to_le_bytes());
    out.extend(header.as_bytes());
    out.resize(out.len() + offset as usize, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_whole_models() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        for seed in seeds().iter().filter(|seed| seed[0] == 0) {
            std::fs::write(&path, &seed[1..]).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(seed.len() <= 1 << 16, "libFuzzer cuts {} bytes", seed.len());
            Tokenizer::load(&path).unwrap();
            CpuBackend::new(&checkpoint, &BACKEND).unwrap();
        }
        std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), &safetensors()[1..]).unwrap();
        Checkpoint::open(folder.path()).unwrap();
    }
}
