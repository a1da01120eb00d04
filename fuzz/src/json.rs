//! A value: the core's scanner, which is not public, passes over it as a field that nobody knows, and must say of it
//! what `serde_json` says.

use crate::hostile;
use foreword_ordering::{Config, Orderer, Skip, Tenant};
use serde_json::value::RawValue;

pub(crate) fn run(value: &[u8]) {
    let body = [b"{\"x\":", value, b"}"].concat();
    hostile::is_linear(&Config::default(), &body);
    let said = Orderer::new(Config::default()).rewrite(Tenant::default(), &body);
    let is_json = |text| serde_json::from_slice::<&RawValue>(text).is_ok();
    if is_json(value) {
        assert!(matches!(said, Err(Skip::NoDocuments)), "it is one field");
    } else if std::str::from_utf8(value).is_err() {
        assert!(matches!(said, Err(Skip::InvalidUtf8 { .. })));
    } else if !is_json(&body) {
        assert!(matches!(said, Err(Skip::InvalidJson { .. })));
    }
    // Otherwise the value has led out of its field, and may have made a chat.
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let values = [
        r#"[1, -0.5e+10, true, false, null, "a\u00e9\ud83d\ude00\n\/", {}, []]"#,
        r#" { "a" : [ { "b" : "\\" } , 0 ] , "" : 1E-9 } "#,
        "1, \"messages\": [{\"role\": \"user\", \"content\": \"<doc>a</doc>\"}]",
        "\"\u{7f}\u{e9}\u{1f600}\"",
    ];
    let deep = "[".repeat(300) + &"]".repeat(300);
    values
        .iter()
        .map(|value| value.as_bytes().to_vec())
        .chain([deep.into()])
        .chain(["[", "{\"a\":", "[{\"", "1,", "\\u003c"].map(|piece| piece.repeat(60).into()))
        .collect()
}
