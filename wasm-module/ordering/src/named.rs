//! Enums whose variants have names in configurations, reports and metrics.

/// Declares an enum as a table of variants and their names, with the constant `ALL` and the functions `name` and
/// `by_name`.
///
/// ```
/// foreword_ordering::named! {
///     /// A side of a road.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Side {
///         /// The side of the heart.
///         Left = "left",
///         /// The other side.
///         Right = "right",
///     }
/// }
///
/// assert_eq!(Side::ALL.map(Side::name), ["left", "right"]);
/// assert_eq!(Side::by_name("right"), Some(Side::Right));
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $type:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $name:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$variant_meta])* $variant),+
        }

        #[allow(dead_code, reason = "a private enum may need only some of these")]
        impl $type {
            /// All values of the enum, in the order of their declaration.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name of the value as used in configurations, reports and metrics.
            #[must_use]
            $vis fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Returns the value with this name; `None` if there is none.
            #[must_use]
            $vis fn by_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
