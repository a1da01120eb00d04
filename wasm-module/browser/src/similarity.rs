//! The class `SimilarityCache`, and an embedder without a model.

use crate::values::{self, refused};
use foreword_similarity::embedding::{HashingEmbedder, MAX_DIMENSIONS};
use foreword_similarity::{RawSimilarity, SimilarityConfig};
use js_sys::{Array, Float32Array, JsString, RegExp};
use serde::Serialize;
use wasm_bindgen::{JsCast, prelude::*};

/// A similarity cache: answers a question with the documents that a retriever found for a nearly identical one.
#[wasm_bindgen]
pub struct SimilarityCache {
    core: foreword_similarity::SimilarityCache,
}

#[wasm_bindgen]
impl SimilarityCache {
    /// Returns an empty cache.
    ///
    /// # Errors
    /// Throws if `config` has an unknown field or a value out of its range, or if the cache might exceed 2 GiB.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_optional_param_type = "SimilarityConfig | null")] config: &JsValue,
    ) -> Result<Self, JsValue> {
        let config: RawSimilarity = values::options("config", config)?;
        let config = SimilarityConfig::try_from(config);
        let config = config.map_err(|error| values::refused_argument("config", error))?;
        let bytes = config.max_bytes_per_cache();
        if bytes > MAX_BYTES {
            return Err(refused(format_args!(
                "config: such a cache may take {bytes} bytes, more than the limit of {MAX_BYTES}; lower capacity, \
                 dimensions, max_documents or max_id_bytes"
            )));
        }
        Ok(Self {
            core: foreword_similarity::SimilarityCache::new(&config),
        })
    }

    /// Returns the documents of the nearest question that accepts this one; `null` means that the caller should search
    /// and insert. `nowMs` is a time in milliseconds from any origin.
    ///
    /// # Errors
    /// Throws if the embedding is invalid for this cache: a wrong length, or a component that is not finite, for
    /// instance.
    #[wasm_bindgen(unchecked_return_type = "Hit | null")]
    pub fn lookup(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Float32Array | number[]")] embedding: &JsValue,
        #[wasm_bindgen(js_name = nowMs, unchecked_param_type = "number")] now_ms: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let (embedding, now_ms) = (vector(embedding)?, time(now_ms)?);
        let Some(hit) = self.core.lookup(&embedding, now_ms).map_err(refused)? else {
            return Ok(JsValue::NULL);
        };
        values::plain(&Hit {
            documents: hit.documents,
            distance: hit.distance,
            age_ms: hit.age_ms,
        })
    }

    /// Records the ids of the documents found for a question, best first.
    ///
    /// # Errors
    /// Throws if the embedding is invalid for this cache, there are too many documents, or an id is too long.
    pub fn insert(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Float32Array | number[]")] embedding: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "string[]")] documents: &JsValue,
        #[wasm_bindgen(js_name = nowMs, unchecked_param_type = "number")] now_ms: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "number | null")] tolerance: &JsValue,
    ) -> Result<(), JsValue> {
        let (embedding, now_ms) = (vector(embedding)?, time(now_ms)?);
        let documents: Vec<String> = values::list("documents", documents)?;
        let tolerance = if values::is_absent(tolerance) {
            None
        } else {
            Some(values::real("tolerance", tolerance)?)
        };
        (self.core)
            .insert(&embedding, &documents, tolerance, now_ms)
            .map_err(refused)
    }

    /// Removes every entry with one of these documents, and returns how many there were.
    ///
    /// # Errors
    /// Throws if `documents` is not a list of strings.
    pub fn invalidate(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "string[]")] documents: &JsValue,
    ) -> Result<f64, JsValue> {
        let documents: Vec<String> = values::list("documents", documents)?;
        Ok(self.core.invalidate(&documents) as f64)
    }

    /// Returns the number of entries.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn entries(&self) -> f64 {
        self.core.len() as f64
    }
}

/// Most bytes of a cache: half of a module's address space.
const MAX_BYTES: u64 = 2 << 30;

/// Returns a text's vector of length 1, without a model: hashed words and their parts. Texts are near when they share
/// words. A text without letters and digits gets the zero vector, as does one whose features cancel out.
///
/// # Errors
/// Throws if `dimensions` is out of range.
#[wasm_bindgen]
pub fn embed(
    #[wasm_bindgen(unchecked_param_type = "string")] text: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "number")] dimensions: &JsValue,
) -> Result<Float32Array, JsValue> {
    let text = values::string("text", text)?;
    let dimensions = values::whole("dimensions", dimensions, None, (1, MAX_DIMENSIONS.into()))?;
    let dimensions = u32::try_from(dimensions).unwrap_or(MAX_DIMENSIONS);
    let embedder = HashingEmbedder::new(dimensions).map_err(refused)?;
    let words = words(text);
    let vector = embedder.embed_words(words.split(' '));
    let vector = vector.unwrap_or_else(|| vec![0.0; dimensions as usize]);
    Ok(Float32Array::from(vector.as_slice()))
}

/// Returns a text's words in lower case, joined by spaces. The embedder could compute the same; the JavaScript engine's
/// letter tables save including them in the module.
fn words(text: &JsString) -> String {
    let words = RegExp::new(r"[\p{Alphabetic}\p{N}]+", "gu");
    let found = text.to_lower_case().match_(&words);
    found.map_or_else(String::new, |found| {
        found.unchecked_into::<Array>().join(" ").into()
    })
}

fn vector(value: &JsValue) -> Result<Vec<f32>, JsValue> {
    // A detached array, whose length is 0, would throw while it is copied and so leave the cache locked.
    if let Some(array) = value.dyn_ref::<Float32Array>() {
        return Ok(match array.length() {
            0 => Vec::new(),
            length if length > MAX_DIMENSIONS => {
                return Err(refused("embedding: too many components"));
            }
            _ => array.to_vec(),
        });
    }
    let numbers: Vec<f64> = values::list("embedding", value)?;
    Ok(numbers.into_iter().map(|number| number as f32).collect())
}

fn time(value: &JsValue) -> Result<u64, JsValue> {
    // 285,000 years in milliseconds, the largest integer that a JavaScript number counts exactly.
    const LATEST: u64 = (1 << 53) - 1;
    Ok(values::real("nowMs", value)?.clamp(0.0, LATEST as f64) as u64)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hit<'a> {
    documents: &'a [Box<str>],
    distance: f32,
    age_ms: u64,
}
