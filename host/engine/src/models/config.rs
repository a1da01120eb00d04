//! `config.json`: a checkpoint's architecture as values.
//!
//! The families share one shape of layer and differ in few options, so there is no type per family:
//!
//! | `model_type` | query/key/value biases | query and key norms | head width where unstated |
//! | --- | --- | --- | --- |
//! | `llama` | `attention_bias` (with the output's) | no | hidden / heads |
//! | `mistral` | no | no | hidden / heads |
//! | `qwen2` | yes | no | hidden / heads |
//! | `qwen3` | `attention_bias` (with the output's) | yes | 128 |
//! | `gemma3_text`, `gemma3` | no | yes | 256 |
//!
//! Gemma 3 also norms what a layer adds, scales embeddings, has another activation, and has layers with a sliding
//! window (`gemma.rs`). Of a model with a vision tower (`gemma3`) only the text model is read.
//!
//! Options that would change the arithmetic and are not supported (other activations, other families' sliding windows,
//! soft-capped logits, quantised weights except FP8, partial rotation) are refused by name, because a model that
//! answers slightly wrong is worse than one that does not load.

use super::CheckpointError;
use super::fp8;
use super::gemma::{self, Sliding};
use super::gguf::{Gguf, is_gguf};
use super::raw_config::{MAX_POSITIONS, Raw, size};
use super::rope::Rope;
use super::tensor::Element;
use crate::sampling::SamplingFields;
use half::{bf16, f16};
use serde_json::{Map, Value};
use std::path::Path;

/// A model's architecture. The Llama, Mistral, Qwen2, Qwen3 and Gemma 3 families differ only in these values.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Tokens that end an answer (`eos_token_id` of `generation_config.json`, else of `config.json`).
    pub eos_tokens: Vec<u32>,
    /// Sampling parameters for requests that leave them out, from `generation_config.json`.
    pub sampling: SamplingFields,
    /// Number of positions that the model supports.
    pub max_positions: u32,
    /// True if the checkpoint has a vision tower, which is ignored: only its text model is loaded.
    pub ignores_vision: bool,
    /// Width of the residual stream (hidden size), in elements.
    pub(crate) hidden: usize,
    /// Number of decoder layers of the model.
    pub(crate) layers: usize,
    /// Number of query heads, a multiple of `kv_heads`.
    pub(crate) heads: usize,
    /// Number of key and value heads.
    pub(crate) kv_heads: usize,
    /// Width of an attention head in elements; even.
    pub(crate) head_dim: usize,
    /// Width of the feed-forward layer between its two projections, in elements.
    pub(crate) intermediate: usize,
    /// Number of tokens in the vocabulary.
    pub(crate) vocabulary: usize,
    /// Constant that is added to the mean square of the values in every norm, `eps`.
    pub(crate) norm_eps: f32,
    /// The rotary embedding of the layers without a sliding window.
    pub(crate) rope: Rope,
    /// The sliding window and the layers that have it; `None` if every layer attends to all positions.
    pub(crate) sliding: Option<Sliding>,
    /// Number whose square root divides the scores of attention: the width of a head, except in Gemma 3.
    pub(crate) query_scalar: f32,
    /// True if the projections of queries, keys and values have biases.
    pub(crate) qkv_bias: bool,
    /// True if the output projection of attention has a bias.
    pub(crate) output_bias: bool,
    /// True if the feed-forward layer has biases.
    pub(crate) mlp_bias: bool,
    /// True if each query and key head is normed before it is rotated.
    pub(crate) qk_norm: bool,
    /// True if the outputs of attention and of the feed-forward layer pass an RMS norm before they are added to the
    /// residual stream.
    pub(crate) post_norms: bool,
    /// True if safetensors files store the weights of norms minus one; GGUF files store them as they are.
    pub(crate) norms_less_one: bool,
    /// True if token embeddings are multiplied by the square root of the hidden size before the first layer.
    pub(crate) scaled_embedding: bool,
    /// Activation function of the feed-forward layer's gate.
    pub(crate) activation: Activation,
    /// True if the token embedding also serves as the output layer.
    pub(crate) tied: bool,
    /// Numbers of rows and columns of a block of FP8 weights that shares a scale; `None` if the configuration names no
    /// block.
    pub(crate) fp8_block: Option<fp8::Block>,
}

