//! Validated names: peers, services and the sessions of a peer.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest [`PeerId`] in bytes: the bound of a DNS name (RFC 1035 section 2.3.4), which is what certificates carry.
pub const MAX_PEER_ID: usize = 253;

/// Longest [`ServiceName`] in bytes.
pub const MAX_SERVICE_NAME: usize = 128;

/// Why a name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name is empty.
    #[error("{kind} is empty; give a name of 1 to {max} bytes")]
    Empty {
        /// Kind of the name, for example `peer id`.
        kind: &'static str,
        /// Largest allowed length in bytes.
        max: usize,
    },
    /// The name is too long.
    #[error("{kind} has {found} bytes; at most {max} are allowed")]
    TooLong {
        /// Kind of the name, for example `peer id`.
        kind: &'static str,
        /// Length of the name in bytes.
        found: usize,
        /// Largest allowed length in bytes.
        max: usize,
    },
    /// The name contains a character that is not allowed.
    #[error("{kind} contains {found:?} at byte {at}; allowed are letters, digits and any of `-_.:/@`")]
    Character {
        /// Kind of the name, for example `peer id`.
        kind: &'static str,
        /// The character.
        found: char,
        /// Byte offset of the character.
        at: usize,
    },
}

fn check(kind: &'static str, name: &str, max: usize) -> Result<(), InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty { kind, max });
    }
    if name.len() > max {
        return Err(InvalidName::TooLong { kind, found: name.len(), max });
    }
    // Bytes are faster than characters, and all of them faster than up to the first, since every frame has names. No byte of a
    // multi-byte character is allowed.
    if name.bytes().fold(true, |allowed, byte| allowed & is_allowed(byte)) {
        return Ok(());
    }
    match name.char_indices().find(|(_, c)| !u8::try_from(*c).is_ok_and(is_allowed)) {
        Some((at, found)) => Err(InvalidName::Character { kind, found, at }),
        None => Ok(()),
    }
}

const fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'@')
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $max:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Validates a name.
            ///
            /// # Errors
            /// If the name is empty, too long, or contains a character other than letters, digits and `-_.:/@`.
            pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
                let name = name.as_ref();
                check($kind, name, $max)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;

            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::new(name)
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a peer: a node, a proxy, a hub. Compared byte for byte. Cheap to clone.
    PeerId, "peer id", MAX_PEER_ID
}

name! {
    /// The name of a service that a peer answers, for example `csi`. A service also answers requests for the names below its
    /// own, such as `csi/hostpath.csi.example`, so that a policy can distinguish its parts. Cheap to clone.
    ServiceName, "service name", MAX_SERVICE_NAME
}

/// Identifies a session of a peer: the instance of its process and the number of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "two numbers, as in the schema")]
pub struct SessionId {
    /// One run of the peer's process: a random number, never 0 in a hello.
    pub instance: u64,
    /// Number of the link: starts at 1 and increases with every link of the instance.
    pub number: u64,
}

impl SessionId {
    /// Whether `self` is a session of the same instance as `other` and not newer, so that the end of `other` implies
    /// its end.
    pub(crate) const fn is_ended_by(self, other: Self) -> bool {
        self.instance == other.instance && self.number <= other.number
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.instance, self.number)
    }
}

// Only what proves a peer's name, at runtime, compares the names of peers.
#[cfg(any(feature = "runtime", test))]
impl PeerId {
    /// Returns the names whose certificate or token proves this one: its parents, from the shortest, and the name itself. `proxy`
    /// covers `proxy/replica-2`, so that replicas with one certificate do not fence each other. A name with a colon covers only
    /// itself: the path of a URI has no authority over longer paths.
    ///
    /// ```
    /// # use edge_transport::PeerId;
    /// let replica = PeerId::new("proxy/replica-2")?;
    /// assert!(replica.covered_by().eq(["proxy", "proxy/replica-2"]));
    /// # Ok::<(), edge_transport::InvalidName>(())
    /// ```
    pub fn covered_by(&self) -> impl DoubleEndedIterator<Item = &str> {
        covered_by(&self.0)
    }

    /// Whether this name covers `claimed`.
    pub(crate) fn covers(&self, claimed: &Self) -> bool {
        claimed.covered_by().any(|above| above == self.as_str())
    }
}

