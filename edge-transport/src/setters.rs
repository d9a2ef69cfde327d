//! Setters of the builders.

/// Declares setters of a builder, each for a field of its `settings`.
macro_rules! setters {
    ($($(#[$attribute:meta])* $name:ident($type:ty) => $($field:ident).+;)*) => {
        $(
            $(#[$attribute])*
            pub const fn $name(mut self, $name: $type) -> Self {
                self.settings.$($field).+ = $name;
                self
            }
        )*
    };
}

pub(crate) use setters;
