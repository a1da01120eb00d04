//! Structs that are deserialised only from JSON objects.
//!
//! Serde's derive also reads a struct from an array: `[]` would be a valid configuration. The derive generates code for
//! both forms and every struct, 10 KB of 150 in the browser's module. [`object!`](crate::object) generates only the
//! object form, and all structs share one function that looks up keys.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, Visitor};
use std::fmt;
use std::ops::RangeInclusive;

/// Implements `Deserialize` for a struct that implements `Default`. The struct is read only from a JSON object; a field
/// that the object does not name keeps its default value, and an unknown name is an error.
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
/// A configuration is a table of fields, each with its default; numbers have a range that [`Ranges::check`] enforces.
/// The text after `in` is the prefix of field names in errors.
///
/// ```
/// use foreword_ordering::object::Ranges;
///
/// foreword_ordering::object! {
///     /// The options of a shape.
///     struct Shape in "shape." {
///         sides: Option<u32> = None; 3..=1_000,
///         kind as "type": String = "polygon".into(),
///     }
/// }
///
/// let shape: Shape = serde_json::from_str(r#"{"sides": 2}"#).unwrap();
/// assert_eq!(shape.kind, "polygon");
/// let error = shape.check().unwrap_err();
/// assert_eq!(error.to_string(), "shape.sides: 2 is out of range, it must be 3 to 1000");
/// ```
///
/// An unknown key is an error that lists the known keys, since a misspelt setting would have no effect; a duplicate key
/// is an error too. All fields must be listed, at most 32. A struct may borrow from the text for the lifetime named.
#[macro_export]
macro_rules! object {
    (
        impl<$de:lifetime> $name:ty { $($field:ident $(= $key:literal)?),+ $(,)? }
    ) => {
        impl<$de> ::serde::Deserialize<$de> for $name {
            fn deserialize<D: ::serde::Deserializer<$de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut read = Self::default();
                Self::deserialize_in_place(deserializer, &mut read)?;
                Ok(read)
            }

            // An absent field keeps the value that it has in `place`.
            fn deserialize_in_place<D: ::serde::Deserializer<$de>>(
                deserializer: D,
                place: &mut Self,
            ) -> Result<(), D::Error> {
                #[allow(non_camel_case_types)]
                enum At { $($field),+ }
                struct Fields<'p, $de>(&'p mut $name, ::std::marker::PhantomData<&$de ()>);

                impl<$de> ::serde::de::Visitor<$de> for Fields<'_, $de> {
                    type Value = ();

                    fn expecting(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<M: ::serde::de::MapAccess<$de>>(
                        self,
                        mut map: M,
                    ) -> Result<Self::Value, M::Error> {
                        const NAMES: &[&str] = &[$($crate::object!(@name $field $($key)?)),+];
                        let mut keys = $crate::object::Keys::new(NAMES);
                        while let Some(at) = map.next_key_seed(&mut keys)? {
                            match at {
                                $(at if at == At::$field as u32 => {
                                    map.next_value_seed($crate::object::InPlace(&mut self.0.$field))?;
                                })+
                                // `Keys` returns no other index.
                                _ => {}
                            }
                        }
                        Ok(())
                    }
                }

                // Does not compile if a field is not listed.
                let _ = |Self { $($field: _),+ }: Self| ();
                deserializer.deserialize_map(Fields(place, ::std::marker::PhantomData))
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $path:literal {
            $(
                $(#[$field_meta:meta])*
                $field_vis:vis $field:ident $(as $key:literal)?: $type:ty = $default:expr $(; $range:expr)?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type),+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl $crate::object::Ranges for $name {
            fn check(&self) -> Result<(), $crate::object::ConfigError> {
                $($($crate::object::within(concat!($path, stringify!($field)), &self.$field, $range)?;)?)+
                Ok(())
            }
        }

        $crate::object!(impl<'de> $name { $($field $(= $key)?),+ });
    };
    (@name $field:ident $key:literal) => { $key };
    (@name $field:ident) => { stringify!($field) };
}

/// A configuration struct whose numbers have allowed ranges.
pub trait Ranges {
    /// Checks the numbers of the configuration in the order of the fields.
    ///
    /// # Errors
    /// Returns an error for the first number that is out of its range.
    fn check(&self) -> Result<(), ConfigError>;
}

/// The reason why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration is not JSON, or a field is unknown or has a value of the wrong type: serde's message, with
    /// line and column.
    #[error(transparent)]
    Shape(#[from] serde_json::Error),
    /// A field of the configuration has a value that is not allowed.
    #[error("{field}: {reason}")]
    Value {
        /// The path of the field in the configuration, such as `rank.place`.
        field: &'static str,
        /// The value found, and the values allowed, as text.
        reason: String,
    },
}

/// A number, possibly absent, of a configuration, for range checks; used by [`object!`](crate::object).
#[doc(hidden)]
pub trait Number {
    fn number(&self) -> Option<u64>;
}

impl Number for u32 {
    fn number(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl Number for u64 {
    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl<T: Number> Number for Option<T> {
    fn number(&self) -> Option<u64> {
        self.as_ref()?.number()
    }
}

/// Returns an error unless a number is in `range` or absent; `field` is its path for the error. Used by
/// [`object!`](crate::object).
#[doc(hidden)]
pub fn within(
    field: &'static str,
    value: &impl Number,
    range: RangeInclusive<u64>,
) -> Result<(), ConfigError> {
    match value.number() {
        Some(number) if !range.contains(&number) => {
            let (low, high) = range.into_inner();
            let reason = format!("{number} is out of range, it must be {low} to {high}");
            Err(ConfigError::Value { field, reason })
        }
        _ => Ok(()),
    }
}

/// A serde seed that deserialises into an existing value; used by [`object!`](crate::object).
#[doc(hidden)]
pub struct InPlace<'p, T>(pub &'p mut T);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for InPlace<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        T::deserialize_in_place(deserializer, self.0)
    }
}

/// A serde seed that maps an object's keys to the indices of their fields; used by [`object!`](crate::object).
#[doc(hidden)]
pub struct Keys {
    names: &'static [&'static str],
    /// A bit for each name that has occurred in this object; a second occurrence is an error.
    seen: u32,
}

impl Keys {
    #[must_use]
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, seen: 0 }
    }
}

/// Deserialises a key to the index of its name; an error for an unknown or a duplicate key.
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
