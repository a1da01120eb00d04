//! Gemma 3: its layers with a sliding window, and its configurations, which leave most values out.
//!
//! ```text
//!   layer      0        1        …  4        5      6        …
//!   attends    window   window   …  window   all    window   …      every `sliding_window_pattern`-th layer to all
//!   rotates    local    local    …  local    full   local    …
//! ```
//!
//! Published configurations state only what differs from the defaults of `Gemma3TextConfig` of transformers. Those of
//! models with a vision tower (`model_type` `gemma3`) contain the text model's configuration as `text_config`.

use super::raw_config::{MAX_POSITIONS, Raw, size};
use super::rope::Rope;
use serde_json::Value;

/// The sliding window of a model, and which of its layers have it: those attend to recent positions only.
#[derive(Clone, Debug)]
pub(crate) struct Sliding {
    /// Number of positions that a token attends to, including its own.
    pub(crate) window: usize,
    /// The rotary embedding of the layers that have the sliding window.
    pub(crate) rope: Rope,
    /// For each layer of the model, true if it has the sliding window, false if it attends to all positions.
    pub(crate) layers: Vec<bool>,
}

impl Sliding {
    /// Reads the size of the window from `raw`, and finds which of the model's `layers` layers have it. `rope` is the
    /// rotary embedding of these layers.
    pub(super) fn resolve(raw: &Raw, layers: usize, rope: Rope) -> Result<Self, String> {
        let slides = |name: &String| match name.as_str() {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(format!(
                "layer_types has {other:?}, supported: \"sliding_attention\", \"full_attention\""
            )),
        };
        let layers: Vec<bool> = match &raw.layer_types {
            Some(types) if types.len() != layers => {
                return Err(format!(
                    "layer_types has {} layers, num_hidden_layers is {layers}",
                    types.len()
                ));
            }
            Some(types) => types.iter().map(slides).collect::<Result<_, _>>()?,
            None => {
                let pattern = raw.sliding_window_pattern.or(Some(6));
                let pattern = size("sliding_window_pattern", pattern, MAX_POSITIONS)?;
                (1..=layers).map(|layer| layer % pattern != 0).collect()
            }
        };
        Ok(Self {
            window: size("sliding_window", raw.sliding_window, MAX_POSITIONS)?,
            rope,
            layers,
        })
    }
}

impl Raw {
    /// Returns the text model's configuration, which the configuration of a model with a vision tower contains.
    pub(super) fn into_text(self) -> Result<Self, String> {
        let text = self.text_config.unwrap_or(Value::Null);
        let mut text: Self =
            serde_json::from_value(text).map_err(|error| format!("text_config: {error}"))?;
        if let Some(model_type) = &text.model_type
            && model_type != TEXT
        {
            return Err(format!(
                "text_config: model_type is {model_type:?}, supported: {TEXT:?}"
            ));
        }
        text.model_type = Some(TEXT.to_owned());
        text.architectures = None;
        text.eos_token_id = self.eos_token_id.or(text.eos_token_id);
        text.tie_word_embeddings = self.tie_word_embeddings.or(text.tie_word_embeddings);
        text.quantization_config = self.quantization_config.or(text.quantization_config);
        Ok(text)
    }

    /// Fills in the fields that a Gemma 3 configuration may leave out. Returns an error for options that would change
    /// the arithmetic and are not supported.
    pub(super) fn with_gemma_defaults(mut self) -> Result<Self, String> {
        for (field, default) in [
            (&mut self.vocab_size, 262_208),
            (&mut self.num_attention_heads, 8),
            (&mut self.num_key_value_heads, 4),
            (&mut self.max_position_embeddings, 131_072),
            (&mut self.sliding_window, 4096),
        ] {
            field.get_or_insert(default);
        }
        self.query_pre_attn_scalar.get_or_insert(256.0);
        self.tie_word_embeddings.get_or_insert(true);
        for (name, is_on) in [
            ("attention_bias", self.attention_bias),
            (
                "use_bidirectional_attention",
                self.use_bidirectional_attention,
            ),
        ] {
            if is_on == Some(true) {
                return Err(format!("{name} is true, supported for {TEXT}: false"));
            }
        }
        Ok(self)
    }
}

/// The `model_type` of a Gemma 3 model without a vision tower.
pub(super) const TEXT: &str = "gemma3_text";

#[cfg(test)]
mod tests {
    use super::super::ModelConfig;
    use super::*;
    use serde_json::json;

    /// A configuration as published for the smallest sizes.
    fn text() -> Value {
        json!({
            "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 1152,
            "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "intermediate_size": 6912, "vocab_size": 262_144, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 512,
            "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": null,
            "attn_logit_softcapping": null, "final_logit_softcapping": null, "eos_token_id": [1, 106],
        })
    }

    fn with(changes: Value) -> Result<ModelConfig, String> {
        let mut config = text();
        for (key, change) in changes.as_object().unwrap() {
            config[key] = change.clone();
        }
        ModelConfig::parse(&config.to_string()).map_err(|error| error.reason)
    }

