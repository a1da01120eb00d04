//! Rotary positions: the angle by which each pair of a head's values rotates per position.
//!
//! Angles are computed and returned in f64; the backends tabulate sines and cosines from them. The scalings follow
//! `modeling_rope_utils.py` of transformers (`_compute_llama3_parameters`, `_compute_yarn_parameters`), which computes
//! in f32. The two differ by the f32 rounding of `position * frequency`.
//!
//! Both spellings of the configuration are read: `rope_theta` with `rope_scaling` (transformers 4) and
//! `rope_parameters` (transformers 5).

use serde::Deserialize;
use serde_json::{Map, Value};
use std::f64::consts::TAU;

/// The rotary embedding of a model's layers: a frequency for each pair of a head's values, and a factor on sines and
/// cosines.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians per position by which each pair `(i, i + head_dim / 2)` of a head rotates; `head_dim / 2` values.
    pub(crate) frequencies: Vec<f64>,
    /// Factor by which cosines and sines are multiplied: YaRN's attention temperature; 1 for other scalings.
    pub(crate) magnitude: f64,
    /// Number of positions to which the scaling extends the model; `None` if it states none.
    extended: Option<u64>,
}

impl Rope {
    /// Returns the number of positions that the model supports, given its `max_position_embeddings`: more if the
    /// scaling extends it.
    pub(crate) fn max_positions(&self, configured: u64) -> u64 {
        self.extended
            .map_or(configured, |extended| extended.max(configured))
    }

    /// Divides each frequency by its factor: a rope scaling in the form in which GGUF files state it.
    pub(super) fn divide(&mut self, factors: &[f32]) {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= f64::from(*factor);
        }
    }

    /// Returns cosines and sines for the positions 0 to `positions - 1`, `[positions][cosines: pairs, sines: pairs]`,
    /// computed in f64 and rounded once.
    pub(crate) fn table(&self, positions: u32) -> Vec<f32> {
        let mut table = Vec::with_capacity(positions as usize * self.frequencies.len() * 2);
        for position in 0..positions {
            let angles = self.frequencies.iter();
            let angles = angles.map(|frequency| f64::from(position) * frequency);
            table.extend(
                angles
                    .clone()
                    .map(|angle| (angle.cos() * self.magnitude) as f32),
            );
            table.extend(angles.map(|angle| (angle.sin() * self.magnitude) as f32));
        }
        table
    }
}

/// The fields of `config.json` that describe the rotary embedding.
#[derive(Default, Deserialize)]
pub(super) struct RawRope {
    rope_theta: Option<f64>,
    /// The base of the frequencies in Gemma 3's layers with a sliding window, in the older spelling.
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    partial_rotary_factor: Option<f64>,
}

impl RawRope {
    pub(super) fn resolve(&self, head_dim: usize, positions: u64) -> Result<Rope, String> {
        let (name, map) = match (&self.rope_parameters, &self.rope_scaling) {
            (Some(map), _) => ("rope_parameters", Some(map)),
            (None, map) => ("rope_scaling", map.as_ref()),
        };
        let values = Values { name, map };
        let partial = values
            .number("partial_rotary_factor")?
            .or(self.partial_rotary_factor);
        if let Some(factor) = partial
            && factor != 1.0
        {
            return Err(format!("partial_rotary_factor is {factor}, supported: 1"));
        }
        let theta = values
            .number("rope_theta")?
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(format!("rope_theta is {theta}, supported: above 1"));
        }
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half)
            .map(|i| theta.powf(-((2 * i) as f64) / head_dim as f64))
            .collect();
        let plain = Rope {
            frequencies,
            magnitude: 1.0,
            extended: None,
        };
        match values.kind()? {
            "default" => Ok(plain),
            "linear" => {
                let factor = values.factor()?;
                Ok(Rope {
                    frequencies: plain.frequencies.iter().map(|f| f / factor).collect(),
                    ..plain
                })
            }
            "llama3" => llama3(&values, plain),
            "yarn" => yarn(&values, plain, theta, head_dim, positions),
            other => Err(format!(
                "{name}: rope_type is {other:?}, supported: default, linear, llama3, yarn"
            )),
        }
    }

    /// Returns the rotary embedding of layers that attend to all positions, and that of layers with a sliding window.
    /// Only for Gemma 3, which distinguishes them.
    pub(super) fn resolve_by_layer(
        &self,
        head_dim: usize,
        positions: u64,
    ) -> Result<[Rope; 2], String> {
        let (full, sliding) = (Some(1_000_000.0), Some(10_000.0));
        let kinds = match &self.rope_parameters {
            None => [
                Self {
                    rope_theta: self.rope_theta.or(full),
                    rope_scaling: self.rope_scaling.clone(),
                    partial_rotary_factor: self.partial_rotary_factor,
                    ..Self::default()
                },
                Self {
                    rope_theta: self.rope_local_base_freq.or(sliding),
                    partial_rotary_factor: self.partial_rotary_factor,
                    ..Self::default()
                },
            ],
            Some(kinds) => {
                let of = |kind: &str, rope_theta| match kinds.get(kind) {
                    Some(Value::Object(parameters)) => Ok(Self {
                        rope_theta,
                        rope_parameters: Some(parameters.clone()),
                        partial_rotary_factor: self.partial_rotary_factor,
                        ..Self::default()
                    }),
                    Some(other) => Err(format!(
                        "rope_parameters: {kind} is {other}, supported: an object"
                    )),
                    None => Err(format!("rope_parameters: {kind} is missing")),
                };
                [
                    of("full_attention", full)?,
                    of("sliding_attention", sliding)?,
                ]
            }
        };
        let [full, sliding] = kinds.map(|kind| kind.resolve(head_dim, positions));
        Ok([full?, sliding?])
    }
}

