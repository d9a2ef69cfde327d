//! The deny list: peers and certificates that a hub refuses although they could authenticate.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::link::Credentials;
use crate::name::{InvalidName, PeerId};
use crate::reload::lines::{self, hex};
use crate::reload::{FileError, Input, Reloading};

/// Longest serial number in bytes (RFC 5280 section 4.1.2.2).
const MAX_SERIAL: usize = 20;

/// Kind of the file, in errors.
const KIND: &str = "deny list";

/// A file with peers and certificates that a hub refuses: one entry a line, at most 200,000. Empty lines and lines that begin
/// with `#` are ignored.
///
/// | Entry | Denies |
/// |---|---|
/// | `edge-1` | the peer of this name, names below it, and every certificate for one of them |
/// | `serial:01ab` | certificates with this serial number in hexadecimal, with or without colons |
/// | `sha256:...` | the certificate with this SHA-256 of its DER form, 64 hexadecimal digits, with or without colons |
///
/// The file is read at the start and reloaded by a [`FileWatch`](crate::reload::FileWatch). The hub checks the list when it
/// admits a peer, and within a second after each reload it ends the sessions that the list denies. An invalid file changes
/// nothing. Cheap to clone.
///
/// A list applies to peers on unix sockets too, by their names, and a denied one gets the cause. A list that denies the hub's
/// own name is invalid.
#[derive(Debug, Clone)]
pub struct DenyList {
    pub(crate) entries: Arc<Reloading<Entries, FileError>>,
    path: PathBuf,
    /// The name of the hub that uses the list.
    hub: Arc<OnceLock<PeerId>>,
}

/// The entries of a deny list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    names: HashSet<PeerId>,
    serials: HashSet<Vec<u8>>,
    fingerprints: HashSet<[u8; 32]>,
}

impl DenyList {
    /// Reads the file.
    ///
    /// # Errors
    /// If the file is not readable, or a line is not an entry.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref().to_owned();
        let input = Input { kind: KIND, path: path.clone() };
        let hub = Arc::new(OnceLock::new());
        let (from, of) = (path.clone(), Arc::clone(&hub));
        let make = move |contents: &[Vec<u8>]| {
            let entries =
                contents.first().map_or_else(|| Ok(Entries::default()), |text| parse(text, &from))?;
            of.get().map_or(Ok(()), |hub| entries.check_hub(hub, &from))?;
            Ok(entries)
        };
        let (entries, outcome) = Reloading::open((vec![input], Box::new(make)), |_| Vec::new());
        outcome.map(|()| Self { entries: Arc::new(entries), path, hub })
    }

    /// Refuses entries for the hub's own name, now and after each reload.
    pub(crate) fn protect(&self, hub: &PeerId) -> Result<(), FileError> {
        // Set before the check, so that no reload in between is missed.
        let _ = self.hub.set(hub.clone());
        self.current().map_or(Ok(()), |entries| entries.check_hub(hub, &self.path))
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        let count =
            |entries: Arc<Entries>| entries.names.len() + entries.serials.len() + entries.fingerprints.len();
        self.current().map_or(0, count)
    }

    /// Returns the entries; always some, since [`open`](Self::open) requires a valid file.
    fn current(&self) -> Option<Arc<Entries>> {
        self.entries.current().ok()
    }

    /// Returns a number that rises with each reload.
    pub(crate) fn generation(&self) -> u64 {
        self.entries.generation()
    }

    /// Returns why a peer is denied, if it is.
    pub(crate) fn denies(&self, peer: &PeerId, credentials: &Credentials) -> Option<&'static str> {
        self.current().and_then(|entries| entries.deny(peer, credentials))
    }
}

impl Entries {
    fn check_hub(&self, hub: &PeerId, path: &Path) -> Result<(), FileError> {
        match hub.covered_by().find_map(|name| self.names.get(name)) {
            Some(name) => Err(FileError::DeniesHub { path: path.to_owned(), name: name.clone() }),
            None => Ok(()),
        }
    }

    fn deny(&self, peer: &PeerId, credentials: &Credentials) -> Option<&'static str> {
        let is_named = |name: &PeerId| name.covered_by().any(|name| self.names.contains(name));
        if is_named(peer) {
            return Some("the deny list of the hub has its name");
        }
        let Credentials::Certificate(certificate) = credentials else { return None };
        if self.serials.contains(&certificate.serial) {
            return Some("the deny list of the hub has the serial number of its certificate");
        }
        if self.fingerprints.contains(&certificate.sha256) {
            return Some("the deny list of the hub has the SHA-256 of its certificate");
        }
        certificate
            .names
            .iter()
            .any(is_named)
            .then_some("the deny list of the hub has a name in its certificate")
    }
}

