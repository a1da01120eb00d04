//! Tests the encoder against results of the transformers package (5.17.0 on torch 2.11.0: `AutoModel`, mean of the last
//! hidden states over the attention mask, length 1, truncated at 256 tokens).
//!
//! They are skipped, with a message, if the weights are missing: `cargo xtask setup-embedder` downloads them, or
//! `FOREWORD_EMBEDDER` names their folder.

use foreword_retrieval::embedder::{EmbedError, Embedder, MiniLm};
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Reference {
    text: String,
    tokens: u32,
    vector: Vec<f32>,
}

fn weights() -> Option<PathBuf> {
    let fetched =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/embedder/all-MiniLM-L6-v2");
    let named = std::env::var_os("FOREWORD_EMBEDDER").map(PathBuf::from);
    let folder = named.unwrap_or(fetched);
    if folder.join("model.safetensors").is_file() {
        return Some(folder);
    }
    eprintln!(
        "skipped: no weights in {}; run `cargo xtask setup-embedder`",
        folder.display()
    );
    None
}

#[test]
fn vectors_are_those_of_the_reference() {
    let Some(folder) = weights() else { return };
    let model = MiniLm::load(&folder).unwrap();
    let reference = include_str!("data/minilm.json");
    let reference: Vec<Reference> = serde_json::from_str(reference).unwrap();
    let texts: Vec<&str> = reference.iter().map(|reference| &*reference.text).collect();
    let together = model.embed(&texts).unwrap();
    assert_eq!(together.len(), reference.len());
    for (found, reference) in together.iter().zip(&reference) {
        assert_eq!(found.tokens, reference.tokens, "{}", reference.text);
        assert_eq!(found.vector.len(), model.dimensions() as usize);
        for (found, expected) in found.vector.iter().zip(&reference.vector) {
            assert!(
                (found - expected).abs() < 1e-5,
                "{found} beside {expected}: {}",
                reference.text
            );
        }
        // The other texts of a batch do not change a text's vector.
        let alone = model.embed(&[&reference.text]).unwrap();
        assert_eq!(alone[0], *found);
    }
}

#[test]
fn a_text_without_words_is_refused_by_its_place() {
    let Some(folder) = weights() else { return };
    let model = MiniLm::load(&folder).unwrap();
    let refused = model.embed(&["fine", "?!"]);
    assert!(matches!(refused, Err(EmbedError::Empty { at: 1 })));
}

#[test]
fn other_models_and_broken_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let told = || MiniLm::load(folder.path()).err().unwrap().to_string();
    assert!(told().contains("config.json: No such file"));
    let config = |kind: &str, hidden: u32| {
        format!(
            r#"{{"model_type": "{kind}", "hidden_act": "gelu", "hidden_size": {hidden}, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 3, "max_position_embeddings": 16,
                "type_vocab_size": 2, "vocab_size": 9, "layer_norm_eps": 1e-12}}"#
        )
    };
    write("config.json", &config("roberta", 6));
    assert!(told().contains("model_type is \"roberta\", supported: \"bert\""));
    write("config.json", &config("bert", 7));
    assert!(told().contains("hidden_size 7 is not a multiple of num_attention_heads 3"));
    write("config.json", &config("bert", 6));
    write(
        "1_Pooling/config.json",
        r#"{"pooling_mode_mean_tokens": true}"#,
    );
    write("sentence_bert_config.json", r#"{"max_seq_length": 17}"#);
    assert!(told().contains("max_seq_length is 17, it must be 2 to 16"));
    write("sentence_bert_config.json", r#"{"max_seq_length": 16}"#);
    write("model.safetensors", "rubbish");
    assert!(told().contains("model.safetensors: 7 bytes are too few"));
}