/// Returns `plain` with Llama 3's scaling: divides low frequencies by the factor, keeps high ones, and blends those
/// between.
fn llama3(values: &Values<'_>, plain: Rope) -> Result<Rope, String> {
    let factor = values.factor()?;
    let low = values.positive("low_freq_factor")?;
    let high = values.positive("high_freq_factor")?;
    let original = values.positive("original_max_position_embeddings")?;
    if high <= low {
        return Err(format!(
            "{}: high_freq_factor is {high}, supported: above low_freq_factor ({low})",
            values.name
        ));
    }
    let scaled = |frequency: f64| {
        let turns = original * frequency / TAU;
        let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - keep) * frequency / factor + keep * frequency
    };
    Ok(Rope {
        frequencies: plain.frequencies.iter().copied().map(scaled).collect(),
        ..plain
    })
}

/// Returns `plain` with the scaling YaRN (Peng et al., arXiv 2309.00071, section 3): interpolation by parts, with an
/// attention temperature.
fn yarn(
    values: &Values<'_>,
    plain: Rope,
    theta: f64,
    head_dim: usize,
    positions: u64,
) -> Result<Rope, String> {
    let factor = values.factor()?;
    let original = match values.number("original_max_position_embeddings")? {
        None => positions as f64,
        Some(_) => values.positive("original_max_position_embeddings")?,
    };
    let beta_fast = values.number("beta_fast")?.unwrap_or(32.0);
    let beta_slow = values.number("beta_slow")?.unwrap_or(1.0);
    if !(beta_slow > 0.0 && beta_fast >= beta_slow && beta_fast.is_finite()) {
        return Err(format!(
            "{}: beta_fast is {beta_fast} and beta_slow {beta_slow}, supported: beta_fast >= beta_slow > 0",
            values.name
        ));
    }
    let temperature = |scale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * scale * factor.ln() + 1.0
        }
    };
    let magnitude = match (
        values.number("attention_factor")?,
        values.number("mscale")?,
        values.number("mscale_all_dim")?,
    ) {
        (Some(factor), _, _) => factor,
        (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
            temperature(one) / temperature(all)
        }
        _ => temperature(1.0),
    };
    if !(magnitude.is_finite() && magnitude > 0.0) {
        return Err(format!(
            "{}: the attention factor is {magnitude}, supported: above 0",
            values.name
        ));
    }

    let width = head_dim as f64;
    // Index of the pair that rotates `rotations` times within the original positions.
    let pair = |rotations: f64| width * (original / (rotations * TAU)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
    if values.flag("truncate")?.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(width - 1.0));
    if low == high {
        high += 0.001;
    }
    let scaled = |(i, frequency): (usize, &f64)| {
        let interpolate = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        interpolate * frequency / factor + (1.0 - interpolate) * frequency
    };
    Ok(Rope {
        frequencies: plain.frequencies.iter().enumerate().map(scaled).collect(),
        magnitude,
        extended: Some((original * factor).min(u32::MAX.into()) as u64),
    })
}

/// The values of a rope scaling in `config.json`, with errors that name the object that contains them.
struct Values<'a> {
    name: &'static str,
    map: Option<&'a Map<String, Value>>,
}

