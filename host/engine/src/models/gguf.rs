//! GGUF files (llama.cpp): one file with a model's architecture, tokenizer, chat template and weights.
//!
//! Its content is returned in the shapes of a Hugging Face folder: `config.json`, `tokenizer.json` and
//! `tokenizer_config.json` as JSON, and tensors under their Hugging Face names. So the rest of the crate knows one kind
//! of checkpoint. Packed matrices stay packed ([`Packing`]).
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; packed blocks: `ggml-quants.c`.

mod sentencepiece;

use super::CheckpointError;
use super::gemma;
use super::packing::Packing;
use super::safetensors::{mapped, sample};
use super::tensor::{Element, Tensor, rows_and_columns};
use memmap2::Mmap;
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Maximum number of metadata fields of a file, and of its tensors. Each takes at least 12 bytes of the file, so memory
/// is bounded by the file's size too.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum length of the name of a metadata field or a tensor, in bytes.
const MAX_NAME: usize = 1 << 12;
/// Maximum number of tokens in a file's vocabulary, and of elements of every other array in the metadata.
const MAX_TOKENS: usize = 1 << 21;

/// A GGUF file, mapped into memory, with the places of its metadata fields and tensors.
pub(crate) struct Gguf {
    path: PathBuf,
    map: Mmap,
    fields: HashMap<String, Field>,
    tensors: HashMap<String, Info>,
}

/// Where in the file a metadata value is, and its kind.
#[derive(Clone, Copy)]
struct Field {
    kind: u32,
    /// For an array, the kind of its elements and their number; zeroes for other values.
    elements: (u32, u64),
    at: usize,
}

struct Info {
    element: Element,
    /// Sizes of the tensor's dimensions, the innermost last (GGUF states it first).
    shape: Vec<u64>,
    bytes: Range<usize>,
}

/// Returns the post-processor of a `tokenizer.json` that adds a token at the beginning and at the end of each text; both are
/// ids with their names.
pub(crate) fn around(first: Option<(u64, &str)>, last: Option<(u64, &str)>) -> Json {
    let special = |(_, name): (u64, &str)| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
    let (before, behind) = (first.map(special), last.map(special));
    let with = |texts: Vec<Json>| -> Vec<Json> {
        (before.iter().cloned().chain(texts))
            .chain(behind.clone())
            .collect()
    };
    let tokens: serde_json::Map<String, Json> = (first.into_iter().chain(last))
        .map(|(id, name)| {
            (
                name.to_owned(),
                json!({"id": name, "ids": [id], "tokens": [name]}),
            )
        })
        .collect();
    json!({"type": "TemplateProcessing", "single": with(vec![text("A", 0)]),
        "pair": with(vec![text("A", 0), text("B", 1)]), "special_tokens": tokens})
}

/// Returns whether `path`, a model's path, names a GGUF file: a file with the extension `gguf`.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "gguf")
        && path.is_file()
}

/// The field of the constant that is added to the mean square of the values in every norm.
const EPSILON: &str = "attention.layer_norm_rms_epsilon";

