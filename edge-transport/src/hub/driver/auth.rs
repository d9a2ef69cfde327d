//! Whether a peer may use the name in its hello.

use crate::link::Credentials;
use crate::name::PeerId;
use crate::session::CloseReason;

/// Who is believed.
#[derive(Debug, Clone)]
pub(super) struct Authentication {
    pub(super) allow_unauthenticated: bool,
    pub(super) users: Vec<u32>,
}

impl Default for Authentication {
    fn default() -> Self {
        Self { allow_unauthenticated: false, users: std::iter::once(0).chain(own_user()).collect() }
    }
}

#[cfg(target_os = "linux")]
fn own_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

#[cfg(not(target_os = "linux"))]
const fn own_user() -> Option<u32> {
    None
}

impl Authentication {
    pub(super) fn check(&self, credentials: &Credentials, claimed: &PeerId) -> Result<(), CloseReason> {
        let refused = |cause: String| Err(CloseReason::Unauthenticated { claimed: claimed.clone(), cause });
        match credentials {
            Credentials::Certificate(names) if names.iter().any(|name| covers(name, claimed)) => Ok(()),
            Credentials::Certificate(names) => {
                let names: Vec<&str> = names.iter().take(8).map(PeerId::as_str).collect();
                refused(format!("its certificate is for [{}]", names.join(", ")))
            }
            Credentials::Process { uid, .. } if self.users.contains(uid) => Ok(()),
            Credentials::Process { uid, .. } => refused(format!("user {uid} is neither root, the hub's own, nor allowed")),
            Credentials::None if self.allow_unauthenticated => Ok(()),
            Credentials::None => {
                refused("the link proves no name; use TLS with a client certificate, or allow unauthenticated peers at the hub".into())
            }
        }
    }
}

/// A certificate is for its name and for what lies below it: `proxy` may come as `proxy/replica-2`, so that replicas with
/// one certificate do not fence each other. Names with a colon are for themselves only: the path of a URI is no authority over
/// longer ones.
fn covers(name: &PeerId, claimed: &PeerId) -> bool {
    if name.as_str().contains(':') {
        return name == claimed;
    }
    claimed.as_str().strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_credentials_that_hold_it() {
        let name = |text: &str| PeerId::new(text).unwrap();
        let strict = Authentication { allow_unauthenticated: false, users: vec![0, 7] };
        let open = Authentication { allow_unauthenticated: true, users: vec![0] };
        let edge = name("edge-1");
        for (credentials, by_strict, by_open) in [
            (Credentials::None, false, true),
            (Credentials::Certificate(vec![name("other"), name("edge-1")]), true, true),
            (Credentials::Certificate(vec![name("other")]), false, false),
            (Credentials::Certificate(vec![name("edge")]), false, false),
            (Credentials::Certificate(vec![name("edge-1/a")]), false, false),
            (Credentials::Certificate(vec![]), false, false),
            (Credentials::Process { uid: 0, gid: 5 }, true, true),
            (Credentials::Process { uid: 7, gid: 5 }, true, false),
            (Credentials::Process { uid: 8, gid: 0 }, false, false),
        ] {
            assert_eq!(strict.check(&credentials, &edge).is_ok(), by_strict, "strict: {credentials:?}");
            assert_eq!(open.check(&credentials, &edge).is_ok(), by_open, "open: {credentials:?}");
        }
    }

    #[test]
    fn a_certificate_covers_what_lies_below_its_name_and_nothing_beside_it() {
        let name = |text: &str| PeerId::new(text).unwrap();
        for (claimed, expected) in
            [("proxy", true), ("proxy/a", true), ("proxy/a/b", true), ("proxy2", false), ("prox", false)]
        {
            assert_eq!(covers(&name("proxy"), &name(claimed)), expected, "{claimed}");
        }
    }

    #[test]
    fn a_uri_is_for_itself_only() {
        let name = |text: &str| PeerId::new(text).unwrap();
        let uri = name("spiffe://edge/ns/a");
        assert!(covers(&uri, &uri));
        assert!(!covers(&uri, &name("spiffe://edge/ns/a/sa/node-7")));
    }
}