/// Activation function of a feed-forward layer's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// SiLU: `x / (1 + e^-x)`.
    Silu,
    /// GELU by its approximation with tanh.
    Gelu,
}

impl ModelConfig {
    /// Reads the architecture from `config.json` and, if present, `generation_config.json` in `folder`, or from the
    /// metadata if `folder` is a GGUF file.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when a file cannot be read or the architecture is unsupported.
    pub fn load(folder: &Path) -> Result<Self, CheckpointError> {
        if is_gguf(folder) {
            return Self::of_gguf(&Gguf::open(folder)?);
        }
        let path = folder.join("config.json");
        let adapter = folder.join("adapter_config.json");
        if adapter.is_file() && !path.is_file() {
            let reason = "a LoRA adapter is not supported: merge it into its base model";
            return Err(CheckpointError::new(&adapter, reason));
        }
        let text =
            std::fs::read_to_string(&path).map_err(|error| CheckpointError::new(&path, error))?;
        let mut config = Self::parse(&text).map_err(|error| CheckpointError {
            file: path.display().to_string(),
            ..error
        })?;

        let path = folder.join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let raw: Map<String, Value> = serde_json::from_str(&text)
                    .map_err(|error| CheckpointError::new(&path, error))?;
                if let Some(value) = raw.get("eos_token_id").filter(|value| !value.is_null()) {
                    config.eos_tokens =
                        eos_tokens(value).map_err(|reason| CheckpointError::new(&path, reason))?;
                }
                config.sampling = sampling(&raw);
                let valid = config.sampling.sampling(0);
                valid.map_err(|error| CheckpointError::new(&path, error))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(CheckpointError::new(&path, error)),
        }
        Ok(config)
    }

    /// Reads the architecture from a GGUF file's metadata, and checks that all tensors of its layers are supported.
    pub(super) fn of_gguf(file: &Gguf) -> Result<Self, CheckpointError> {
        let config = file.config()?.to_string();
        let mut config = Self::parse(&config).map_err(|error| file.wrong(error.reason))?;
        file.check(config.layers, config.head_dim, |role| {
            config.has_in_gguf(role)
        })?;
        if let Some(factors) = file.rope_factors(config.head_dim / 2)? {
            config.rope.divide(&factors);
        }
        Ok(config)
    }

    /// Returns whether this model has the layer tensor that GGUF calls `role`, without the layer's prefix `blk.N.`.
    fn has_in_gguf(&self, role: &str) -> bool {
        match role {
            "attn_norm.weight" | "attn_q.weight" | "attn_k.weight" | "attn_v.weight"
            | "attn_output.weight" | "ffn_norm.weight" | "ffn_gate.weight" | "ffn_up.weight"
            | "ffn_down.weight" => true,
            "attn_q.bias" | "attn_k.bias" | "attn_v.bias" => self.qkv_bias,
            "attn_output.bias" => self.output_bias,
            "attn_q_norm.weight" | "attn_k_norm.weight" => self.qk_norm,
            "post_attention_norm.weight" | "post_ffw_norm.weight" => self.post_norms,
            "ffn_gate.bias" | "ffn_up.bias" | "ffn_down.bias" => self.mlp_bias,
            _ => false,
        }
    }

    /// Reads the architecture from the text of a `config.json`.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] with `config.json` as its file.
    pub fn parse(json: &str) -> Result<Self, CheckpointError> {
        let file = Path::new("config.json");
        let raw: Raw =
            serde_json::from_str(json).map_err(|error| CheckpointError::new(file, error))?;
        raw.resolve()
            .map_err(|reason| CheckpointError::new(file, reason))
    }

    /// Returns the number of floating-point operations that matrix products and attention need to compute `new` tokens
    /// after `cached` ones, and the logits of `logits` of them. A multiplication and an addition count as two.
    pub fn flops(&self, cached: u64, new: u64, logits: u64) -> f64 {
        // Each token attends to all tokens before it and to itself, or to as many as a window has.
        let seen = |window: u64| {
            let growing = new.min(window.saturating_sub(cached));
            let all = growing as f64 * (cached as f64 + (growing as f64 + 1.0) / 2.0);
            all + (new - growing) as f64 * window as f64
        };
        let (full, sliding, window) = self.layer_kinds();
        let seen = full as f64 * seen(u64::MAX) + sliding as f64 * seen(window);
        let attention = 4.0 * (self.heads * self.head_dim) as f64 * seen;
        let head = (self.vocabulary * self.hidden) as f64 * logits as f64;
        2.0 * (self.layer_matrices() as f64 * new as f64 + head) + attention
    }

    /// Returns the number of bytes that are read to decode one token of each of `sequences` sequences with `context`
    /// tokens each: all weights once, in bf16, and the keys and values that each sequence's layers attend to.
    pub fn decode_bytes(&self, sequences: u64, context: u64) -> u64 {
        let weights = self.layer_matrices() + self.vocabulary * self.hidden;
        let token = 2 * self.kv_heads * self.head_dim;
        let (full, sliding, window) = self.layer_kinds();
        let positions = full * context + sliding * context.min(window);
        2 * (weights as u64 + sequences * positions * token as u64)
    }

    /// Returns three numbers: of layers that attend to all positions, of layers with a sliding window, and of positions
    /// in the window (0 if no layer has one).
    fn layer_kinds(&self) -> (u64, u64, u64) {
        let Some(sliding) = &self.sliding else {
            return (self.layers as u64, 0, 0);
        };
        let count = sliding.layers.iter().filter(|slides| **slides).count();
        (
            (self.layers - count) as u64,
            count as u64,
            sliding.window as u64,
        )
    }

    /// Returns the number of elements in the matrices of all layers together.
    fn layer_matrices(&self) -> usize {
        let attention = 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden;
        self.layers * (attention + 3 * self.intermediate * self.hidden)
    }

    /// Returns the number of query heads that share a key and value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the factor by which token embeddings are multiplied: the square root of their width, rounded to the type
    /// that they are `stored` in, because the model was trained with that. Returns `None` for a model that does not
    /// scale them.
    pub(crate) fn embedding_scale(&self, stored: Element) -> Option<f32> {
        let scale = (self.hidden as f32).sqrt();
        self.scaled_embedding.then(|| match stored {
            Element::F32 => scale,
            Element::Bf16 | Element::Packed(_) => bf16::from_f32(scale).to_f32(),
            Element::F16 => f16::from_f32(scale).to_f32(),
        })
    }

    /// Returns the sliding window of the layer with index `index`, or `None` if it attends to all positions.
    pub(crate) fn sliding(&self, index: usize) -> Option<&Sliding> {
        let sliding = self.sliding.as_ref()?;
        sliding.layers.get(index)?.then_some(sliding)
    }
}