fn parse(text: &[u8], path: &Path) -> Result<Entries, FileError> {
    let mut entries = Entries::default();
    for line in lines::entries(KIND, path, text) {
        let line = line?;
        if let Some(serial) = line.text.strip_prefix("serial:") {
            let serial =
                hex(serial).map(|bytes| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<_>>());
            let serial = serial.filter(|serial| (1..=MAX_SERIAL).contains(&serial.len()));
            let expected = "expected serial: and 1 to 40 hexadecimal digits, as in `openssl x509 -serial`";
            entries.serials.insert(serial.ok_or_else(|| line.refused(expected))?);
        } else if let Some(digest) = line.text.strip_prefix("sha256:") {
            let digest = hex(digest).and_then(|bytes| bytes.try_into().ok());
            let expected =
                "expected sha256: and 64 hexadecimal digits, as in `openssl x509 -fingerprint -sha256`";
            entries.fingerprints.insert(digest.ok_or_else(|| line.refused(expected))?);
        } else {
            // A mistyped prefix, or a fingerprint without one, is a valid name that no peer has: it would deny nothing.
            if line.text.contains(':') && !line.text.contains("://") {
                let expected =
                    "expected serial: or sha256: in lower case before digits, or a peer's name without `:`";
                return Err(line.refused(expected));
            }
            let name = PeerId::new(line.text).map_err(|cause: InvalidName| {
                line.refused(format!("expected a peer's name, serial:HEX or sha256:HEX; {cause}"))
            })?;
            entries.names.insert(name);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::PeerCertificate;
    use crate::reload::ReloadEvent;

    fn name(text: &str) -> PeerId {
        PeerId::new(text).unwrap()
    }

    fn certificate() -> Credentials {
        let mut certificate = PeerCertificate::from(vec![name("edge-1"), name("other")]);
        certificate.serial = vec![0x01, 0xab];
        certificate.sha256 = [0xcd; 32];
        Credentials::Certificate(certificate)
    }

    #[test]
    fn denies_names_serials_and_fingerprints() {
        let digest = "cd".repeat(32);
        let colons = "CD:".repeat(32);
        for (text, denied) in [
            ("", false),
            ("# edge-1\n\n", false),
            ("edge-1", true),
            (" edge-1 \r\n", true),
            ("edge", false),
            ("edge-1/0", false),
            ("other\n", true),
            ("serial:1AB", true),
            ("serial:0001ab", true),
            ("serial:01:AB", true),
            ("serial:ab", false),
            (&format!("sha256:{digest}"), true),
            (&format!("x\nsha256:{}", colons.trim_end_matches(':')), true),
            (&format!("sha256:{}", "ce".repeat(32)), false),
        ] {
            let entries = parse(text.as_bytes(), Path::new("deny")).unwrap();
            assert_eq!(entries.deny(&name("edge-1"), &certificate()).is_some(), denied, "{text}");
        }
        let entries = parse(b"proxy", Path::new("deny")).unwrap();
        assert!(entries.deny(&name("proxy/replica-2"), &Credentials::None).is_some(), "a name below");
        assert!(entries.deny(&name("proxy2"), &Credentials::None).is_none());
    }

    /// At the start and at a reload: the hub's own services would end.
    #[test]
    fn rejects_the_name_of_the_hub() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deny");
        let check = |watch: &crate::reload::FileWatch| watch.check(std::time::SystemTime::now());
        for (hub, entry) in [("hub", "hub"), ("hub/eu", "hub")] {
            std::fs::write(&path, format!("edge-1\n{entry}\n")).unwrap();
            let error = DenyList::open(&path).unwrap().protect(&name(hub)).unwrap_err().to_string();
            assert!(error.contains("has \"hub\", which is the name of the hub itself"), "{error}");

            std::fs::write(&path, "edge-1\n").unwrap();
            let list = DenyList::open(&path).unwrap();
            let watch = crate::reload::FileWatch::new().deny(&list);
            list.protect(&name(hub)).unwrap();
            std::fs::write(&path, format!("{entry}\n")).unwrap();
            assert!(
                matches!(&check(&watch)[..], [ReloadEvent::Invalid { cause, .. }] if cause.contains("the hub itself"))
            );
            assert!(list.denies(&name("edge-1"), &Credentials::None).is_some(), "the old list stays");
            assert!(list.denies(&name(hub), &Credentials::None).is_none());
        }
    }

    #[test]
    fn rejects_lines_that_are_no_entries() {
        for (text, expected) in [
            ("edge-1\nedge 2\n", "line 2: expected a peer's name"),
            ("serial:", "line 1: expected serial:"),
            ("serial:00", "1 to 40 hexadecimal digits"),
            ("serial:xy", "1 to 40 hexadecimal digits"),
            (&format!("serial:{}", "11".repeat(21)), "1 to 40 hexadecimal digits"),
            ("sha256:abcd", "64 hexadecimal digits"),
            ("SHA256:AA:BB", "line 1: expected serial: or sha256: in lower case"),
            ("AA:BB:CC", "line 1: expected serial: or sha256: in lower case"),
        ] {
            let error = parse(text.as_bytes(), Path::new("deny")).unwrap_err().to_string();
            assert!(error.starts_with("deny list deny, ") && error.contains(expected), "{text}: {error}");
        }
    }
}
