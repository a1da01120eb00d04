//! The fields of `config.json` as written, before validation.

use super::rope::RawRope;
use serde::Deserialize;
use serde_json::Value;

/// The fields of a `config.json`, as written, before validation.
#[derive(Deserialize)]
pub(super) struct Raw {
    pub(super) model_type: Option<String>,
    pub(super) architectures: Option<Vec<String>>,
    pub(super) hidden_size: Option<u64>,
    pub(super) num_hidden_layers: Option<u64>,
    pub(super) num_attention_heads: Option<u64>,
    pub(super) num_key_value_heads: Option<u64>,
    pub(super) head_dim: Option<u64>,
    pub(super) intermediate_size: Option<u64>,
    pub(super) vocab_size: Option<u64>,
    pub(super) max_position_embeddings: Option<u64>,
    pub(super) rms_norm_eps: Option<f64>,
    pub(super) hidden_act: Option<String>,
    pub(super) attention_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    pub(super) tie_word_embeddings: Option<bool>,
    pub(super) sliding_window: Option<u64>,
    pub(super) use_sliding_window: Option<bool>,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) quantization_config: Option<Value>,
    pub(super) eos_token_id: Option<Value>,
    pub(super) hidden_activation: Option<String>,
    pub(super) query_pre_attn_scalar: Option<f64>,
    pub(super) sliding_window_pattern: Option<u64>,
    pub(super) use_bidirectional_attention: Option<bool>,
    pub(super) attn_logit_softcapping: Option<f64>,
    pub(super) final_logit_softcapping: Option<f64>,
    /// Configuration of the text model; only present in the configuration of a model with a vision tower.
    pub(super) text_config: Option<Value>,
    #[serde(flatten)]
    pub(super) rope: RawRope,
}

/// Maximum number of positions that a configuration may state.
pub(super) const MAX_POSITIONS: u64 = 1 << 27;

/// Returns the value of the field `name`, which must be present and between 1 and `limit`.
pub(super) fn size(name: &str, value: Option<u64>, limit: u64) -> Result<usize, String> {
    match value {
        None => Err(format!("{name} is missing")),
        Some(value) if (1..=limit).contains(&value) => Ok(value as usize),
        Some(value) => Err(format!("{name} is {value}, supported: 1 to {limit}")),
    }
}