impl PeerId {
    /// Returns a name below `parent` that no other process has, from the host, the process id and the time: the hub refuses the
    /// later of two processes with one name. Use the name of the process's certificate, or the one that its token proves, as the
    /// parent: both also prove the names below. Within a process, the name is the same each time.
    ///
    /// ```
    /// use edge_transport::PeerId;
    ///
    /// let name = PeerId::of_this_process("csi-proxy")?;
    /// assert!(name.as_str().starts_with("csi-proxy/"));
    /// # Ok::<(), edge_transport::InvalidName>(())
    /// ```
    ///
    /// # Errors
    /// If `parent` is not a name, or is longer than about 150 bytes.
    pub fn of_this_process(parent: impl AsRef<str>) -> Result<Self, InvalidName> {
        static NAME: OnceLock<String> = OnceLock::new();
        let name = NAME.get_or_init(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            process_name(&host, std::process::id(), now.map_or(0, |since| since.as_micros()))
        });
        let parent = parent.as_ref();
        check("peer id", parent, MAX_PEER_ID)?;
        Self::new(format!("{parent}/{name}"))
    }

    /// Returns the shortest name that covers this one: what a certificate for this name, or for one above, can prove at most.
    pub(crate) fn top(&self) -> Self {
        match covered_by(&self.0).next() {
            Some(top) if top.len() < self.0.len() => Self(top.into()),
            _ => self.clone(),
        }
    }
}

impl ServiceName {
    /// Whether this name covers `requested`, by the rules of [`covered_by`]: `csi` covers `csi/a.driver`.
    pub(crate) fn covers(&self, requested: &Self) -> bool {
        covered_by(&requested.0).any(|above| above == self.as_str())
    }

    /// Returns the entry of the closest name that covers this one.
    pub(crate) fn find_in<'a, V>(&self, services: &'a HashMap<Self, V>) -> Option<&'a V> {
        covered_by(&self.0).rev().find_map(|name| services.get(name))
    }
}

/// The host and the process id distinguish processes of one host; the time in microseconds distinguishes containers that share a
/// host name.
fn process_name(host: &str, process: u32, time: u128) -> String {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let host: String = host.trim().chars().filter(allowed).take(63).collect();
    format!("{host}-{process}-{time}")
}

/// Returns the names that cover `name`: its parents, from the shortest, and itself. A parent with a colon covers nothing
/// below it: the path of a URI has no authority over longer paths.
pub(crate) fn covered_by(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    let above = name.match_indices('/').map(|(end, _)| &name[..end]);
    above.filter(|above| !above.contains(':')).chain(std::iter::once(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_fits_whatever_the_host_is_called() {
        let parent = "d".repeat(150);
        for host in ["", "node-1\n", "host name/with\u{e9}", &"h".repeat(300)] {
            let name = format!("{parent}/{}", process_name(host, u32::MAX, u128::from(u64::MAX)));
            assert!(PeerId::new(&name).is_ok(), "{name}");
        }
        assert_ne!(process_name("h", 1, 1), process_name("h", 1, 2));
        let name = PeerId::of_this_process("proxy").unwrap();
        assert_eq!(PeerId::of_this_process("proxy").unwrap(), name);
        assert!(PeerId::new("proxy").unwrap().covers(&name) && PeerId::of_this_process("").is_err());
    }

    #[test]
    fn rejects_invalid_names_with_the_value_found() {
        assert_eq!(PeerId::new(""), Err(InvalidName::Empty { kind: "peer id", max: MAX_PEER_ID }));
        assert!(matches!(
            PeerId::new("a".repeat(254)),
            Err(InvalidName::TooLong { found: 254, max: 253, .. })
        ));
        assert!(matches!(PeerId::new("edge 1"), Err(InvalidName::Character { found: ' ', at: 4, .. })));
        assert!(PeerId::new("a".repeat(253)).is_ok());
        assert!(ServiceName::new("csi/hostpath.csi.example").is_ok());
    }

    /// The closest name that covers a service answers it; a name that only begins like it does not.
    #[test]
    fn services_answer_the_names_below_theirs() {
        let services: HashMap<_, _> =
            ["csi", "csi/a"].map(|name| (ServiceName::new(name).unwrap(), name)).into_iter().collect();
        for (requested, expected) in [
            ("csi", Some("csi")),
            ("csi/b", Some("csi")),
            ("csi/a", Some("csi/a")),
            ("csi/a/b", Some("csi/a")),
            ("csi2", None),
            ("cs", None),
        ] {
            let requested = ServiceName::new(requested).unwrap();
            assert_eq!(requested.find_in(&services).copied(), expected, "{requested}");
        }
    }

    #[test]
    fn covers_itself_and_subpaths_only() {
        for (name, claimed, expected) in [
            ("proxy", "proxy", true),
            ("proxy", "proxy/a", true),
            ("proxy", "proxy/a/b", true),
            ("proxy/a", "proxy/a/b", true),
            ("proxy", "proxy2", false),
            ("proxy", "prox", false),
            ("proxy/a", "proxy", false),
            ("spiffe://edge/ns/a", "spiffe://edge/ns/a", true),
            ("spiffe://edge/ns/a", "spiffe://edge/ns/a/sa/node-7", false),
            ("spiffe:", "spiffe://edge", false),
        ] {
            let [name, claimed] = [name, claimed].map(|name| PeerId::new(name).unwrap());
            assert_eq!(name.covers(&claimed), expected, "{name} {claimed}");
        }
    }
}
