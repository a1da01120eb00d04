//! Structs that are read from JSON objects, and from nothing else.
//!
//! serde's derive also reads a struct from an array: `[]` would be a configuration. It generates code for both, for
//! every struct, which takes 10 KB of 150 in the browser's module. [`object!`](crate::object) generates only the other
//! half, and leaves what all structs share, telling keys apart, to one function.

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use std::fmt;

/// Implements `Deserialize` for a struct with a `Default`: fields that an object does not name keep their default.
///
/// ```
/// #[derive(Default)]
/// struct Shape {
///     sides: u32,
///     kind: Option<String>,
/// }
///
/// foreword_ordering::object!(impl<'de> Shape { sides, kind = "type" });
///
/// let shape: Shape = serde_json::from_str(r#"{"type": "square"}"#).unwrap();
/// assert_eq!((shape.sides, shape.kind.as_deref()), (0, Some("square")));
/// assert!(serde_json::from_str::<Shape>(r#"{"size": 1}"#).is_err());
/// ```
///
/// A key that is not listed is an error that lists the known keys, since a misspelt setting would have no effect. So
/// is a key that comes twice. Every field must be listed, 32 at most. A struct may borrow from the text for the
/// lifetime named.
#[macro_export]
macro_rules! object {
    (
        impl<$de:lifetime> $name:ty { $($field:ident $(= $key:literal)?),+ $(,)? }
    ) => {
        impl<$de> ::serde::Deserialize<$de> for $name {
            fn deserialize<D: ::serde::Deserializer<$de>>(deserializer: D) -> Result<Self, D::Error> {
                #[allow(non_camel_case_types)]
                enum At { $($field),+ }
                struct Fields;

                impl<$de> ::serde::de::Visitor<$de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<M: ::serde::de::MapAccess<$de>>(
                        self,
                        mut map: M,
                    ) -> Result<Self::Value, M::Error> {
                        const NAMES: &[&str] = &[$($crate::object!(@name $field $($key)?)),+];
                        let mut keys = $crate::object::Keys::new(NAMES);
                        let mut read = <$name>::default();
                        while let Some(at) = map.next_key_seed(&mut keys)? {
                            match at {
                                $(at if at == At::$field as u32 => read.$field = map.next_value()?,)+
                                // It is one of them.
                                _ => {}
                            }
                        }
                        Ok(read)
                    }
                }

                // A field that is not listed does not compile.
                let _ = |Self { $($field: _),+ }: Self| ();
                deserializer.deserialize_map(Fields)
            }
        }
    };
    (@name $field:ident $key:literal) => { $key };
    (@name $field:ident) => { stringify!($field) };
}

/// Tells an object's keys apart; used by [`object!`](crate::object).
#[doc(hidden)]
pub struct Keys {
    names: &'static [&'static str],
    /// A bit for every name that was read.
    seen: u32,
}

impl Keys {
    #[must_use]
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, seen: 0 }
    }
}

/// Returns the place of the key's name.
impl<'de> DeserializeSeed<'de> for &mut Keys {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for &mut Keys {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        let names = (0_u32..).zip(self.names);
        let Some((at, name)) = names.into_iter().find(|(_, name)| **name == key) else {
            return Err(E::unknown_field(key, self.names));
        };
        let bit = 1_u32.wrapping_shl(at);
        if self.seen & bit != 0 {
            return Err(E::duplicate_field(name));
        }
        self.seen |= bit;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::from_str;

    #[derive(Debug, PartialEq)]
    struct Setting {
        size: u32,
        name: Option<String>,
    }

    impl Default for Setting {
        fn default() -> Self {
            Self {
                size: 7,
                name: None,
            }
        }
    }

    object!(impl<'de> Setting { size, name = "its-name" });

    #[test]
    fn fields_that_are_absent_keep_their_default() {
        let read = |text: &str| from_str::<Setting>(text).unwrap();
        assert_eq!(read("{}"), Setting::default());
        let name = Some("a".to_owned());
        assert_eq!(read(r#"{"its-name": "a"}"#), Setting { size: 7, name });
        // A key may be written with escapes.
        assert_eq!(read(r#"{"\u0073ize": 2}"#).size, 2);
    }

    #[test]
    fn nothing_but_an_object_is_read() {
        for text in ["[]", "[1, null]", "null", "1", r#""size""#] {
            let error = from_str::<Setting>(text).unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_and_repeated_keys_are_named() {
        let error = |text: &str| from_str::<Setting>(text).unwrap_err().to_string();
        let unknown = error(r#"{"name": 1}"#);
        assert!(
            unknown.starts_with("unknown field `name`, expected `size` or `its-name`"),
            "{unknown}"
        );
        let repeated = error(r#"{"size": 1, "size": 1}"#);
        assert!(repeated.starts_with("duplicate field `size`"), "{repeated}");
    }
}