/// Returns the sampling parameters in `generation_config.json` that vLLM takes as defaults too.
fn sampling(generation: &Map<String, Value>) -> SamplingFields {
    let number = |name: &str| generation.get(name)?.as_f64().map(|value| value as f32);
    let top_k = generation.get("top_k").and_then(Value::as_u64);
    SamplingFields {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: top_k.map(|top_k| top_k.try_into().unwrap_or(0)),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        ..SamplingFields::default()
    }
}

/// Properties of a family of models that follow from the `model_type` of its `config.json`.
struct Family {
    model_type: &'static str,
    architecture: &'static str,
    /// True if queries, keys and values have biases; `None` if `attention_bias` in the file decides, also for the bias
    /// of the output projection.
    qkv_bias: Option<bool>,
    qk_norm: bool,
    /// Width of an attention head if the file does not state it; `None` for the hidden size divided by the number of
    /// heads.
    head_dim: Option<u64>,
    /// True if `sliding_window` has an effect only where `use_sliding_window` is true.
    window_is_opt_in: bool,
    /// True for Gemma 3, whose extra norms, scaled embeddings and sliding windows no other family has.
    is_gemma: bool,
}

const FAMILIES: [Family; 6] = [
    Family {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        qkv_bias: None,
        qk_norm: false,
        head_dim: None,
        window_is_opt_in: true,
        is_gemma: false,
    },
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        qkv_bias: Some(false),
        qk_norm: false,
        head_dim: None,
        window_is_opt_in: false,
        is_gemma: false,
    },
    Family {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        qkv_bias: Some(true),
        qk_norm: false,
        head_dim: None,
        window_is_opt_in: true,
        is_gemma: false,
    },
    Family {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        qkv_bias: None,
        qk_norm: true,
        head_dim: Some(128),
        window_is_opt_in: true,
        is_gemma: false,
    },
    Family {
        model_type: gemma::TEXT,
        architecture: "Gemma3ForCausalLM",
        ..GEMMA
    },
    GEMMA,
];

