//! Sizes in bytes as arguments.

/// Units and their bytes. Without single letters on purpose: `1G` is 10⁹ bytes to Kubernetes and 2³⁰ to vLLM.
const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
];

/// Parses a number of bytes, or a number with a unit: `1073741824`, `1GiB`, `1.5 GB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || "it must be bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB".to_owned();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    if unit.is_empty() {
        return number.parse().map_err(|_| wrong());
    }
    let (_, bytes) = (UNITS.iter())
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(*bytes)
            .ok_or_else(|| "it is more than 2^64 bytes".to_owned());
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let size = number * *bytes as f64;
    // Below 2^63, the product is exact enough and the conversion does not saturate.
    (size < i64::MAX as f64)
        .then_some(size as u64)
        .ok_or_else(|| "it is more than 2^63 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("512MiB", 512 << 20),
            ("512Mi", 512 << 20),
            ("2GB", 2_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("7B", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "GiB", "1G", "1g", "-1", "1.5", "1..5GB", "1GiB2", "१GB", "1e9",
        ] {
            assert!(size(text).unwrap_err().starts_with("it must be"), "{text}");
        }
        for text in ["99999999999TiB", "99999999999.5TiB"] {
            assert!(size(text).unwrap_err().contains("more than"), "{text}");
        }
    }
}