impl Gguf {
    /// Maps a GGUF file into memory and reads its metadata and the places of its tensors.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let map = mapped(path)?;
        let (fields, tensors) = read(&map).map_err(|reason| CheckpointError::new(path, reason))?;
        Ok(Self {
            path: path.to_owned(),
            map,
            fields,
            tensors,
        })
    }

    /// Returns the model's architecture in the form of a Hugging Face `config.json`.
    pub(crate) fn config(&self) -> Result<Json, CheckpointError> {
        let architecture = self.architecture()?;
        let field = |name: &str| format!("{architecture}.{name}");
        let number = |name: &str| self.number(&field(name));
        // As in llama.cpp, a factor without a type is linear, it had another key in 2023, and 0 stands for none.
        let factor = number("rope.scaling.factor").or_else(|| number("rope.scale_linear"));
        let factor = factor.filter(|factor| *factor != 0.0);
        let scaling = match (self.text(&field("rope.scaling.type")), factor) {
            (Some("none"), _) | (None | Some("linear"), None) => Json::Null,
            (None | Some("linear"), Some(factor)) => {
                json!({"rope_type": "linear", "factor": factor})
            }
            (Some(other), _) => {
                return Err(self.wrong(format!("rope scaling `{other}` is not supported")));
            }
        };
        if number("expert_count").is_some_and(|experts| experts > 0.0) {
            return Err(self.wrong("a mixture of experts is not supported"));
        }
        let vocabulary = self.tensors.get("token_embd.weight");
        let vocabulary = vocabulary.and_then(|info| info.shape.first().copied());
        let whole = |value: Option<f64>| value.map(|value| value as u64);
        let has = |tensor: &str| self.tensors.contains_key(tensor);
        let window = number("attention.sliding_window").filter(|window| *window > 0.0);
        let mut config = json!({
            "model_type": architecture,
            "hidden_act": "silu",
            "hidden_size": whole(number("embedding_length")),
            "intermediate_size": whole(number("feed_forward_length")),
            "num_hidden_layers": whole(number("block_count")),
            "num_attention_heads": whole(number("attention.head_count")),
            "num_key_value_heads": whole(number("attention.head_count_kv")),
            "head_dim": whole(number("attention.key_length")),
            "max_position_embeddings": whole(number("context_length")),
            "rms_norm_eps": number(EPSILON),
            "rope_theta": number("rope.freq_base").unwrap_or(10_000.0),
            "rope_scaling": scaling,
            "vocab_size": vocabulary,
            "tie_word_embeddings": !has("output.weight"),
            "attention_bias": has("blk.0.attn_q.bias"),
            "mlp_bias": has("blk.0.ffn_gate.bias") || has("blk.0.ffn_up.bias"),
            // Converters write a window only for models that use it; 0 stands for none.
            "sliding_window": whole(window),
            "use_sliding_window": true,
            "eos_token_id": self.endings(),
        });
        if let Some(fields) = config.as_object_mut() {
            if architecture == GEMMA
                && let Json::Object(own) = self.gemma()?
            {
                fields.extend(own);
            }
            fields.retain(|_, value| !value.is_null());
        }
        Ok(config)
    }

    /// Checks that the loader uses every tensor that the file has for its layers; otherwise the model would answer
    /// slightly wrong. `is_loaded` returns whether a tensor is used, given its name without `blk.N.`.
    ///
    /// # Errors
    /// Returns an error if the constant of the norms is missing, if rotary embedding covers only a part of each head, if
    /// a tensor of a layer (a bias, say) is not used, or if there is one beyond the first `layers` layers.
    pub(super) fn check(
        &self,
        layers: usize,
        head_dim: usize,
        is_loaded: impl Fn(&str) -> bool,
    ) -> Result<(), CheckpointError> {
        let architecture = self.architecture()?;
        // llama.cpp refuses such files as well: Ollama's of Gemma 3, for example, also lack the scaling of their rope.
        let epsilon = format!("{architecture}.{EPSILON}");
        if self.number(&epsilon).is_none() {
            return Err(self.wrong(format!("{epsilon} is missing")));
        }
        let rotated = self.number(&format!("{architecture}.rope.dimension_count"));
        if let Some(rotated) = rotated.filter(|rotated| *rotated != head_dim as f64) {
            return Err(self.wrong(format!(
                "rope.dimension_count is {rotated}, supported: the width of a head, {head_dim}"
            )));
        }
        let is_ignored = |name: &&String| {
            let layer = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            layer.is_some_and(|(layer, role)| {
                let is_layer = layer.parse().is_ok_and(|layer: usize| layer < layers);
                !is_layer || !is_loaded(role)
            })
        };
        match self.tensors.keys().filter(is_ignored).min() {
            Some(name) => {
                Err(self.wrong(format!("tensor {name} is not supported for {architecture}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the fields of a `config.json` that only Gemma 3 has, and its `model_type`. A value that the file omits
    /// gets llama.cpp's default, or, if converters always write it, transformers'.
    fn gemma(&self) -> Result<Json, CheckpointError> {
        let number = |name: &str| self.number(&format!("{GEMMA}.{name}"));
        let window = number("attention.sliding_window");
        // Files of models all of whose layers attend to all positions have no window.
        let pattern = "attention.sliding_window_pattern";
        let pattern = match (window, number(pattern)) {
            (None, _) => Some(1.0),
            (_, None) if self.fields.contains_key(&format!("{GEMMA}.{pattern}")) => {
                return Err(self.wrong(format!("{GEMMA}.{pattern} is no number")));
            }
            (_, pattern) => pattern,
        };
        // Only the model of 62 layers, 27B, does not divide scores by the width of its heads.
        let scalar = match number("block_count") {
            Some(62.0) => number("embedding_length")
                .zip(number("attention.head_count"))
                .map(|(hidden, heads)| (hidden / heads).floor()),
            _ => number("attention.key_length"),
        };
        let whole = |value: Option<f64>| value.map(|value| value as u64);
        Ok(json!({
            "model_type": gemma::TEXT,
            "rope_theta": number("rope.freq_base").unwrap_or(1_000_000.0),
            "rope_local_base_freq": number("rope.freq_base_swa"),
            "query_pre_attn_scalar": scalar,
            "sliding_window": whole(window),
            "sliding_window_pattern": whole(pattern),
            "attn_logit_softcapping": number("attn_logit_softcapping"),
            "final_logit_softcapping": number("final_logit_softcapping"),
        }))
    }

    /// Returns the factors by which the rotary frequencies of the `pairs` pairs of a head are divided; `None` if the
    /// file has none. Files of Llama 3.1 and later state their rope scaling in this form alone.
    pub(super) fn rope_factors(&self, pairs: usize) -> Result<Option<Vec<f32>>, CheckpointError> {
        if !self.tensors.contains_key(ROPE_FACTORS) {
            return Ok(None);
        }
        let architecture = self.architecture()?;
        if architecture != "llama" {
            return Err(self.wrong(format!(
                "tensor {ROPE_FACTORS} is not supported for {architecture}, only for llama"
            )));
        }
        let factors = self.tensor(ROPE_FACTORS, &[pairs])?.to_f32();
        let is_bad = |factor: &f32| !(factor.is_finite() && *factor > 0.0);
        match factors.iter().position(is_bad) {
            Some(pair) => Err(self.wrong(format!(
                "tensor {ROPE_FACTORS}: factor {pair} is {}, supported: finite numbers above 0",
                factors[pair]
            ))),
            None => Ok(Some(factors)),
        }
    }

    /// Returns the tokenizer in the form of a Hugging Face `tokenizer.json`.
    pub(crate) fn tokenizer(&self) -> Result<Json, CheckpointError> {
        let model = self.text("tokenizer.ggml.model").unwrap_or_default();
        let has_scores = match model {
            "gpt2" => false,
            "llama" => true,
            other => {
                return Err(self.wrong(format!(
                    "tokenizer.ggml.model is `{other}`, supported: gpt2 (byte-level BPE), llama (SentencePiece)"
                )));
            }
        };
        let tokens = self.texts("tokenizer.ggml.tokens")?;
        let kinds = self.numbers("tokenizer.ggml.token_type")?;
        let kind = |id: usize| kinds.get(id).map_or(NORMAL, |kind| *kind as u64);
        let added = tokens.iter().enumerate();
        let added = added.filter(|(id, _)| matches!(kind(*id), UNKNOWN | CONTROL | USER_DEFINED));
        let added: Vec<Json> = added
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind(id) != USER_DEFINED})
            })
            .collect();
        let vocabulary: serde_json::Map<String, Json> = (tokens.iter().enumerate())
            .map(|(id, token)| ((*token).to_owned(), id.into()))
            .collect();
        // The default is llama.cpp's.
        let begins = self.number("tokenizer.ggml.add_bos_token");
        let begins = begins.map_or(has_scores || self.is_llama_3(), |begins| begins == 1.0);
        let processor = match self.special("bos") {
            Some(bos) if begins => around(Some(bos), None),
            _ => Json::Null,
        };
        let mut file = match has_scores {
            true => self.sentencepiece(&tokens, |id| kind(id) == NORMAL)?,
            false => self.byte_level()?,
        };
        file["version"] = "1.0".into();
        file["added_tokens"] = added.into();
        file["post_processor"] = processor;
        file["model"]["vocab"] = vocabulary.into();
        Ok(file)
    }

    /// Returns whether the tokenizer splits texts by the rules of Llama 3.
    fn is_llama_3(&self) -> bool {
        matches!(self.text(PRE), Some("llama-bpe" | "llama3" | "llama-v3"))
    }

    /// Returns the `tokenizer.json` of a tokenizer of the GPT-2 kind (byte-level BPE), without its vocabulary.
    fn byte_level(&self) -> Result<Json, CheckpointError> {
        let merges = self.texts("tokenizer.ggml.merges")?;
        const SUPPORTED: &str = "supported: smollm, gpt-2, qwen2, llama-bpe";
        // Files of before April 2024 do not have it, and so do not say how texts are to be cut.
        let missing = || self.wrong(format!("{PRE} is missing, {SUPPORTED}"));
        let pre = self.text(PRE).ok_or_else(missing)?;
        let byte_level = |uses_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": uses_regex});
        let split = |pattern: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                byte_level(false)]})
        };
        let (normalizer, pieces) = match pre {
            "smollm" => (
                Json::Null,
                json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Digits", "individual_digits": true}, byte_level(true)]}),
            ),
            "gpt-2" => (Json::Null, byte_level(true)),
            "qwen2" => (
                json!({"type": "NFC"}),
                split(&WORDS.replace("{digits}", r"\p{N}")),
            ),
            _ if self.is_llama_3() => {
                (Json::Null, split(&WORDS.replace("{digits}", r"\p{N}{1,3}")))
            }
            other => return Err(self.wrong(format!("{PRE} is `{other}`, {SUPPORTED}"))),
        };
        Ok(json!({
            "normalizer": normalizer,
            "pre_tokenizer": pieces,
            "decoder": byte_level(true),
            "model": {"type": "BPE", "merges": merges, "ignore_merges": self.is_llama_3()},
        }))
    }

    /// Returns the `tokenizer.json` of a tokenizer of the SentencePiece kind, without its vocabulary. `is_joined`
    /// returns whether the token with an index is the result of merges.
    fn sentencepiece(
        &self,
        tokens: &[&str],
        is_joined: impl Fn(usize) -> bool,
    ) -> Result<Json, CheckpointError> {
        let scores = self.numbers("tokenizer.ggml.scores")?;
        let merges = sentencepiece::merges(tokens, &scores, is_joined)
            .map_err(|reason| self.wrong(reason))?;
        let unknown = self.special("unknown").map(|(_, name)| name);
        // Llama's texts begin with a space, also behind special tokens; Gemma's do not. The default is llama.cpp's.
        let begins = self.number("tokenizer.ggml.add_space_prefix") != Some(0.0);
        let mut normalizers =
            vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if begins {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "merges": merges, "unk_token": unknown, "fuse_unk": true,
                "byte_fallback": true},
        }))
    }

    /// Returns the special tokens' names and the chat template in the form of a Hugging Face `tokenizer_config.json`.
    pub(crate) fn tokenizer_config(&self) -> Json {
        let mut config = serde_json::Map::new();
        for (field, name) in [
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("padding", "pad_token"),
        ] {
            if let Some((_, token)) = self.special(field) {
                config.insert(name.to_owned(), token.into());
            }
        }
        if let Some(template) = self.text("tokenizer.chat_template") {
            config.insert("chat_template".to_owned(), template.into());
        }
        config.into()
    }

    /// Returns the tensor that Hugging Face calls `name`, checked for the shape `shape`.
    pub(super) fn tensor(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Tensor<'_>, CheckpointError> {
        let own = own_name(name, self.architecture()? == GEMMA).unwrap_or_default();
        let Some(info) = self.tensors.get(&own) else {
            return Err(self.wrong(format!(
                "tensor {own} ({name}) is missing, expected with shape {shape:?}"
            )));
        };
        if !info
            .shape
            .iter()
            .copied()
            .eq(shape.iter().map(|&size| size as u64))
        {
            return Err(self.wrong(format!(
                "tensor {own}: shape is {:?}, expected {shape:?}",
                info.shape
            )));
        }
        let (rows, columns) = rows_and_columns(shape);
        let bytes = self.map.get(info.bytes.clone()).unwrap_or_default();
        let mut tensor = Tensor {
            element: info.element,
            rows,
            columns,
            data: Cow::Borrowed(bytes),
        };
        if shape.len() == 1 && matches!(tensor.element, Element::Packed(_)) {
            tensor.data = Cow::Owned(tensor.to_bf16().into_owned());
            tensor.element = Element::Bf16;
        }
        // llama.cpp interleaves the two halves of each head's rotary dimensions in this family; Hugging Face does not.
        let all = self.number("llama.attention.head_count");
        let heads = match name {
            _ if self.architecture()? != "llama" => None,
            _ if name.contains("q_proj") => all,
            _ if name.contains("k_proj") => self.number("llama.attention.head_count_kv").or(all),
            _ => None,
        };
        if let Some(heads) = heads {
            let length = if shape.len() == 1 { columns } else { rows };
            let width = tensor.data.len() / length.max(1);
            let apart = halves_apart(&tensor.data, length, width, heads as usize);
            tensor.data = Cow::Owned(apart);
        }
        Ok(tensor)
    }

    /// Adds the name, type, shape and some bytes of every tensor to `hash`, which tells this file from other files.
    pub(super) fn sample(&self, hash: &mut Xxh3) {
        let mut names: Vec<_> = self.tensors.keys().collect();
        names.sort_unstable();
        for name in names {
            let Some(info) = self.tensors.get(name) else {
                continue;
            };
            let bytes = self.map.get(info.bytes.clone()).unwrap_or_default();
            hash.update(format!("{name} {:?} {:?}", info.element, info.shape).as_bytes());
            sample(bytes, hash);
        }
    }

    /// Returns an error that names this file, with `reason`.
    pub(super) fn wrong(&self, reason: impl std::fmt::Display) -> CheckpointError {
        CheckpointError::new(&self.path, reason)
    }

    fn architecture(&self) -> Result<&str, CheckpointError> {
        self.text("general.architecture")
            .ok_or_else(|| self.wrong("general.architecture is missing"))
    }

    /// Returns the ids of the tokens that end an answer: those that the metadata names, and special tokens whose names
    /// are in [`ENDINGS`], because many files do not say which token ends a turn (Gemma's name only `<eos>`).
    fn endings(&self) -> Vec<u64> {
        let fields = ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
        let ids = fields.iter().filter_map(|field| self.number(field));
        let mut ids: Vec<u64> = ids.map(|id| id as u64).collect();
        let tokens = self.texts("tokenizer.ggml.tokens").unwrap_or_default();
        let kinds = self.numbers("tokenizer.ggml.token_type");
        let named = (0_u64..).zip(tokens).zip(kinds.unwrap_or_default());
        let named = named.filter(|((_, token), kind)| {
            ENDINGS.contains(token) && [CONTROL, USER_DEFINED].contains(&(*kind as u64))
        });
        ids.extend(named.map(|((id, _), _)| id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the id and the name of the special token that the metadata calls `field`, such as `bos`; `None` if it
    /// names none.
    fn special(&self, field: &str) -> Option<(u64, &str)> {
        let id = self.number(&format!("tokenizer.ggml.{field}_token_id"))? as u64;
        let (mut reader, kind, count) = self.array("tokenizer.ggml.tokens").ok()?;
        let is_known = kind == STRING && id < count as u64;
        let names = (0..=id).map(|_| reader.text().ok());
        Some((id, is_known.then(|| names.last()).flatten().flatten()?))
    }

    fn reader(&self, at: usize) -> Reader<'_> {
        Reader {
            bytes: &self.map,
            at,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        let field = self.fields.get(name).filter(|field| field.kind == STRING)?;
        self.reader(field.at).text().ok()
    }

    fn number(&self, name: &str) -> Option<f64> {
        let field = self.fields.get(name)?;
        self.reader(field.at).number(field.kind).ok()
    }

    fn array(&self, name: &str) -> Result<(Reader<'_>, u32, usize), CheckpointError> {
        let field = self.fields.get(name).filter(|field| field.kind == ARRAY);
        let field = field.ok_or_else(|| self.wrong(format!("{name} is missing, or no array")))?;
        let (kind, count) = field.elements;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= MAX_TOKENS);
        let count = count
            .ok_or_else(|| self.wrong(format!("{name} has more than {MAX_TOKENS} elements")))?;
        Ok((self.reader(field.at), kind, count))
    }

    fn texts(&self, name: &str) -> Result<Vec<&str>, CheckpointError> {
        let (mut reader, kind, count) = self.array(name)?;
        if kind != STRING {
            return Err(self.wrong(format!("{name} is no array of strings")));
        }
        let texts = (0..count).map(|_| reader.text());
        texts
            .collect::<Result<_, _>>()
            .map_err(|reason| self.wrong(reason))
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>, CheckpointError> {
        let (mut reader, kind, count) = self.array(name)?;
        let numbers = (0..count).map(|_| reader.number(kind));
        numbers
            .collect::<Result<_, String>>()
            .map_err(|reason| self.wrong(format!("{name}: {reason}")))
    }
}

/// The regular expression by which Qwen 2 and Llama 3 split a text before byte pairs are merged. `{digits}` is replaced
/// by the expression for a run of digits, in which the two differ.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Name of the metadata field that says by which rules a text is split before byte pairs are merged.
const PRE: &str = "tokenizer.ggml.pre";

/// Names of tokens that end a turn or a text, as llama.cpp knows them.
const ENDINGS: [&str; 7] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

/// Name of the tensor with the factors by which rotary frequencies are divided.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// GGUF's name of the architecture of Gemma 3, whose tensors and fields differ from those of the others.
const GEMMA: &str = "gemma3";

/// Kinds of tokens in the metadata (`llama_token_type`): this one, and the three below.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Kinds of metadata values that are not numbers: strings, and, below, arrays.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Returns GGUF's name of the tensor that Hugging Face calls `name`, in Gemma 3 if `is_gemma`, otherwise in the other
/// families. Returns `None` if no supported model has the tensor.
fn own_name(name: &str, is_gemma: bool) -> Option<String> {
    Some(match name {
        "model.embed_tokens.weight" => "token_embd.weight".to_owned(),
        "model.norm.weight" => "output_norm.weight".to_owned(),
        "lm_head.weight" => "output.weight".to_owned(),
        ROPE_FACTORS => ROPE_FACTORS.to_owned(),
        _ => {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let (role, kind) = rest.rsplit_once('.')?;
            let role = match role {
                "input_layernorm" => "attn_norm",
                "post_attention_layernorm" if is_gemma => "post_attention_norm",
                "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
                "post_feedforward_layernorm" => "post_ffw_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "self_attn.q_norm" => "attn_q_norm",
                "self_attn.k_norm" => "attn_k_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{layer}.{role}.{kind}")
        }
    })
}

/// Returns the bytes of a matrix of `rows` rows, `width` bytes each, with the rows of each of the `heads` heads
/// reordered: those with even index within the head before those with odd index.
fn halves_apart(data: &[u8], rows: usize, width: usize, heads: usize) -> Vec<u8> {
    let each = rows / heads.max(1);
    let from = |row: usize| {
        let (head, at) = (row / each.max(1), row % each.max(1));
        let half = each / 2;
        head * each
            + if at < half {
                2 * at
            } else {
                2 * (at - half) + 1
            }
    };
    let mut apart = Vec::with_capacity(data.len());
    for row in 0..rows {
        let start = from(row) * width;
        apart.extend_from_slice(data.get(start..start + width).unwrap_or_default());
    }
    apart.resize(data.len(), 0);
    apart
}

/// Returns the number type that GGUF numbers `kind` (`ggml_type`), or `None` if it is not supported.
fn element(kind: u32) -> Option<Element> {
    Some(match kind {
        0 => Element::F32,
        1 => Element::F16,
        2 => Element::Packed(Packing::Q4_0),
        3 => Element::Packed(Packing::Q4_1),
        6 => Element::Packed(Packing::Q5_0),
        7 => Element::Packed(Packing::Q5_1),
        8 => Element::Packed(Packing::Q8_0),
        12 => Element::Packed(Packing::Q4K),
        13 => Element::Packed(Packing::Q5K),
        14 => Element::Packed(Packing::Q6K),
        30 => Element::Bf16,
        _ => return None,
    })
}

/// Metadata fields by name, and tensors by name, of a GGUF file.
type Contents = (HashMap<String, Field>, HashMap<String, Info>);

/// Reads the metadata and the list of tensors, which precede the weights, from the file's `bytes`.
fn read(bytes: &[u8]) -> Result<Contents, String> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.take(4)? != b"GGUF" {
        return Err("it does not begin with GGUF".to_owned());
    }
    let version = reader.u32()?;
    if !matches!(version, 2 | 3) {
        return Err(format!("version {version} is not supported, only 2 and 3"));
    }
    let (tensors, fields) = (reader.u64()?, reader.u64()?);
    if tensors.max(fields) > MAX_ENTRIES {
        return Err(format!("it has more than {MAX_ENTRIES} fields or tensors"));
    }
    let mut known = HashMap::new();
    for _ in 0..fields {
        let name = reader.name()?;
        let kind = reader.u32()?;
        let mut field = Field {
            kind,
            elements: (0, 0),
            at: reader.at,
        };
        if kind == ARRAY {
            field.elements = (reader.u32()?, reader.u64()?);
            field.at = reader.at;
        }
        reader
            .skip(kind, field.elements)
            .map_err(|reason| format!("{name}: {reason}"))?;
        known.insert(name, field);
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let name = reader.name()?;
        let dimensions = reader.u32()?;
        if dimensions > 4 {
            return Err(format!("tensor {name} has {dimensions} dimensions"));
        }
        let mut shape = (0..dimensions)
            .map(|_| reader.u64())
            .collect::<Result<Vec<u64>, _>>()?;
        // GGUF states the innermost dimension first.
        shape.reverse();
        let (kind, offset) = (reader.u32()?, reader.u64()?);
        infos.push((name, shape, kind, offset));
    }
    let alignment = known.get("general.alignment").copied();
    let alignment = alignment.and_then(|field| {
        Reader {
            bytes,
            at: field.at,
        }
        .number(field.kind)
        .ok()
    });
    let alignment = alignment.map_or(32, |alignment| alignment as u64).max(1);
    let data = (reader.at as u64).next_multiple_of(alignment);
    let mut found = HashMap::new();
    let mut total = 0;
    for (name, shape, kind, offset) in infos {
        let element = element(kind).ok_or_else(|| {
            format!("tensor {name} is of type {kind}, supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K")
        })?;
        let (numbers, size) = element.block();
        let columns = shape.last().copied().unwrap_or(1);
        let count = shape
            .iter()
            .try_fold(1_u64, |count, size| count.checked_mul(*size));
        let range = count
            .filter(|_| columns.is_multiple_of(numbers as u64))
            .and_then(|count| (count / numbers as u64).checked_mul(size as u64))
            .and_then(|length| {
                let start = data.checked_add(offset)?;
                let end = start
                    .checked_add(length)
                    .filter(|end| *end <= bytes.len() as u64)?;
                Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
            });
        let range = range.ok_or_else(|| {
            format!("tensor {name} does not fit into the file, or into whole blocks")
        })?;
        // Tensors that overlap would let a small file fill the memory.
        total += range.len();
        if total > bytes.len() {
            return Err(format!(
                "the tensors have more bytes than the file's {}: they overlap",
                bytes.len()
            ));
        }
        found.insert(
            name,
            Info {
                element,
                shape,
                bytes: range,
            },
        );
    }
    Ok((known, found))
}

/// Reads values one after another from the file's bytes, beginning at offset `at`; fails where the file ends.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| "the file ends too early".to_owned())?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'a str, String> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        std::str::from_utf8(self.take(length)?).map_err(|error| error.to_string())
    }

    fn name(&mut self) -> Result<String, String> {
        let name = self.text()?;
        match name.len() {
            0..=MAX_NAME => Ok(name.to_owned()),
            length => Err(format!("a name has {length} bytes, allowed are {MAX_NAME}")),
        }
    }

    fn number(&mut self, kind: u32) -> Result<f64, String> {
        Ok(match kind {
            0 | 7 => f64::from(self.array::<1>()?[0]),
            1 => f64::from(i8::from_le_bytes(self.array()?)),
            2 => f64::from(u16::from_le_bytes(self.array()?)),
            3 => f64::from(i16::from_le_bytes(self.array()?)),
            4 => f64::from(self.u32()?),
            5 => f64::from(i32::from_le_bytes(self.array()?)),
            6 => f64::from(f32::from_le_bytes(self.array()?)),
            10 => self.u64()? as f64,
            11 => i64::from_le_bytes(self.array()?) as f64,
            12 => f64::from_le_bytes(self.array()?),
            other => return Err(format!("a value is of kind {other}, which is no number")),
        })
    }

    /// Skips a value of kind `kind`; if it is an array, with `count` elements of kind `element`.
    fn skip(&mut self, kind: u32, (element, count): (u32, u64)) -> Result<(), String> {
        let width = |kind: u32| match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        };
        match (kind, width(kind)) {
            (STRING, _) => self.text().map(drop),
            (ARRAY, _) if element == STRING => (0..count).try_for_each(|_| self.text().map(drop)),
            (ARRAY, _) => {
                let width =
                    width(element).ok_or_else(|| format!("an array is of kind {element}"))?;
                let length = count
                    .checked_mul(width)
                    .and_then(|length| usize::try_from(length).ok());
                self.take(length.unwrap_or(usize::MAX)).map(drop)
            }
            (_, Some(width)) => self.take(width as usize).map(drop),
            (other, None) => Err(format!("its kind is {other}, which is not known")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Checkpoint, LayerWeights};
    use crate::text::{ChatTemplate, Ending, Tokenizer};
    use half::{bf16, f16};

    /// Builds a GGUF file for tests.
    #[derive(Default)]
    struct Writer {
        fields: Vec<(String, Vec<u8>)>,
        tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    impl Writer {
        fn field(&mut self, name: &str, kind: u32, value: &[u8]) {
            let value = [&kind.to_le_bytes()[..], value].concat();
            self.fields.push((name.to_owned(), value));
        }

        fn number(&mut self, name: &str, value: u64) {
            self.field(name, 10, &value.to_le_bytes());
        }

        fn texts(&mut self, name: &str, texts: &[String]) {
            let mut value = [
                &STRING.to_le_bytes()[..],
                &(texts.len() as u64).to_le_bytes(),
            ]
            .concat();
            value.extend(texts.iter().flat_map(|one| text(one)));
            self.field(name, ARRAY, &value);
        }

        fn write(&self) -> Vec<u8> {
            let mut file = b"GGUF".to_vec();
            file.extend(3_u32.to_le_bytes());
            file.extend((self.tensors.len() as u64).to_le_bytes());
            file.extend((self.fields.len() as u64).to_le_bytes());
            for (name, value) in &self.fields {
                file.extend(text(name));
                file.extend(value);
            }
            let mut offset = 0_u64;
            for (name, shape, kind, data) in &self.tensors {
                file.extend(text(name));
                file.extend((shape.len() as u32).to_le_bytes());
                file.extend(shape.iter().rev().flat_map(|size| size.to_le_bytes()));
                file.extend(kind.to_le_bytes());
                file.extend(offset.to_le_bytes());
                offset = (offset + data.len() as u64).next_multiple_of(32);
            }
            for (_, _, _, data) in &self.tensors {
                file.resize(file.len().next_multiple_of(32), 0);
                file.extend(data);
            }
            file
        }
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name)
    }

    fn json(path: &Path) -> Json {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Returns the bytes of the file that llama.cpp's converter produces for a fixture.
    fn converted(name: &str, architecture: &str) -> Vec<u8> {
        writer(name, architecture).write()
    }

    /// Returns the file that llama.cpp's converter produces for a fixture, without rope factors.
    fn writer(name: &str, architecture: &str) -> Writer {
        let folder = fixture(name);
        let config = json(&folder.join("config.json"));
        let mut file = Writer::default();
        file.field("general.architecture", STRING, &text(architecture));
        for (field, key) in [
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", "num_hidden_layers"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("context_length", "max_position_embeddings"),
        ] {
            if let Some(value) = config[key].as_u64() {
                file.number(&format!("{architecture}.{field}"), value);
            }
        }
        let float = |value: &Json| (value.as_f64().unwrap() as f32).to_le_bytes();
        file.field(
            &format!("{architecture}.attention.layer_norm_rms_epsilon"),
            6,
            &float(&config["rms_norm_eps"]),
        );
        let is_gemma = architecture == GEMMA;
        let parameters = match is_gemma {
            true => &config["rope_parameters"]["full_attention"],
            false => &config["rope_parameters"],
        };
        let theta = config
            .get("rope_theta")
            .unwrap_or(&parameters["rope_theta"]);
        file.field(&format!("{architecture}.rope.freq_base"), 6, &float(theta));
        let tokenizer = json(&folder.join("tokenizer.json"));
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
        let mut tokens = vec![String::new(); config["vocab_size"].as_u64().unwrap() as usize];
        for (token, id) in vocabulary {
            tokens[id.as_u64().unwrap() as usize].clone_from(token);
        }
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let kinds: Vec<u8> = (0_u64..)
            .zip(&tokens)
            .flat_map(|(id, token)| {
                (match token.as_str() {
                    "<unk>" => 2_i32,
                    byte if byte.starts_with("<0x") => 6,
                    _ if added.iter().any(|token| token["id"] == id) => 3,
                    _ => 1,
                })
                .to_le_bytes()
            })
            .collect();
        let model = if is_gemma { "llama" } else { "gpt2" };
        file.field("tokenizer.ggml.model", STRING, &text(model));
        file.field("tokenizer.ggml.pre", STRING, &text("qwen2"));
        file.texts("tokenizer.ggml.tokens", &tokens);
        let count = (tokens.len() as u64).to_le_bytes();
        file.field(
            "tokenizer.ggml.token_type",
            ARRAY,
            &[&5_u32.to_le_bytes()[..], &count, &kinds].concat(),
        );
        if is_gemma {
            let scores = (0..tokens.len()).flat_map(|id| (-(id as f32)).to_le_bytes());
            let scores: Vec<u8> = scores.collect();
            let scores = [&6_u32.to_le_bytes()[..], &count, &scores].concat();
            file.field("tokenizer.ggml.scores", ARRAY, &scores);
            file.field("tokenizer.ggml.add_space_prefix", 7, &[0]);
            for (name, token) in [("bos", "<bos>"), ("unknown", "<unk>")] {
                let id = vocabulary[token].as_u64().unwrap();
                file.number(&format!("tokenizer.ggml.{name}_token_id"), id);
            }
            file.number(
                "gemma3.attention.sliding_window",
                config["sliding_window"].as_u64().unwrap(),
            );
            file.number("gemma3.attention.sliding_window_pattern", 2);
            file.field("gemma3.rope.scaling.type", STRING, &text("linear"));
            file.field(
                "gemma3.rope.scaling.factor",
                6,
                &float(&parameters["factor"]),
            );
        }
        let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
        let merges: Vec<String> = merges
            .map(|pair| {
                format!(
                    "{} {}",
                    pair[0].as_str().unwrap(),
                    pair[1].as_str().unwrap()
                )
            })
            .collect();
        file.texts("tokenizer.ggml.merges", &merges);
        file.number(
            "tokenizer.ggml.eos_token_id",
            config["eos_token_id"].as_u64().unwrap(),
        );
        let template = std::fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
        file.field("tokenizer.chat_template", STRING, &text(&template));

        let model = Checkpoint::open(&folder).unwrap();
        let c = model.config().clone();
        let is_llama = architecture == "llama";
        let mut add = |name: &str, tensor: &Tensor<'_>, heads: Option<usize>, is_vector: bool| {
            let shape = match is_vector {
                true => vec![tensor.columns as u64],
                false => vec![tensor.rows as u64, tensor.columns as u64],
            };
            let mut data = tensor.data.to_vec();
            if let Some(heads) = heads.filter(|_| is_llama) {
                data = interleaved(&data, tensor.rows, heads);
            }
            let kind = match tensor.element {
                Element::F32 => 0,
                Element::F16 => 1,
                Element::Bf16 => 30,
                Element::Packed(_) => unreachable!("fixtures are not packed"),
            };
            file.tensors.push((name.to_owned(), shape, kind, data));
        };
        add(
            "token_embd.weight",
            &model.embedding().unwrap(),
            None,
            false,
        );
        add(
            "output_norm.weight",
            &model.final_norm().unwrap(),
            None,
            true,
        );
        if let Some(head) = model.head().unwrap() {
            add("output.weight", &head, None, false);
        }
        for at in 0..c.layers {
            let layer = model.layer(at).unwrap();
            let name = |role: &str| format!("blk.{at}.{role}");
            add(&name("attn_norm.weight"), &layer.input_norm, None, true);
            add(&name("ffn_norm.weight"), &layer.mlp_norm, None, true);
            for (role, tensor) in ["post_attention_norm", "post_ffw_norm"]
                .iter()
                .zip(layer.post_norms.iter().flatten())
            {
                add(&name(&format!("{role}.weight")), tensor, None, true);
            }
            let roles = ["attn_q", "attn_k", "attn_v"];
            let heads = [Some(c.heads), Some(c.kv_heads), None];
            for ((role, tensor), heads) in roles.iter().zip(&layer.qkv).zip(heads) {
                add(&name(&format!("{role}.weight")), tensor, heads, false);
            }
            for (role, tensor) in roles.iter().zip(layer.qkv_bias.iter().flatten()) {
                add(&name(&format!("{role}.bias")), tensor, None, true);
            }
            for (role, tensor) in ["attn_q_norm", "attn_k_norm"]
                .iter()
                .zip(layer.qk_norm.iter().flatten())
            {
                add(&name(&format!("{role}.weight")), tensor, None, true);
            }
            add(&name("attn_output.weight"), &layer.output, None, false);
            add(&name("ffn_gate.weight"), &layer.gate_up[0], None, false);
            add(&name("ffn_up.weight"), &layer.gate_up[1], None, false);
            add(&name("ffn_down.weight"), &layer.down, None, false);
        }
        file
    }

    /// Returns the rows of each head in llama.cpp's order.
    fn interleaved(data: &[u8], rows: usize, heads: usize) -> Vec<u8> {
        let (width, each) = (data.len() / rows, rows / heads);
        let row = |row: usize| {
            let (head, at) = (row / each, row % each);
            head * each + at % 2 * (each / 2) + at / 2
        };
        (0..rows)
            .flat_map(|at| data[row(at) * width..][..width].to_vec())
            .collect()
    }

    #[test]
    fn a_file_says_what_the_folder_says_that_it_was_made_of() {
        for (name, architecture) in [
            ("mistral", "llama"),
            ("qwen2", "qwen2"),
            ("qwen3", "qwen3"),
            ("gemma3", GEMMA),
        ] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("model.gguf");
            std::fs::write(&path, converted(name, architecture)).unwrap();
            let (folder, file) = (
                Checkpoint::open(&fixture(name)).unwrap(),
                Checkpoint::open(&path).unwrap(),
            );
            let shape = |model: &Checkpoint| {
                let c = model.config().clone();
                (
                    c.hidden,
                    c.layers,
                    c.heads,
                    c.kv_heads,
                    c.head_dim,
                    c.vocabulary,
                    c.tied,
                )
            };
            assert_eq!(shape(&file), shape(&folder), "{name}");
            // The metadata names the second alone.
            assert_eq!(file.config().eos_tokens, [0, 2], "{name}");
            let same = |one: &Tensor<'_>, other: &Tensor<'_>| {
                assert_eq!(
                    (one.element, one.rows, one.columns),
                    (other.element, other.rows, other.columns)
                );
                assert!(one.data == other.data, "{name}");
            };
            same(&file.embedding().unwrap(), &folder.embedding().unwrap());
            for at in 0..file.config().layers {
                let (one, other) = (file.layer(at).unwrap(), folder.layer(at).unwrap());
                for (one, other) in one.qkv.iter().zip(&other.qkv) {
                    same(one, other);
                }
                same(&one.output, &other.output);
                same(&one.down, &other.down);
                same(&one.input_norm, &other.input_norm);
                same(&one.mlp_norm, &other.mlp_norm);
                let norms = |layer: &LayerWeights<'_>| {
                    let norms = layer.post_norms.iter().flatten();
                    let norms = norms.chain(layer.qk_norm.iter().flatten());
                    norms.map(Tensor::to_f32).collect::<Vec<_>>()
                };
                assert_eq!(norms(&one), norms(&other), "{name}");
                assert_eq!(one.qkv_bias.is_some(), other.qkv_bias.is_some());
                assert_eq!(one.qk_norm.is_some(), other.qk_norm.is_some());
            }
            let said = "The ferry leaves at 08:15, doesn't it?\n\n<|im_end|> Ja, naïve 😀  end";
            let tokens = |path: &Path| Tokenizer::load(path).unwrap().encode(said, true).unwrap();
            assert_eq!(tokens(&path), tokens(&fixture(name)));
            let messages = json!([{"role": "user", "content": "Why?"}]);
            let prompt = |path: &Path, own: Option<&Path>| {
                let template = ChatTemplate::load(path, own).unwrap().unwrap();
                template
                    .render(&messages, None, None, None, Ending::Answer)
                    .unwrap()
            };
            assert_eq!(prompt(&path, None), prompt(&fixture(name), None));
            let own = place.path().join("own.jinja");
            std::fs::write(&own, "{{ messages[0].content }} Own.").unwrap();
            assert_eq!(prompt(&path, Some(&own)), "Why? Own.");
            assert_ne!(file.fingerprint(), folder.fingerprint());
            let positions = |model: &Checkpoint| {
                let c = model.config().clone();
                format!("{:?} {:?}", c.rope, c.sliding)
            };
            assert_eq!(positions(&file), positions(&folder), "{name}");
        }
    }

    #[test]
    fn the_metadata_says_how_a_text_is_cut_and_whether_it_begins_with_a_token() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let tokenizer = |pre: Option<&str>| {
            let mut file = writer("qwen2", "qwen2");
            file.fields.retain(|(name, _)| name != PRE);
            if let Some(pre) = pre {
                file.field(PRE, STRING, &text(pre));
            }
            file.number("tokenizer.ggml.bos_token_id", 1);
            std::fs::write(&path, file.write()).unwrap();
            Tokenizer::load(&path)
        };
        let tokens = |pre| tokenizer(Some(pre)).unwrap().encode("Why?", true).unwrap();
        assert_eq!(tokens("llama-bpe")[0], 1);
        assert_ne!(tokens("qwen2")[0], 1);
        for (pre, expected) in [
            (None, "tokenizer.ggml.pre is missing, supported"),
            (
                Some("default"),
                "tokenizer.ggml.pre is `default`, supported",
            ),
        ] {
            let error = tokenizer(pre).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn texts_of_sentencepiece_begin_with_a_space_unless_the_file_says_no() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let tokenizer = |prefix: Option<u8>| {
            let mut file = writer("gemma3", GEMMA);
            let field = "tokenizer.ggml.add_space_prefix";
            file.fields.retain(|(name, _)| name != field);
            if let Some(prefix) = prefix {
                file.field(field, 7, &[prefix]);
            }
            std::fs::write(&path, file.write()).unwrap();
            Tokenizer::load(&path).unwrap()
        };
        let (plain, set, unset) = (tokenizer(Some(0)), tokenizer(Some(1)), tokenizer(None));
        for said in [
            "The ferry leaves at 08:15.",
            " Why?",
            "",
            "naïve 😀",
            "<bos>Why?",
        ] {
            let tokens = set.encode(said, false).unwrap();
            assert_eq!(unset.encode(said, false).unwrap(), tokens);
            // The text behind a special token begins with a space too.
            let spaced = match said.strip_prefix("<bos>") {
                Some(rest) => format!("<bos> {rest}"),
                None if said.is_empty() => String::new(),
                None => format!(" {said}"),
            };
            assert_eq!(plain.encode(&spaced, false).unwrap(), tokens, "{said:?}");
            let mut decoder = set.decoder();
            let mut decoded: String = tokens.iter().map(|&token| decoder.push(token)).collect();
            decoded += &decoder.finish();
            assert_eq!(decoded, said.trim_start_matches("<bos>"));
        }
    }

    /// Returns values as blocks of [`Packing::Q8_0`].
    fn packed(values: &[f32]) -> Vec<u8> {
        let blocks = values.chunks_exact(32).flat_map(|block| {
            let largest = block.iter().fold(0_f32, |most, x| most.max(x.abs()));
            let scale = f16::from_f32(largest / 127.0);
            let integers = block
                .iter()
                .map(move |x| (x / scale.to_f32()).round() as i8);
            let integers = integers.map(i8::cast_unsigned);
            scale.to_le_bytes().into_iter().chain(integers)
        });
        blocks.collect()
    }

    #[test]
    fn matrices_stay_packed_and_their_rows_are_those_of_the_folder() {
        let mut file = writer("mistral", "llama");
        for (_, shape, kind, data) in &mut file.tensors {
            if shape.len() == 2 {
                let tensor = Tensor {
                    element: element(*kind).unwrap(),
                    rows: shape[0] as usize,
                    columns: shape[1] as usize,
                    data: Cow::Borrowed(data),
                };
                (*kind, *data) = (8, packed(&tensor.to_f32()));
            }
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        std::fs::write(&path, file.write()).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        let folder = Checkpoint::open(&fixture("mistral")).unwrap();
        let near = |one: &Tensor<'_>, other: &Tensor<'_>| {
            assert_eq!(one.element, Element::Packed(Packing::Q8_0));
            assert_eq!((one.rows, one.columns), (other.rows, other.columns));
            assert_eq!(one.data.len(), one.rows * one.columns / 32 * 34);
            let (one, other) = (one.to_f32(), other.to_f32());
            assert_eq!(one.len(), other.len());
            for (one, other) in one.chunks_exact(32).zip(other.chunks_exact(32)) {
                let largest = other.iter().fold(0_f32, |most, x| most.max(x.abs()));
                for (one, other) in one.iter().zip(other) {
                    assert!((one - other).abs() <= largest / 250.0, "{one} {other}");
                }
            }
        };
        near(&file.embedding().unwrap(), &folder.embedding().unwrap());
        let (one, other) = (file.layer(1).unwrap(), folder.layer(1).unwrap());
        let matrices = |layer: LayerWeights<'_>| {
            let [q, k, v] = layer.qkv;
            let [gate, up] = layer.gate_up;
            [q, k, v, layer.output, gate, up, layer.down].map(|matrix| Tensor {
                data: matrix.data.into_owned().into(),
                ..matrix
            })
        };
        for (one, other) in matrices(one).iter().zip(&matrices(other)) {
            near(one, other);
        }
        let norms = file.layer(1).unwrap().input_norm;
        assert_eq!(norms.element, folder.layer(1).unwrap().input_norm.element);
    }

    /// Returns what llama.cpp's converter writes into `rope_freqs.weight` for a fixture with the scaling `llama3`.
    fn rope_factors(name: &str) -> Vec<f32> {
        let config = json(&fixture(name).join("config.json"));
        let scaling = &config["rope_scaling"];
        let number = |key: &str| scaling[key].as_f64().unwrap();
        let (factor, original) = (number("factor"), number("original_max_position_embeddings"));
        let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
        let (theta, width) = (
            config["rope_theta"].as_f64().unwrap(),
            config["head_dim"].as_f64().unwrap(),
        );
        let pairs = 0..width as u32 / 2;
        let factors = pairs.map(|pair| {
            let wave = std::f64::consts::TAU * theta.powf(f64::from(2 * pair) / width);
            if wave < original / high {
                1.0
            } else if wave > original / low {
                factor
            } else {
                let smooth = (original / wave - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        });
        factors.map(|factor| factor as f32).collect()
    }

    #[test]
    fn rope_factors_are_the_scaling_of_llama_3() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let open = |shape: Vec<u64>, factors: &[f32], architecture: &str| {
            let mut file = writer("llama", architecture);
            let data = factors.iter().flat_map(|factor| factor.to_le_bytes());
            file.tensors
                .push((ROPE_FACTORS.to_owned(), shape, 0, data.collect()));
            std::fs::write(&path, file.write()).unwrap();
            Checkpoint::open(&path).map_err(|error| error.to_string())
        };
        let factors = rope_factors("llama");
        let pairs = factors.len();
        assert!(factors.contains(&1.0) && factors.contains(&8.0));
        assert!(factors.iter().any(|factor| (1.1..7.9).contains(factor)));

        let file = open(vec![pairs as u64], &factors, "llama").unwrap();
        let folder = Checkpoint::open(&fixture("llama")).unwrap();
        let frequencies = |model: &Checkpoint| model.config().rope.frequencies.clone();
        for (one, other) in frequencies(&file).iter().zip(frequencies(&folder)) {
            // The stored factors are f32.
            assert!((one / other - 1.0).abs() < 1e-7, "{one} is not {other}");
        }
        assert_eq!(file.config().rope.magnitude, 1.0);

        for (length, value, expected) in [
            (pairs - 1, 1.0, "shape is [7], expected [8]"),
            (pairs + 1, 1.0, "shape is [9], expected [8]"),
            (
                pairs,
                0.0,
                "factor 3 is 0, supported: finite numbers above 0",
            ),
            (pairs, -1.0, "factor 3 is -1"),
            (pairs, f32::NAN, "factor 3 is NaN"),
            (pairs, f32::INFINITY, "factor 3 is inf"),
        ] {
            let mut factors = vec![1.0; length];
            factors[3] = value;
            let error = open(vec![length as u64], &factors, "llama").err().unwrap();
            assert!(
                error.contains(ROPE_FACTORS) && error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
        let matrix = open(vec![2, 4], &factors, "llama").err().unwrap();
        assert!(matrix.contains("shape is [2, 4], expected [8]"), "{matrix}");
        let other = open(vec![pairs as u64], &factors, "qwen2").err().unwrap();
        assert!(other.contains("only for llama"), "{other}");
    }

    #[test]
    fn what_a_layer_would_ignore_is_loaded_or_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let open = |name: &str, architecture: &str, change: &dyn Fn(&mut Writer)| {
            let mut file = writer(name, architecture);
            change(&mut file);
            std::fs::write(&path, file.write()).unwrap();
            Checkpoint::open(&path).map_err(|error| error.to_string())
        };
        let llama = |change: &dyn Fn(&mut Writer)| open("llama", "llama", change);
        let plain = llama(&|_| ()).unwrap();
        let c = plain.config().clone();
        let bias = |file: &mut Writer, name: &str, length: usize| {
            let data = vec![0; 4 * length];
            file.tensors
                .push((name.to_owned(), vec![length as u64], 0, data));
        };
        let biases = |file: &mut Writer| {
            for at in 0..c.layers {
                bias(file, &format!("blk.{at}.ffn_gate.bias"), c.intermediate);
                bias(file, &format!("blk.{at}.ffn_up.bias"), c.intermediate);
                bias(file, &format!("blk.{at}.ffn_down.bias"), c.hidden);
            }
        };
        let with_biases = llama(&biases).unwrap();
        assert!(with_biases.config().mlp_bias && !plain.config().mlp_bias);
        let layer = with_biases.layer(1).unwrap();
        assert!(layer.gate_up_bias.is_some() && layer.down_bias.is_some());

        let beyond = format!("blk.{}.attn_norm.weight", c.layers);
        for name in [
            "blk.1.attn_output.bias",
            "blk.0.attn_sub_norm.weight",
            "blk.0.attn_q_norm.weight",
            &beyond,
        ] {
            let error = llama(&|file| bias(file, name, c.hidden)).err().unwrap();
            assert!(error.contains(&format!("tensor {name} is not")), "{error}");
        }
        let error = open("qwen2", "qwen2", &biases).err().unwrap();
        assert!(error.contains("tensor blk.0.ffn_down.bias"), "{error}");

        let positions = u64::from(c.max_positions);
        for (field, value, refused) in [
            ("rope.dimension_count", c.head_dim as u64, false),
            ("rope.dimension_count", c.head_dim as u64 / 2, true),
            ("attention.sliding_window", 0, false),
            ("attention.sliding_window", positions, false),
            ("attention.sliding_window", positions - 1, true),
        ] {
            let opened = llama(&|file| file.number(&format!("llama.{field}"), value)).err();
            let field = field.trim_start_matches("attention.");
            let is_named = |error: &String| error.contains(&format!("{field} is {value}"));
            assert_eq!(opened.as_ref().is_some_and(is_named), refused, "{opened:?}");
            assert_eq!(opened.is_some(), refused, "{opened:?}");
        }
    }

    /// The values and weighted sums are those of llama.cpp's Python package, `gguf` 0.17, for the same bytes.
    #[test]
    fn packed_blocks_are_widened_as_llama_cpp_does() {
        let block = |packing: Packing| {
            let (_, size) = packing.block();
            let mut block: Vec<u8> = (0..size)
                .map(|i| ((i * i * 7 + i * 31 + 11) % 256) as u8)
                .collect();
            let mut put = |at: usize, value: f32| {
                block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
            };
            match packing {
                Packing::Q6K => put(208, 0.0625),
                _ => put(0, 0.125),
            }
            if packing.f16s() == 2 {
                put(2, 0.5);
            }
            block
        };
        for (packing, first, last, sum) in [
            (Packing::Q4_0, -0.375, -1.0, -39.5),
            (Packing::Q4_1, 1.375, 0.875, 699.625),
            (Packing::Q5_0, 0.125, -0.75, 36.25),
            (Packing::Q5_1, 2.875, 1.0, 1_266.375),
            (Packing::Q8_0, 12.625, -5.875, 0.0),
            (Packing::Q4K, 74.125, -13.0, 443_034.0),
            (Packing::Q5K, 184.125, -12.25, 1_674_074.0),
            (Packing::Q6K, 126.5625, -26.6875, -29_637.0),
        ] {
            let (numbers, _) = packing.block();
            let mut values = [0.0; 256];
            packing.unpack(&block(packing), &mut values);
            let weighted = values
                .iter()
                .take(numbers)
                .zip(1..)
                .map(|(value, at)| f64::from(*value) * f64::from(at));
            assert_eq!(
                (values[0], values[numbers - 1], weighted.sum::<f64>()),
                (first, last, sum),
                "{packing:?}"
            );
            let tensor = Tensor {
                element: Element::Packed(packing),
                rows: 2,
                columns: numbers,
                data: Cow::Owned(block(packing).repeat(2)),
            };
            let wide = tensor.to_bf16();
            assert_eq!(wide.len(), numbers * 4);
            assert_eq!(
                bf16::from_le_bytes([wide[0], wide[1]]),
                bf16::from_f32(first)
            );
        }
    }

    #[test]
    fn tensors_that_overlap_are_refused() {
        let file = |data: usize| {
            let mut file = Writer::default();
            // With less data than its shape says, the next tensor begins within it.
            for (name, data) in [("a", data), ("b", 4096)] {
                let tensor = (name.to_owned(), vec![1024], 0, vec![0; data]);
                file.tensors.push(tensor);
            }
            read(&file.write()).map(|(_, tensors)| tensors.len())
        };
        assert_eq!(file(4096), Ok(2));
        for data in [0, 1024] {
            let error = file(data).unwrap_err();
            assert!(error.ends_with("they overlap"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_cut_or_lies_is_named_and_never_a_panic() {
        let whole = converted("qwen2", "qwen2");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let opened = Checkpoint::open(&path)
                .map(drop)
                .map_err(|error| error.to_string());
            let _ = (Tokenizer::load(&path), ChatTemplate::load(&path, None));
            opened
        };
        assert_eq!(open(&whole), Ok(()));
        for length in [0, 3, 4, 8, 20, 24, 100, whole.len() / 2, whole.len() - 1] {
            let error = open(&whole[..length]).unwrap_err();
            assert!(error.contains("model.gguf"), "{error}");
        }
        for at in (0..400).chain([1_000, 5_000]) {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            let _ = open(&changed);
        }
        let refused = |architecture: &str, more: &dyn Fn(&mut Writer)| {
            let mut file = Writer::default();
            file.field("general.architecture", STRING, &text(architecture));
            more(&mut file);
            open(&file.write()).unwrap_err()
        };
        assert!(refused("gemma2", &|_| ()).contains("gemma2"));
        for (name, value, expected) in [
            (
                "final_logit_softcapping",
                30,
                "final_logit_softcapping is 30",
            ),
            ("attention.sliding_window", 0, "sliding_window is 0"),
        ] {
            let reason = refused(GEMMA, &|file| {
                for name in ["embedding_length", "block_count", "feed_forward_length"] {
                    file.number(&format!("gemma3.{name}"), 8);
                }
                file.number(&format!("gemma3.{name}"), value);
            });
            assert!(reason.contains(expected), "{reason}");
        }
        let scaled = refused("llama", &|file| {
            file.field("llama.rope.scaling.type", STRING, &text("yarn"));
        });
        assert!(
            scaled.contains("rope scaling `yarn` is not supported"),
            "{scaled}"
        );
        for (fields, factor) in [
            (&[("rope.scaling.factor", 4.0)][..], Some(4.0)),
            (&[("rope.scale_linear", 2.0)], Some(2.0)),
            (&[("rope.scaling.factor", 0.0)], None),
            (&[], None),
        ] {
            let mut file = writer("llama", "llama");
            for (name, value) in fields {
                let value: f32 = *value;
                file.field(&format!("llama.{name}"), 6, &value.to_le_bytes());
            }
            std::fs::write(&path, file.write()).unwrap();
            let scaling = Gguf::open(&path).unwrap().config().unwrap()["rope_scaling"].take();
            assert_eq!(scaling["factor"].as_f64(), factor);
        }
        let experts = refused("qwen3", &|file| file.number("qwen3.expert_count", 8));
        assert!(experts.contains("mixture of experts"), "{experts}");
        let packed = refused("llama", &|file| {
            file.tensors
                .push(("t".to_owned(), vec![32], 10, vec![0; 40]));
        });
        assert!(packed.contains("of type 10, supported: F32"), "{packed}");
    }
}