/// The family Gemma 3 with a vision tower.
const GEMMA: Family = Family {
    model_type: "gemma3",
    architecture: "Gemma3ForConditionalGeneration",
    qkv_bias: Some(false),
    qk_norm: true,
    head_dim: Some(256),
    window_is_opt_in: false,
    is_gemma: true,
};

/// Largest size (such as a width or a number of layers) that a configuration may state: far above real models, and far
/// below an overflow of a product of three sizes.
const MAX_SIZE: u64 = 1 << 20;
/// Maximum width of an attention head in elements, because the backends hold a head in fixed registers and scratch
/// memory.
const MAX_HEAD_DIM: u64 = 256;

impl Raw {
    fn resolve(self) -> Result<ModelConfig, String> {
        let family = self.family()?;
        if family.model_type == GEMMA.model_type {
            let text = self.into_text()?.resolve()?;
            return Ok(ModelConfig {
                ignores_vision: true,
                ..text
            });
        }
        let raw = match family.is_gemma {
            true => self.with_gemma_defaults()?,
            false => self,
        };
        raw.resolve_as(family)
    }

    fn resolve_as(self, family: &Family) -> Result<ModelConfig, String> {
        let fp8_block = match &self.quantization_config {
            Some(config) => fp8::resolve(config)?,
            None => None,
        };
        let (activation, name, configured, supported) = match family.is_gemma {
            false => (Activation::Silu, "hidden_act", &self.hidden_act, "silu"),
            true => (
                Activation::Gelu,
                "hidden_activation",
                &self.hidden_activation,
                "gelu_pytorch_tanh",
            ),
        };
        if let Some(configured) = configured
            && configured != supported
        {
            return Err(format!(
                "{name} is {configured:?}, supported: {supported:?}"
            ));
        }
        for (name, value) in [
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ] {
            if let Some(value) = value {
                return Err(format!("{name} is {value}, supported: null"));
            }
        }

        let hidden = size("hidden_size", self.hidden_size, MAX_SIZE)?;
        let heads = size("num_attention_heads", self.num_attention_heads, MAX_SIZE)?;
        let kv_heads = match self.num_key_value_heads {
            None => heads,
            some => size("num_key_value_heads", some, MAX_SIZE)?,
        };
        if heads % kv_heads != 0 {
            return Err(format!(
                "num_attention_heads is {heads}, not a multiple of num_key_value_heads {kv_heads}"
            ));
        }
        let head_dim = match self.head_dim.or(family.head_dim) {
            None if hidden % heads != 0 => {
                return Err(format!(
                    "hidden_size is {hidden}, not a multiple of num_attention_heads {heads}, and head_dim is not given"
                ));
            }
            None => size("head_dim", Some(hidden as u64 / heads as u64), MAX_HEAD_DIM)?,
            some => size("head_dim", some, MAX_HEAD_DIM)?,
        };
        if head_dim % 2 != 0 {
            return Err(format!("head_dim is {head_dim}, not even"));
        }
        if heads * head_dim > MAX_SIZE as usize {
            return Err(format!(
                "num_attention_heads {heads} by head_dim {head_dim} is more than {MAX_SIZE}"
            ));
        }
        let positions = size(
            "max_position_embeddings",
            self.max_position_embeddings,
            MAX_POSITIONS,
        )?;
        let norm_eps = self.rms_norm_eps.unwrap_or(1e-6);
        if !(0.0..1.0).contains(&norm_eps) {
            return Err(format!("rms_norm_eps is {norm_eps}, supported: 0 to 1"));
        }
        let layers = size("num_hidden_layers", self.num_hidden_layers, 1 << 12)?;
        let (rope, sliding) = if family.is_gemma {
            let [full, local] = self.rope.resolve_by_layer(head_dim, positions as u64)?;
            (full, Some(Sliding::resolve(&self, layers, local)?))
        } else {
            let rope = self.rope.resolve(head_dim, positions as u64)?;
            // YaRN may extend the positions beyond the window.
            self.check_window(family, rope.max_positions(positions as u64))?;
            (rope, None)
        };
        let query_scalar = match self.query_pre_attn_scalar {
            Some(scalar) if family.is_gemma => scalar,
            _ => head_dim as f64,
        };
        if !(1.0..=MAX_SIZE as f64).contains(&query_scalar) {
            return Err(format!(
                "query_pre_attn_scalar is {query_scalar}, supported: 1 to {MAX_SIZE}"
            ));
        }
        let max_positions = rope.max_positions(positions as u64).min(MAX_POSITIONS);
        let attention_bias = self.attention_bias.unwrap_or(false);

        Ok(ModelConfig {
            eos_tokens: self
                .eos_token_id
                .as_ref()
                .map_or(Ok(Vec::new()), eos_tokens)?,
            sampling: SamplingFields::default(),
            max_positions: max_positions as u32,
            ignores_vision: false,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: size("intermediate_size", self.intermediate_size, MAX_SIZE)?,
            vocabulary: size("vocab_size", self.vocab_size, 1 << 24)?,
            norm_eps: norm_eps as f32,
            rope,
            sliding,
            query_scalar: query_scalar as f32,
            qkv_bias: family.qkv_bias.unwrap_or(attention_bias),
            output_bias: family.qkv_bias.is_none() && attention_bias,
            mlp_bias: family.model_type == "llama" && self.mlp_bias.unwrap_or(false),
            qk_norm: family.qk_norm,
            post_norms: family.is_gemma,
            norms_less_one: family.is_gemma,
            scaled_embedding: family.is_gemma,
            activation,
            tied: self.tie_word_embeddings.unwrap_or(false),
            fp8_block,
        })
    }

