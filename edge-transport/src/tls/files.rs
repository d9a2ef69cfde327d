//! TLS material in files that are reloaded while the process runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(feature = "runtime")]
use std::time::SystemTime;

use rustls::{ClientConfig, ServerConfig};
#[cfg(feature = "runtime")]
use rustls_pki_types::CertificateDer;

#[cfg(feature = "runtime")]
use super::AuthoritiesId;
use super::identity::Pem;
use super::revocation::RevocationLists;
use super::verifier::{ClientVerifier, ReloadedLists};
use super::{ClientAuth, Identity, TlsError, client, server};
use crate::reload::{Expiries, Expiry, Input, Recipe, Reloading};

/// Paths of the TLS material of one end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsPaths {
    /// The certificate chain, own certificate first, and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The authorities that the other end is verified with.
    pub authorities: Option<PathBuf>,
    /// The certificate revocation lists of the authorities; only for an accepting end.
    pub revocation_lists: Option<PathBuf>,
}

impl TlsPaths {
    /// Sets the certificate chain, own certificate first, and its private key.
    #[must_use]
    pub fn with_certificate(mut self, chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.certificate = Some((chain.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }

    /// Sets the authorities that the other end is verified with.
    #[must_use]
    pub fn with_authorities(mut self, path: impl AsRef<Path>) -> Self {
        self.authorities = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the PEM file with the certificate revocation lists of the authorities, for an accepting end: one complete list for
    /// each authority that has issued a certificate of a client's chain, at most 4 MiB together. A client is refused that a
    /// list revokes, and a client whose status is unknown, because its authority has no list here. Each handshake verifies
    /// the signature of the list, which takes about a millisecond for each MiB.
    ///
    /// The file is independent of the others: an invalid one keeps the lists in use, and until the first valid one every
    /// handshake fails. A list stays in use after its next update is due, and the watch reports that. Authorities with
    /// different keys must have different names.
    #[must_use]
    pub fn with_revocation_lists(mut self, path: impl AsRef<Path>) -> Self {
        self.revocation_lists = Some(path.as_ref().to_owned());
        self
    }
}

/// The configuration of the last valid files.
pub(crate) struct Loaded<C> {
    config: Arc<C>,
    /// Verifies clients; only at an accepting end.
    #[cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only links need it"))]
    verifier: Option<Arc<ClientVerifier>>,
    identity: Identity,
    paths: TlsPaths,
}

/// A TLS configuration that is reloaded from files. All clones share the configuration.
pub(crate) struct TlsFiles<C> {
    reloading: Arc<Reloading<Loaded<C>, TlsError>>,
    lists: Option<ReloadedLists>,
}

/// Files of an accepting end.
pub(crate) type ServerFiles = TlsFiles<ServerConfig>;

/// Files of a dialing end.
pub(crate) type ClientFiles = TlsFiles<ClientConfig>;

impl TlsFiles<ServerConfig> {
    /// Reads the files. If they are invalid, there is no configuration until a check finds valid ones.
    pub(super) fn server(paths: TlsPaths, clients: ClientAuth) -> (Self, Result<(), TlsError>) {
        let lists = list_recipe(&paths).map(|recipe| Reloading::open(recipe, next_update));
        let (lists, outcome) =
            lists.map_or((None, Ok(())), |(lists, outcome)| (Some(Arc::new(lists)), outcome));
        let configure = {
            let lists = lists.clone();
            move |identity: &Identity| server::configuration(identity, clients, lists.clone())
        };
        let (files, next) = Self::open(paths, lists, configure);
        (files, outcome.and(next))
    }

    /// The current configuration, and the authorities that it verifies clients with.
    #[cfg(any(feature = "ws", feature = "quic"))]
    pub(crate) fn server_config(&self) -> Result<(Arc<ServerConfig>, Option<AuthoritiesId>), TlsError> {
        let loaded = self.usable()?;
        Ok((Arc::clone(&loaded.config), loaded.verifier.as_ref().map(|verifier| verifier.authorities())))
    }

    /// Returns a number that rises when certificates that were verified may be refused now.
    #[cfg(feature = "runtime")]
    pub(crate) fn generation(&self) -> u64 {
        let lists = self.lists.as_ref().map_or(0, |lists| lists.generation());
        self.reloading.generation().wrapping_add(lists)
    }

    /// Checks that the chain of an open link would be accepted again. Returns the authorities that it was checked with.
    ///
    /// # Errors
    /// Returns why the chain is refused.
    #[cfg(feature = "runtime")]
    pub(crate) fn verify_again(
        &self,
        chain: impl FnOnce() -> Vec<CertificateDer<'static>>,
        verified_by: Option<AuthoritiesId>,
        now: SystemTime,
    ) -> Result<Option<AuthoritiesId>, String> {
        // Without valid files since the start there was no handshake.
        let Some(verifier) = self.loaded().ok().and_then(|loaded| loaded.verifier.clone()) else {
            return Ok(verified_by);
        };
        verifier.verify_again(chain, verified_by, now).map(|()| Some(verifier.authorities()))
    }
}

impl TlsFiles<ClientConfig> {
    /// Reads the files. If they are invalid, there is no configuration until a check finds valid ones.
    pub(super) fn client(paths: TlsPaths) -> (Self, Result<(), TlsError>) {
        Self::open(paths, None, |identity| client::client_config(identity).map(|config| (config, None)))
    }
}

/// Returns the files of the revocation lists, if there are any, and the function that reads them.
fn list_recipe(paths: &TlsPaths) -> Option<Recipe<(PathBuf, RevocationLists), TlsError>> {
    let path = paths.revocation_lists.clone()?;
    let mut inputs = vec![Input { kind: "revocation lists", path: path.clone() }];
    inputs.extend(paths.authorities.clone().map(|path| Input { kind: "CA certificates", path }));
    let names: Vec<String> = inputs.iter().map(|input| input.path.display().to_string()).collect();
    let make = move |contents: &[Vec<u8>]| {
        let mut pem = contents.iter().zip(&names).map(|(text, from)| Pem { text, from });
        match pem.next().zip(pem.next()) {
            Some((lists, authorities)) => Ok((path.clone(), RevocationLists::parse(&lists, &authorities)?)),
            None => Err(TlsError::NoRoots { peer: "clients" }),
        }
    };
    Some((inputs, Box::new(make)))
}

impl<C> TlsFiles<C> {
    pub(crate) fn reloading(&self) -> Arc<Reloading<Loaded<C>, TlsError>> {
        Arc::clone(&self.reloading)
    }

    pub(crate) fn lists(&self) -> Option<ReloadedLists> {
        self.lists.clone()
    }
}

fn expiries<C>(loaded: &Loaded<C>) -> Expiries {
    let chain = loaded.paths.certificate.as_ref().map(|(chain, _)| chain.clone());
    let own = chain.zip(loaded.identity.expires());
    let authorities = loaded.paths.authorities.clone().zip(loaded.identity.authorities_expire());
    own.into_iter().chain(authorities).map(|(file, end)| Expiry::Certificate { file, end }).collect()
}

fn next_update((file, lists): &(PathBuf, RevocationLists)) -> Expiries {
    let file = file.clone();
    lists.next_update().map(|end| Expiry::RevocationList { file, end }).into_iter().collect()
}

impl<C: Send + Sync + 'static> TlsFiles<C> {
    fn open(
        paths: TlsPaths,
        lists: Option<ReloadedLists>,
        configure: impl Fn(&Identity) -> Result<(Arc<C>, Option<Arc<ClientVerifier>>), TlsError>
        + Send
        + Sync
        + 'static,
    ) -> (Self, Result<(), TlsError>) {
        let mut inputs = Vec::new();
        if let Some((chain, key)) = &paths.certificate {
            inputs.push(Input { kind: "certificate chain", path: chain.clone() });
            inputs.push(Input { kind: "private key", path: key.clone() });
        }
        if let Some(authorities) = &paths.authorities {
            inputs.push(Input { kind: "CA certificates", path: authorities.clone() });
        }
        let names: Vec<String> = inputs.iter().map(|input| input.path.display().to_string()).collect();
        let make = move |contents: &[Vec<u8>]| {
            let mut pem = contents.iter().zip(&names).map(|(text, from)| Pem { text, from });
            let pair = match &paths.certificate {
                Some(_) => pem.next().zip(pem.next()),
                None => None,
            };
            let identity = Identity::assemble(pair, pem.next())?;
            let (config, verifier) = configure(&identity)?;
            Ok(Loaded { config, verifier, identity, paths: paths.clone() })
        };
        let (reloading, outcome) = Reloading::open((inputs, Box::new(make)), expiries);
        (Self { reloading: Arc::new(reloading), lists }, outcome)
    }

    /// The current configuration.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if the files were never valid since the start.
    pub(crate) fn config(&self) -> Result<Arc<C>, TlsError> {
        self.usable().map(|loaded| Arc::clone(&loaded.config))
    }

    /// The current identity.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if the files were never valid since the start.
    pub(crate) fn identity(&self) -> Result<Identity, TlsError> {
        self.loaded().map(|loaded| loaded.identity.clone())
    }

    /// Returns what was loaded for a handshake. A missing revocation list must not mean that nothing is revoked.
    fn usable(&self) -> Result<Arc<Loaded<C>>, TlsError> {
        if let Some(lists) = &self.lists {
            lists.current().map_err(|cause| TlsError::Unusable { cause })?;
        }
        self.loaded()
    }

    fn loaded(&self) -> Result<Arc<Loaded<C>>, TlsError> {
        self.reloading.current().map_err(|cause| TlsError::Unusable { cause })
    }
}

impl<C> Clone for TlsFiles<C> {
    fn clone(&self) -> Self {
        Self { reloading: Arc::clone(&self.reloading), lists: self.lists.clone() }
    }
}

impl<C> fmt::Debug for TlsFiles<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("reloading", &self.reloading).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_missing_file() {
        let paths = TlsPaths::default().with_certificate("/nowhere/tls.crt", "k").with_authorities("a");
        let error = ClientFiles::client(paths).1.unwrap_err().to_string();
        assert!(error.contains("certificate chain /nowhere/tls.crt"), "{error}");
    }
}
