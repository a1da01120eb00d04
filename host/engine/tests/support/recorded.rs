//! Data that `transformers` recorded, as stored in JSON.

/// Decodes base64 of little-endian f32.
pub(crate) fn floats(text: &str) -> Vec<f32> {
    let digits = text.bytes().filter(|byte| *byte != b'=').map(|byte| {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other} is no base64"),
        };
        u32::from(digit)
    });
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in digits {
        bits = bits << 6 | digit;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(f32::from_le_bytes)
        .collect()
}