    fn family(&self) -> Result<&'static Family, String> {
        let supported = || FAMILIES.map(|family| family.model_type).join(", ");
        let Some(model_type) = &self.model_type else {
            return Err(format!("model_type is missing, supported: {}", supported()));
        };
        let Some(family) = FAMILIES
            .iter()
            .find(|family| family.model_type == model_type)
        else {
            return Err(format!(
                "model_type is {model_type:?}, supported: {}",
                supported()
            ));
        };
        // A classifier or embedder of the same family has different outputs.
        if let Some(architectures) = &self.architectures
            && !architectures.iter().any(|name| name == family.architecture)
        {
            return Err(format!(
                "architectures is {architectures:?}, supported for {model_type}: {:?}",
                family.architecture
            ));
        }
        Ok(family)
    }

    /// Returns an error for a sliding window that is in use, unless it covers all of the model's `positions` and so
    /// equals full attention.
    fn check_window(&self, family: &Family, positions: u64) -> Result<(), String> {
        let used = self.use_sliding_window.unwrap_or(!family.window_is_opt_in);
        let covers = self.sliding_window.is_none_or(|window| window >= positions);
        let layers_slide = self
            .layer_types
            .as_ref()
            .is_some_and(|types| types.iter().any(|name| name != "full_attention"));
        if !covers && (used || layers_slide) {
            return Err(format!(
                "sliding_window is {}, supported: null, at least the model's {positions} positions, or \
                 use_sliding_window false",
                self.sliding_window.unwrap_or_default()
            ));
        }
        if layers_slide && self.sliding_window.is_none() {
            return Err(format!(
                "layer_types is {:?}, supported: \"full_attention\"",
                self.layer_types.as_deref().unwrap_or_default()
            ));
        }
        Ok(())
    }
}

