//! Checks values from JavaScript, and creates the plain objects returned. Every error names the argument, the value
//! given and the accepted values.
//!
//! Objects are passed as JSON: a getter that throws in the middle of a call would leave the called object locked.

use foreword_ordering::{Config, RawConfig};
use js_sys::{Error, JSON, JsString, RangeError, TypeError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

/// Returns an `Error` with `reason` as its message.
pub(crate) fn refused<R: Display>(reason: R) -> JsValue {
    fn told(reason: &dyn Display) -> JsValue {
        Error::new(&reason.to_string()).into()
    }
    told(&reason)
}

/// Returns an `Error` for an argument, with `reason` in its message.
pub(crate) fn refused_argument(name: &str, reason: impl Display) -> JsValue {
    refused(format_args!("{name}: {reason}"))
}

pub(crate) fn text(name: &str, value: &JsValue) -> Result<String, JsValue> {
    value
        .as_string()
        .ok_or_else(|| wrong_type(name, value, "a string"))
}

/// Reads a tenant's name; an absent one is empty.
pub(crate) fn tenant(value: &JsValue) -> Result<String, JsValue> {
    if is_absent(value) {
        return Ok(String::new());
    }
    text("tenant", value)
}

/// Reads the gateway's `ordering`; the default if it is absent.
pub(crate) fn config(value: &JsValue) -> Result<Config, JsValue> {
    let config: RawConfig = options("config", value)?;
    Config::try_from(config).map_err(|error| refused_argument("config", error))
}

/// Checks that a value is a string, without copying it.
pub(crate) fn string<'v>(name: &str, value: &'v JsValue) -> Result<&'v JsString, JsValue> {
    value
        .dyn_ref::<JsString>()
        .ok_or_else(|| wrong_type(name, value, "a string"))
}

/// Copies a `Uint8Array`; `None` if it has more than `most` bytes.
pub(crate) fn bytes(name: &str, value: &JsValue, most: u64) -> Result<Option<Vec<u8>>, JsValue> {
    let array = value.dyn_ref::<js_sys::Uint8Array>();
    let array = array.ok_or_else(|| wrong_type(name, value, "a Uint8Array"))?;
    let length = array.unchecked_ref::<TypedArray>().byte_length();
    Ok(if length > most as f64 {
        None
    } else if length == 0.0 {
        // Copying from a detached array, whose length is 0, throws and so would leave the called object locked.
        Some(Vec::new())
    } else {
        Some(array.to_vec())
    })
}

#[wasm_bindgen]
extern "C" {
    /// An array's length in bytes, which may be more than a `u32` holds.
    #[wasm_bindgen(method, getter, js_name = byteLength)]
    fn byte_length(this: &TypedArray) -> f64;
    type TypedArray;

    /// Throws for a revoked proxy, which would leave the called object locked if it were not caught.
    #[wasm_bindgen(catch, js_namespace = Array, js_name = isArray)]
    fn is_array(value: &JsValue) -> Result<bool, JsValue>;
}

/// Reads a whole number from `low` to `high`; `default`, if there is one, for an absent value.
pub(crate) fn whole(
    name: &str,
    value: &JsValue,
    default: Option<u64>,
    (low, high): (u64, u64),
) -> Result<u64, JsValue> {
    if let (true, Some(default)) = (is_absent(value), default) {
        return Ok(default);
    }
    let number = value
        .as_f64()
        .ok_or_else(|| wrong_type(name, value, "a number"))?;
    // Beyond 2^53 a double is not exact; no limit is that large.
    let is_whole = number.fract() == 0.0 && (low as f64..=high as f64).contains(&number);
    if is_whole {
        Ok(number as u64)
    } else {
        let reason = format!("{name}: {number} is not a whole number from {low} to {high}");
        Err(RangeError::new(&reason).into())
    }
}

