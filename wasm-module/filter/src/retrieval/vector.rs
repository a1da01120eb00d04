//! Reads a question's vector: a JSON array of numbers, or little-endian `f32` values in base64 (RFC 4648), as in
//! OpenAI's `encoding_format: "base64"`.

use serde_json::Value;

/// The maximum number of components of a question's embedding vector. The similarity cache accepts only the configured
/// number.
const MAX_DIMENSIONS: usize = 16_384;

/// Reads an embedding vector from a JSON array of numbers or a string in base64. `None` if the value is neither, if the
/// vector is empty or too long, or if a component is not finite.
pub(super) fn from_json(value: &Value) -> Option<Vec<f32>> {
    let vector = match value {
        Value::String(text) => from_base64(text.as_bytes())?,
        Value::Array(numbers) if numbers.len() <= MAX_DIMENSIONS => {
            let numbers = numbers.iter();
            numbers
                .map(|number| number.as_f64().map(|number| number as f32))
                .collect::<Option<Vec<f32>>>()?
        }
        _ => return None,
    };
    checked(vector)
}

/// Reads an embedding vector in base64 (little-endian `f32` values), with or without padding. `None` for any other
/// text, if the vector is empty or too long, or if a component is not finite.
pub(super) fn from_header(value: &[u8]) -> Option<Vec<f32>> {
    checked(from_base64(value.trim_ascii())?)
}

fn checked(vector: Vec<f32>) -> Option<Vec<f32>> {
    let is_one = !vector.is_empty() && vector.iter().all(|value| value.is_finite());
    is_one.then_some(vector)
}

fn from_base64(text: &[u8]) -> Option<Vec<f32>> {
    let bare = text.strip_suffix(b"=").unwrap_or(text);
    let bare = bare.strip_suffix(b"=").unwrap_or(bare);
    // Three bytes have four digits.
    if bare.len() > MAX_DIMENSIONS.saturating_mul(16).div_ceil(3) {
        return None;
    }
    let mut bytes = Vec::with_capacity(bare.len());
    for group in bare.chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let digit = group.get(place).map_or(Some(0), |&byte| digit(byte))?;
            bits = bits << 6 | digit;
        }
        // Two digits make a byte, three make two, one makes none.
        let whole = group.len().checked_sub(1).filter(|&whole| whole > 0)?;
        let [_, made @ ..] = bits.to_be_bytes();
        bytes.extend(made.iter().take(whole));
    }
    let (words, rest) = bytes.as_chunks::<4>();
    let vector = words.iter().map(|word| f32::from_le_bytes(*word));
    rest.is_empty().then(|| vector.collect())
}

/// Encodes an embedding vector in base64 (little-endian `f32` values), without padding.
pub(super) fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..=group.len() {
            let place = u32::try_from(place).unwrap_or_default();
            let shift = 18_u32.saturating_sub(place.saturating_mul(6));
            let digit = usize::try_from(bits >> shift & 63).unwrap_or_default();
            text.extend(DIGITS.get(digit).copied().map(char::from));
        }
    }
    text
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn digit(byte: u8) -> Option<u32> {
    let from = |first: u8, value: u32| u32::from(byte.saturating_sub(first)).saturating_add(value);
    match byte {
        b'A'..=b'Z' => Some(from(b'A', 0)),
        b'a'..=b'z' => Some(from(b'a', 26)),
        b'0'..=b'9' => Some(from(b'0', 52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_and_base64_say_the_same() {
        // As encoded by the host.
        for (text, vector) in [
            ("AACAPwAAAL8=", vec![1.0, -0.5]),
            ("AACAPw==", vec![1.0]),
            ("AACAPw", vec![1.0]),
            ("AAAAAAAAAAAAAABA", vec![0.0, 0.0, 2.0]),
        ] {
            assert_eq!(from_json(&json!(text)).as_ref(), Some(&vector), "{text}");
            assert_eq!(from_header(text.as_bytes()).as_ref(), Some(&vector));
            assert_eq!(to_base64(&vector), text.trim_end_matches('='));
            assert_eq!(from_json(&json!(vector)), Some(vector));
        }
    }

    #[test]
    fn both_forms_have_the_same_number_of_components_at_most() {
        let longest = vec![0.5_f32; MAX_DIMENSIONS];
        let text = to_base64(&longest);
        assert_eq!(from_header(text.as_bytes()).as_ref(), Some(&longest));
        assert_eq!(from_json(&json!(longest)), Some(longest));
        let longer = vec![0.5_f32; MAX_DIMENSIONS + 1];
        assert_eq!(from_header(to_base64(&longer).as_bytes()), None);
        assert_eq!(from_json(&json!(longer)), None);
    }

    #[test]
    fn what_is_no_vector_is_none() {
        for value in [
            json!([]),
            json!([1, "2"]),
            json!([1e300]),
            json!([null]),
            json!(""),
            json!("AACA"),
            json!("AACAPwAAAL8=="[..11].to_owned() + "A"),
            json!("A"),
            json!("AA=A"),
            json!("ÄÄÄÄ"),
            // Not a number.
            json!("AADAfw=="),
            json!(vec![0.5; 20_000]),
            json!(7),
            json!(null),
        ] {
            let shown = value.to_string();
            assert_eq!(from_json(&value), None, "{}", &shown[..shown.len().min(40)]);
        }
    }
}
