//! Two certificates of a dialing end: the given one, and one that the process has renewed.

use super::files::ClientFiles;
use crate::name::PeerId;

/// The files of [`ClientTls::renewable`](super::ClientTls::renewable).
#[derive(Debug, Clone)]
pub(crate) struct RenewableFiles {
    given: ClientFiles,
    renewed: ClientFiles,
    name: PeerId,
}

impl RenewableFiles {
    /// Combines the given files with the renewed ones of a peer with this name.
    pub(super) const fn new(given: ClientFiles, renewed: ClientFiles, name: PeerId) -> Self {
        Self { given, renewed, name }
    }

    /// The files in use.
    pub(crate) fn current(&self) -> &ClientFiles {
        if self.is_renewed() { &self.renewed } else { &self.given }
    }

    pub(crate) const fn given(&self) -> &ClientFiles {
        &self.given
    }

    /// The files that are not in use.
    pub(crate) fn other(&self) -> &ClientFiles {
        if self.is_renewed() { &self.given } else { &self.renewed }
    }

    /// Whether the renewed certificate is in use.
    pub(super) fn is_renewed(&self) -> bool {
        let Ok(renewed) = self.renewed.identity() else { return false };
        let ends_later = self.given.identity().map_or(true, |given| renewed.expires() > given.expires());
        ends_later && renewed.names() == [self.name.clone()]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::reload::{FileWatch, ReloadEvent};
    use crate::tls::{ClientTls, TlsPaths};

    /// Writes a key and a certificate into one file.
    fn write(path: &Path, name: &str, year: i32) {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(path, key.serialize_pem() + &params.self_signed(&key).unwrap().pem()).unwrap();
    }

    #[test]
    fn uses_the_certificate_that_ends_later() {
        let directory = tempfile::tempdir().unwrap();
        let [given, renewed, authority] = ["given", "renewed", "ca"].map(|name| directory.path().join(name));
        write(&authority, "ca", 2090);
        let open = |path| {
            let paths = TlsPaths::default().with_certificate(path, path).with_authorities(&authority);
            ClientFiles::client(paths).0
        };
        let files = RenewableFiles::new(open(&given), open(&renewed), PeerId::new("edge-1").unwrap());
        let watch = FileWatch::new().client(&ClientTls::from(files.clone()));
        let mut now = SystemTime::now();
        let mut check = || {
            now += Duration::from_secs(1);
            watch.check(now)
        };
        let events = check();
        let [ReloadEvent::Unusable { cause, .. }] = &events[..] else { panic!("{events:?}") };
        assert!(cause.contains(&given.display().to_string()), "the given file is named: {cause}");
        assert!(watch.unusable().is_some() && !files.is_renewed());

        write(&given, "edge-1", 2050);
        let events = check();
        assert!(
            matches!(events[..], [ReloadEvent::Reloaded { .. }]),
            "no renewed file is no event: {events:?}"
        );

        for (name, year, used) in [("edge-1", 2049, false), ("edge-2", 2060, false), ("edge-1", 2060, true)] {
            write(&renewed, name, year);
            check();
            assert_eq!(files.is_renewed(), used, "{name} {year}");
        }

        // A given file that expires or disappears is no problem while the renewed one is in use.
        write(&given, "edge-1", 2001);
        assert_eq!((check(), watch.unusable(), files.is_renewed()), (vec![], None, true));
        fs::remove_file(&given).unwrap();
        assert_eq!((check(), watch.unusable(), files.is_renewed()), (vec![], None, true));

        // The metric and the warnings of the certificate in use have the path of the given one.
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(3_000_000_000);
        let events = watch.check(later);
        assert!(matches!(&events[..], [ReloadEvent::Expired { file, .. }] if *file == given), "{events:?}");

        write(&given, "edge-1", 2070);
        check();
        assert!(!files.is_renewed(), "a newer given file");
        fs::remove_file(&renewed).unwrap();
        assert_eq!((check(), watch.unusable()), (vec![], None));
    }

    /// After a restart only the renewed file counts if the given certificate has expired.
    #[test]
    fn renewed_certificate_replaces_an_expired_one() {
        let directory = tempfile::tempdir().unwrap();
        let [given, renewed] = ["given", "renewed"].map(|name| directory.path().join(name));
        write(&given, "edge-1", 2001);
        write(&renewed, "edge-1", 2060);
        let open = |path| {
            let paths = TlsPaths::default().with_certificate(path, path).with_authorities(&renewed);
            ClientFiles::client(paths).0
        };
        let files = RenewableFiles::new(open(&given), open(&renewed), PeerId::new("edge-1").unwrap());
        assert!(files.is_renewed() && files.current().config().is_ok());
        let events = FileWatch::new().client(&ClientTls::from(files.clone())).check(SystemTime::now());
        assert!(events.is_empty(), "{events:?}");
    }
}