/// Reads the value of `eos_token_id`: one token, a list of tokens, or null for none.
fn eos_tokens(value: &Value) -> Result<Vec<u32>, String> {
    let one = |value: &Value| {
        value
            .as_u64()
            .and_then(|token| u32::try_from(token).ok())
            .ok_or_else(|| {
                format!("eos_token_id is {value}, supported: a token or a list of tokens")
            })
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;
    use serde_json::json;

    fn base() -> Value {
        json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2,
        })
    }

    fn with(changes: Value) -> Result<ModelConfig, CheckpointError> {
        let mut value = base();
        for (key, change) in changes.as_object().unwrap() {
            value[key] = change.clone();
        }
        ModelConfig::parse(&value.to_string())
    }

    fn refused(changes: Value) -> String {
        with(changes).unwrap_err().to_string()
    }

    #[test]
    fn families_differ_in_biases_norms_and_head_width() {
        let llama = with(json!({})).unwrap();
        assert_eq!((llama.head_dim, llama.group()), (16, 2));
        assert!(!llama.qkv_bias && !llama.output_bias && !llama.qk_norm && !llama.tied);
        let llama =
            with(json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true}))
                .unwrap();
        assert!(llama.qkv_bias && llama.output_bias && llama.mlp_bias && llama.tied);
        let qwen2 =
            with(json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
        let qwen3 =
            with(json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})).unwrap();
        assert!(!qwen3.qkv_bias && qwen3.qk_norm);
        assert_eq!(qwen3.head_dim, 128);
    }

    #[test]
    fn work_is_counted_by_matrices_and_positions() {
        let llama = with(json!({})).unwrap();
        // Two layers: queries and output 64 x 64, keys and values 64 x 32, three of 64 x 128.
        let matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128);
        assert_eq!(llama.decode_bytes(0, 0), 2 * (matrices + 100 * 64));
        assert_eq!(
            llama.decode_bytes(3, 10) - llama.decode_bytes(0, 0),
            3 * 10 * 2 * 2 * 2 * 32
        );
        // A token after four others: five positions, 64 values in a row of heads, four operations each, in two layers.
        let attention = f64::from(2 * 5 * 64 * 4);
        assert_eq!(
            llama.flops(4, 1, 1),
            2.0 * (matrices + 6400) as f64 + attention
        );
        let cut = llama.flops(0, 4, 0) + llama.flops(4, 3, 0);
        assert_eq!(cut, llama.flops(0, 7, 0));
    }

    #[test]
    fn eos_tokens_are_one_or_many() {
        assert_eq!(
            with(json!({"eos_token_id": [7, 9]})).unwrap().eos_tokens,
            [7, 9]
        );
        assert_eq!(
            with(json!({"eos_token_id": null})).unwrap().eos_tokens,
            [0u32; 0]
        );
        assert!(refused(json!({"eos_token_id": -1})).contains("eos_token_id is -1"));
    }

    #[test]
    fn generation_config_has_the_last_word_on_eos_and_sampling() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        let error = ModelConfig::load(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("merge it into its base model"), "{error}");
        std::fs::write(folder.path().join("config.json"), base().to_string()).unwrap();
        assert_eq!(ModelConfig::load(folder.path()).unwrap().eos_tokens, [2]);
        std::fs::write(
            folder.path().join("generation_config.json"),
            r#"{"eos_token_id": [3, 2]}"#,
        )
        .unwrap();
        assert_eq!(ModelConfig::load(folder.path()).unwrap().eos_tokens, [3, 2]);
        std::fs::write(
            folder.path().join("generation_config.json"),
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null}"#,
        )
        .unwrap();
        let sampling = ModelConfig::load(folder.path()).unwrap().sampling;
        let own = SamplingFields {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            ..SamplingFields::default()
        };
        assert_eq!(sampling, own);
        std::fs::write(
            folder.path().join("generation_config.json"),
            r#"{"top_p": 0}"#,
        )
        .unwrap();
        let error = ModelConfig::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("top_p is 0"), "{error}");
        std::fs::write(folder.path().join("generation_config.json"), "{").unwrap();
        let error = ModelConfig::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{error}");
    }

    #[test]
    fn a_sliding_window_is_refused_where_it_would_matter() {
        let mistral = json!({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 256});
        assert!(refused(mistral.clone()).contains("sliding_window is 256"));
        let mut covering = mistral.clone();
        covering["sliding_window"] = json!(512);
        assert!(with(covering).is_ok());
        let qwen = json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "sliding_window": 256});
        assert!(with(qwen.clone()).is_ok());
        let mut used = qwen;
        used["use_sliding_window"] = json!(true);
        assert!(refused(used).contains("sliding_window is 256"));
        assert!(refused(json!({"layer_types": ["sliding_attention"]})).contains("layer_types"));
    }

    #[test]
    fn whatever_stands_in_a_field_is_refused_or_can_be_counted_with() {
        let values = json!([
            null, true, -1, 0, 1, 2, 7, 64, 1 << 20, (1 << 20) + 1, 1_u64 << 27, u64::MAX, 1e-300, 1e300, "x", [], [u64::MAX],
            {}, {"rope_type": "linear", "factor": 1e300}, ["sliding_attention", "full_attention"],
            {"full_attention": {"rope_theta": 1e300}, "sliding_attention": {"rope_type": "linear", "factor": 1e300}},
            {"rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 1e300},
            {"rope_type": "llama3", "factor": 1e-300, "low_freq_factor": 1e-300, "high_freq_factor": 1e300,
                "original_max_position_embeddings": 1e300},
        ]);
        let values = values.as_array().unwrap();
        let fields = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position_embeddings",
            "rms_norm_eps",
            "eos_token_id",
            "sliding_window",
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "partial_rotary_factor",
            "quantization_config",
            "layer_types",
            "sliding_window_pattern",
            "query_pre_attn_scalar",
            "rope_local_base_freq",
            "text_config",
        ];
        let mut random = Random::new(4);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut changed = base();
            if random.below(2) == 0 {
                changed["model_type"] = gemma::TEXT.into();
                changed["architectures"] = Value::Null;
            }
            for _ in 0..=random.below(3) {
                let field = fields[random.below(fields.len() as u64) as usize];
                changed[field] = values[random.below(values.len() as u64) as usize].clone();
            }
            if let Ok(config) = ModelConfig::parse(&changed.to_string()) {
                assert!(config.flops(1 << 20, 1 << 20, 1) > 0.0);
                assert!(config.decode_bytes(1 << 8, 1 << 20) > 0);
                assert!(u64::from(config.max_positions) <= MAX_POSITIONS);
                assert_eq!(config.rope.frequencies.len(), config.head_dim / 2);
                let sliding = config.sliding.map(|sliding| sliding.layers.len());
                assert!(sliding.is_none_or(|layers| layers == config.layers));
                taken += 1;
            }
        }
        assert!(taken > 1_000, "{taken} configurations were taken");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (changes, expected) in [
            (
                json!({"model_type": "gemma2"}),
                "model_type is \"gemma2\", supported: llama, mistral, qwen2, qwen3, gemma3_text, gemma3",
            ),
            (json!({"model_type": null}), "model_type is missing"),
            (
                json!({"architectures": ["LlamaForSequenceClassification"]}),
                "LlamaForSequenceClassification",
            ),
            (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\""),
            (
                json!({"quantization_config": {"quant_method": "awq"}}),
                "quantization_config",
            ),
            (
                json!({"num_key_value_heads": 3}),
                "not a multiple of num_key_value_heads 3",
            ),
            (
                json!({"num_key_value_heads": 0}),
                "num_key_value_heads is 0, supported: 1 to",
            ),
            (json!({"hidden_size": null}), "hidden_size is missing"),
            (
                json!({"hidden_size": 66}),
                "not a multiple of num_attention_heads",
            ),
            (json!({"head_dim": 15}), "head_dim is 15, not even"),
            (
                json!({"head_dim": 512}),
                "head_dim is 512, supported: 1 to 256",
            ),
            (
                json!({"vocab_size": u64::MAX}),
                "vocab_size is 18446744073709551615",
            ),
            (json!({"hidden_size": -4}), "invalid value"),
            (json!({"rms_norm_eps": -1.0}), "rms_norm_eps is -1"),
        ] {
            let error = refused(changes);
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
        assert!(ModelConfig::parse("[1]").is_err());
    }
}