impl Values<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map?.get(key).filter(|value| !value.is_null())
    }

    fn kind(&self) -> Result<&str, String> {
        let Some(value) = self.get("rope_type").or_else(|| self.get("type")) else {
            // Nested objects are parameters by layer type, which only Gemma 3 has.
            return match self
                .map
                .and_then(|map| map.iter().find(|(_, value)| value.is_object()))
            {
                Some((key, _)) => Err(format!(
                    "{}: {key} is an object, supported: one set of values",
                    self.name
                )),
                None if self.get("factor").is_some() => {
                    Err(format!("{}: rope_type is missing", self.name))
                }
                None => Ok("default"),
            };
        };
        value
            .as_str()
            .ok_or_else(|| format!("{}: rope_type is {value}, supported: a string", self.name))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|number| number.is_finite());
        number
            .map(Some)
            .ok_or_else(|| format!("{}: {key} is {value}, supported: a number", self.name))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| format!("{}: {key} is {value}, supported: true or false", self.name))
    }

    fn positive(&self, key: &str) -> Result<f64, String> {
        match self.number(key)? {
            None => Err(format!("{}: {key} is missing", self.name)),
            Some(value) if value > 0.0 => Ok(value),
            Some(value) => Err(format!(
                "{}: {key} is {value}, supported: above 0",
                self.name
            )),
        }
    }

    fn factor(&self) -> Result<f64, String> {
        match self.positive("factor")? {
            factor if factor >= 1.0 => Ok(factor),
            factor => Err(format!(
                "{}: factor is {factor}, supported: at least 1",
                self.name
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(value: Value) -> Result<Rope, String> {
        serde_json::from_value::<RawRope>(value)
            .unwrap()
            .resolve(64, 1024)
    }

    #[test]
    fn both_spellings_say_the_same() {
        let scaling = json!({"rope_type": "linear", "factor": 4.0});
        let old = resolve(json!({"rope_theta": 5e5, "rope_scaling": scaling})).unwrap();
        let new = resolve(
            json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}}),
        )
        .unwrap();
        let older =
            resolve(json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}))
                .unwrap();
        assert_eq!(old.frequencies, new.frequencies);
        assert_eq!(old.frequencies, older.frequencies);
        assert_eq!(old.frequencies[0], 0.25);
        assert_eq!(resolve(json!({})).unwrap().frequencies.len(), 32);
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaled = resolve(json!({"rope_theta": 5e5, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}}))
        .unwrap();
        let plain = resolve(json!({"rope_theta": 5e5})).unwrap();
        assert_eq!(scaled.frequencies[0], plain.frequencies[0]);
        assert_eq!(scaled.frequencies[31], plain.frequencies[31] / 8.0);
        let blended = plain
            .frequencies
            .iter()
            .zip(&scaled.frequencies)
            .filter(|(p, s)| *s < *p && *s * 8.0 > **p);
        assert!(blended.count() > 0);
    }

    #[test]
    fn yarn_keeps_short_waves_stretches_long_ones_and_ramps_between() {
        let rope = resolve(json!({"rope_theta": 1e6, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}))
        .unwrap();
        assert!((rope.magnitude - 1.138_629_436_111_989).abs() < 1e-12);
        assert_eq!(rope.max_positions(32768), 131_072);
        assert_eq!(rope.frequencies[0], 1.0);
        let plain = resolve(json!({"rope_theta": 1e6})).unwrap();
        // The ramp runs from pair floor(11.77) = 11 to ceil(19.80) = 20.
        assert_eq!(rope.frequencies[11], plain.frequencies[11]);
        assert!((rope.frequencies[20] - plain.frequencies[20] / 4.0).abs() < 1e-15);
        let expected = plain.frequencies[14] * (1.0 - 3.0 / 9.0 * 0.75);
        assert!((rope.frequencies[14] - expected).abs() < 1e-15);
    }

    #[test]
    fn unusable_scalings_are_refused_by_name() {
        for (value, expected) in [
            (
                json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
                "rope_type is \"dynamic\"",
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear"}}),
                "factor is missing",
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}),
                "factor is 0.5",
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear", "factor": "x"}}),
                "factor is \"x\"",
            ),
            (
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
                "low_freq_factor is missing",
            ),
            (
                json!({"rope_scaling": {"factor": 8.0}}),
                "rope_type is missing",
            ),
            (
                json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
                "full_attention is an object",
            ),
            (json!({"rope_theta": 0.0}), "rope_theta is 0"),
            (
                json!({"partial_rotary_factor": 0.5}),
                "partial_rotary_factor is 0.5",
            ),
        ] {
            let error = resolve(value).unwrap_err();
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
    }
}