/// Reads a number that is not NaN.
pub(crate) fn real(name: &str, value: &JsValue) -> Result<f64, JsValue> {
    let number = value
        .as_f64()
        .ok_or_else(|| wrong_type(name, value, "a number"))?;
    if number.is_nan() {
        return Err(RangeError::new(&format!("{name}: NaN is not a number")).into());
    }
    Ok(number)
}

/// Reads an object as JSON; `T`'s default if it is absent. Errors have serde's message.
pub(crate) fn options<T: DeserializeOwned + Default>(
    name: &str,
    value: &JsValue,
) -> Result<T, JsValue> {
    if is_absent(value) {
        return Ok(T::default());
    }
    parsed(name, &json(name, value, &JsValue::NULL)?)
}

/// Reads an array as JSON.
pub(crate) fn list<T: DeserializeOwned>(name: &str, value: &JsValue) -> Result<Vec<T>, JsValue> {
    objects(name, value, &JsValue::NULL)
}

/// Reads an array of objects. If `fields` is an array, only the fields that it names are read.
pub(crate) fn objects<T: DeserializeOwned>(
    name: &str,
    value: &JsValue,
    fields: &JsValue,
) -> Result<Vec<T>, JsValue> {
    if !is_array(value).unwrap_or_default() {
        return Err(wrong_type(name, value, "an array"));
    }
    parsed(name, &json(name, value, fields)?)
}

fn parsed<T: DeserializeOwned>(name: &str, json: &str) -> Result<T, JsValue> {
    serde_json::from_str(json).map_err(|error| refused_argument(name, without_place(&error)))
}

/// Returns the JSON of an object or array, with only the fields named in `fields` if that is an array.
fn json(name: &str, value: &JsValue, fields: &JsValue) -> Result<String, JsValue> {
    if !value.is_object() {
        return Err(wrong_type(name, value, "an object"));
    }
    let text = JSON::stringify_with_replacer(value, fields)
        .map_err(|_| refused_argument(name, "it cannot be written as JSON"))?;
    text.as_string()
        .map(well_formed)
        .ok_or_else(|| wrong_type(name, value, "an object"))
}

/// Replaces unpaired surrogates, which serde refuses, with U+FFFD: a text that is cut in the middle of an emoji has one.
/// `JSON.stringify` writes `\ud…` only for these.
fn well_formed(json: String) -> String {
    let mut json = json.into_bytes();
    // How many bytes of such an escape have been read; the last four of its six are replaced.
    let mut begun = 0;
    for byte in &mut json {
        begun = match (begun, *byte) {
            (0, b'\\') => 1,
            (1, b'u') => 2,
            (2, b'd') | (3 | 4, _) => {
                *byte = b'f';
                begun + 1
            }
            (5, _) => {
                *byte = b'd';
                0
            }
            _ => 0,
        };
    }
    String::from_utf8(json).unwrap_or_default()
}

/// Converts `value` to plain JavaScript objects, arrays and values.
pub(crate) fn plain(value: &impl Serialize) -> Result<JsValue, JsValue> {
    value
        .serialize(&serde_wasm_bindgen::Serializer::json_compatible())
        .map_err(|error| refused(error.to_string()))
}

/// Returns whether a value is `undefined` or `null`.
pub(crate) fn is_absent(value: &JsValue) -> bool {
    value.is_undefined() || value.is_null()
}

/// Returns serde's message without the line and column, which refer to JSON that the caller never saw.
fn without_place(error: &impl Display) -> String {
    let words = error.to_string();
    match words.split_once(" at line ") {
        Some((words, _)) => words.to_owned(),
        None => words,
    }
}

fn wrong_type(name: &str, value: &JsValue, wanted: &str) -> JsValue {
    let given = if value.is_null() {
        "null".to_owned()
    } else {
        value.js_typeof().as_string().unwrap_or_default()
    };
    TypeError::new(&format!("{name} must be {wanted}, not {given}")).into()
}