    #[test]
    fn every_sixth_layer_sees_all_and_rotates_slowly() {
        let config = with(json!({})).unwrap();
        let sliding = config.sliding.as_ref().unwrap();
        let full: Vec<usize> = (0..7).filter(|&layer| !sliding.layers[layer]).collect();
        assert_eq!((full, sliding.window), (vec![5], 512));
        assert!(config.tied && config.qk_norm && config.post_norms);
        assert!(sliding.rope.frequencies[1] < 1.0);
        assert!(config.rope.frequencies[1] < sliding.rope.frequencies[1]);
        assert_eq!(config.query_scalar, 256.0);
    }

    #[test]
    fn both_spellings_say_the_same() {
        let old = json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}});
        let kinds: Vec<_> = (1..=7)
            .map(|layer| match layer {
                6 => "full_attention",
                _ => "sliding_attention",
            })
            .collect();
        let new = json!({"rope_theta": null, "rope_local_base_freq": null, "sliding_window_pattern": null,
            "layer_types": kinds, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}});
        let [old, new] = [old, new].map(|changes| format!("{:?}", with(changes).unwrap()));
        assert_eq!(old, new);
    }

    #[test]
    fn a_text_model_within_another_has_the_defaults_of_transformers() {
        let config = json!({
            "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240,
                "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"model_type": "siglip_vision_model"},
        });
        let parsed = ModelConfig::parse(&config.to_string()).unwrap();
        assert!(parsed.ignores_vision && parsed.tied);
        let (heads, positions) = ((parsed.heads, parsed.kv_heads), parsed.max_positions);
        assert_eq!((heads, parsed.head_dim, positions), ((8, 4), 256, 131_072));
        assert_eq!(
            (parsed.vocabulary, &parsed.eos_tokens[..]),
            (262_208, &[1, 106][..])
        );
        assert_eq!(parsed.rope.frequencies[0], 0.125);
        assert_eq!(parsed.sliding.unwrap().rope.frequencies[0], 1.0);

        for (text, expected) in [
            (Value::Null, "text_config: "),
            (
                json!({"model_type": "llama"}),
                "text_config: model_type is \"llama\"",
            ),
            (json!({"hidden_size": 64}), "num_hidden_layers is missing"),
        ] {
            let mut config = config.clone();
            config["text_config"] = text;
            let error = ModelConfig::parse(&config.to_string()).unwrap_err().reason;
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
    }

    #[test]
    fn work_is_counted_within_the_window() {
        let mut config = with(json!({})).unwrap();
        let whole = config.flops(0, 2000, 0);
        assert_eq!(config.flops(0, 700, 0) + config.flops(700, 1300, 0), whole);
        let kv = |config: &ModelConfig, tokens| {
            config.decode_bytes(1, tokens) - config.decode_bytes(0, 0)
        };
        // One layer reads all of 2,000 tokens, and six read 512.
        assert_eq!(kv(&config, 2000) * 7, kv(&config, 1) * (2000 + 6 * 512));
        config.sliding = None;
        // What six layers do not see: for each token after the 512th, those before its window.
        let unseen = (1..=1488).sum::<u64>() * 6 * 4 * 4 * 256;
        assert_eq!(config.flops(0, 2000, 0) - whole, unseen as f64);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (changes, expected) in [
            (
                json!({"final_logit_softcapping": 30.0}),
                "final_logit_softcapping is 30",
            ),
            (
                json!({"attn_logit_softcapping": 50.0}),
                "attn_logit_softcapping is 50",
            ),
            (
                json!({"use_bidirectional_attention": true}),
                "use_bidirectional_attention is true",
            ),
            (json!({"attention_bias": true}), "attention_bias is true"),
            (
                json!({"hidden_activation": "gelu"}),
                "hidden_activation is \"gelu\", supported: \"gelu_pytorch_tanh\"",
            ),
            (
                json!({"query_pre_attn_scalar": 0}),
                "query_pre_attn_scalar is 0",
            ),
            (json!({"sliding_window": 0}), "sliding_window is 0"),
            (
                json!({"sliding_window_pattern": 0}),
                "sliding_window_pattern is 0",
            ),
            (
                json!({"layer_types": ["full_attention"]}),
                "layer_types has 1 layers",
            ),
            (
                json!({"layer_types": vec!["chunked_attention"; 7]}),
                "layer_types has \"chunked_attention\"",
            ),
            (json!({"rope_local_base_freq": 0.5}), "rope_theta is 0.5"),
            (
                json!({"rope_parameters": {"rope_type": "default"}}),
                "full_attention is missing",
            ),
            (
                json!({"rope_parameters": {"full_attention": 3}}),
                "full_attention is 3",
            ),
            (json!({"model_type": "gemma2"}), "model_type is \"gemma2\""),
        ] {
            let error = with(changes).unwrap_err();
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
    }
}
