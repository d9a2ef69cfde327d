//! gRPC status codes, including undefined numbers.

use std::fmt;

/// A gRPC status code. Numbers that gRPC does not define are kept unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The seventeen codes that gRPC defines, by number.
            pub const ALL: [Self; 17] = [$(Self::$name),*];

            /// The name that gRPC gives the code; `None` for a number that it does not define.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The call succeeded.
    OK = 0,
    /// The caller cancelled the call.
    CANCELLED = 1,
    /// Unknown error of the driver.
    UNKNOWN = 2,
    /// A field is missing or invalid.
    INVALID_ARGUMENT = 3,
    /// The caller's deadline passed.
    DEADLINE_EXCEEDED = 4,
    /// The volume, snapshot or node does not exist.
    NOT_FOUND = 5,
    /// The name is used by another object.
    ALREADY_EXISTS = 6,
    /// The caller has no permission.
    PERMISSION_DENIED = 7,
    /// No space, quota or attach slot is left.
    RESOURCE_EXHAUSTED = 8,
    /// The system is not in the required state.
    FAILED_PRECONDITION = 9,
    /// An operation on the same volume is pending.
    ABORTED = 10,
    /// The size or offset is out of range.
    OUT_OF_RANGE = 11,
    /// The method is not implemented.
    UNIMPLEMENTED = 12,
    /// Internal error of the driver.
    INTERNAL = 13,
    /// Temporarily unavailable; retry.
    UNAVAILABLE = 14,
    /// Data is lost.
    DATA_LOSS = 15,
    /// The caller is not authenticated.
    UNAUTHENTICATED = 16,
}

impl Code {
    /// Creates a code from its number on the wire.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether the operation may still be running. After such a code, a CSI caller retries and keeps its state; all
    /// other codes end the operation.
    #[must_use]
    pub const fn may_be_running(self) -> bool {
        matches!(self, Self::CANCELLED | Self::DEADLINE_EXCEEDED | Self::UNAVAILABLE | Self::ABORTED)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CODE_{}", self.0),
        }
    }
}
