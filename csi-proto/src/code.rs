//! gRPC status codes, with room for numbers that gRPC has not defined.

use std::fmt;

/// A gRPC status code. A number beyond the seventeen that gRPC defines passes unchanged.
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
    /// The caller left.
    CANCELLED = 1,
    /// The driver did not say.
    UNKNOWN = 2,
    /// A field is missing or bad.
    INVALID_ARGUMENT = 3,
    /// The caller's time ended first.
    DEADLINE_EXCEEDED = 4,
    /// The volume, snapshot or node does not exist.
    NOT_FOUND = 5,
    /// The name is taken by something else.
    ALREADY_EXISTS = 6,
    /// The caller may not do this.
    PERMISSION_DENIED = 7,
    /// No room, quota or attach slot.
    RESOURCE_EXHAUSTED = 8,
    /// Not in this state.
    FAILED_PRECONDITION = 9,
    /// An operation on the same volume is pending.
    ABORTED = 10,
    /// The size or offset is out of range.
    OUT_OF_RANGE = 11,
    /// The method is not offered.
    UNIMPLEMENTED = 12,
    /// The driver broke.
    INTERNAL = 13,
    /// Not now; try again.
    UNAVAILABLE = 14,
    /// Data is lost.
    DATA_LOSS = 15,
    /// The caller did not say who it is.
    UNAUTHENTICATED = 16,
}

impl Code {
    /// Takes a number as it came over the wire.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number as it goes over the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether what was asked for may still be running: after these four codes a CSI caller asks again, and forgets nothing. All others end it.
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
