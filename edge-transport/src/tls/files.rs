//! TLS material in files that are reloaded while the process runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig};

use super::identity::Pem;
use super::{ClientAuth, Identity, TlsError, client, server};
use crate::reload::{Expiries, Input, Recipe, Reloading};

/// Paths of the TLS material of one end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsPaths {
    /// The certificate chain, own certificate first, and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The authorities that the other end is verified with.
    pub authorities: Option<PathBuf>,
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
}

/// The configuration of the last valid files.
pub(crate) struct Loaded<C> {
    config: Arc<C>,
    identity: Identity,
    paths: TlsPaths,
}

/// A TLS configuration that is reloaded from files: [`FileWatch`](crate::reload::FileWatch) checks them for changes. New
/// handshakes use the new configuration; open links are not affected. Cheap to clone; all clones share the configuration.
pub struct TlsFiles<C> {
    reloading: Arc<Reloading<Loaded<C>, TlsError>>,
}

/// Files of an accepting end.
pub type ServerFiles = TlsFiles<ServerConfig>;

/// Files of a dialing end.
pub type ClientFiles = TlsFiles<ClientConfig>;

impl TlsFiles<ServerConfig> {
    /// Reads the files and creates the configuration of an accepting end.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do. A certificate is required, and authorities unless `clients` is
    /// [`ClientAuth::None`].
    pub fn server(paths: TlsPaths, clients: ClientAuth) -> Result<Self, TlsError> {
        let (inputs, make) = recipe(paths, move |identity| server::configuration(identity, clients));
        Ok(Self { reloading: Arc::new(Reloading::open(inputs, expiries, make)?) })
    }

    /// Creates the configuration of an accepting end from files that may be missing or invalid for now: handshakes fail until a
    /// [`FileWatch`](crate::reload::FileWatch) has found valid ones.
    #[must_use]
    pub fn server_when_valid(paths: TlsPaths, clients: ClientAuth) -> Self {
        let (inputs, make) = recipe(paths, move |identity| server::configuration(identity, clients));
        Self { reloading: Arc::new(Reloading::open_when_valid(inputs, expiries, make)) }
    }
}

impl TlsFiles<ClientConfig> {
    /// Reads the files and creates the configuration of a dialing end.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do. Authorities are required.
    pub fn client(paths: TlsPaths) -> Result<Self, TlsError> {
        let (inputs, make) = recipe(paths, client::client_config);
        Ok(Self { reloading: Arc::new(Reloading::open(inputs, expiries, make)?) })
    }

    /// Creates the configuration of a dialing end from files that may be missing or invalid for now: dialing fails until a
    /// [`FileWatch`](crate::reload::FileWatch) has found valid ones.
    #[must_use]
    pub fn client_when_valid(paths: TlsPaths) -> Self {
        let (inputs, make) = recipe(paths, client::client_config);
        Self { reloading: Arc::new(Reloading::open_when_valid(inputs, expiries, make)) }
    }
}

/// Returns the files to read, and the function that creates the configuration from their contents.
fn recipe<C>(
    paths: TlsPaths,
    configure: impl Fn(&Identity) -> Result<Arc<C>, TlsError> + Send + Sync + 'static,
) -> Recipe<Loaded<C>, TlsError> {
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
        let config = configure(&identity)?;
        Ok(Loaded { config, identity, paths: paths.clone() })
    };
    (inputs, Box::new(make))
}

impl<C> TlsFiles<C> {
    pub(crate) fn reloading(&self) -> Arc<Reloading<Loaded<C>, TlsError>> {
        Arc::clone(&self.reloading)
    }
}

fn expiries<C>(loaded: &Loaded<C>) -> Expiries {
    let chain = loaded.paths.certificate.as_ref().map(|(chain, _)| chain.clone());
    let own = chain.zip(loaded.identity.expires());
    let authorities = loaded.paths.authorities.clone().zip(loaded.identity.authorities_expire());
    own.into_iter().chain(authorities).collect()
}

impl<C: Send + Sync + 'static> TlsFiles<C> {
    /// The current configuration.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if the files were never valid since the start.
    pub fn config(&self) -> Result<Arc<C>, TlsError> {
        self.loaded().map(|loaded| Arc::clone(&loaded.config))
    }

    /// The current identity.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if the files were never valid since the start.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        self.loaded().map(|loaded| loaded.identity.clone())
    }

    fn loaded(&self) -> Result<Arc<Loaded<C>>, TlsError> {
        self.reloading.current().map_err(|cause| TlsError::Unusable { cause })
    }
}

impl<C> Clone for TlsFiles<C> {
    fn clone(&self) -> Self {
        Self { reloading: Arc::clone(&self.reloading) }
    }
}

impl<C> fmt::Debug for TlsFiles<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("reloading", &self.reloading).finish()
    }
}

/// A fixed configuration, or one that is reloaded from files.
#[derive(Debug, Clone)]
pub(super) enum Source<C> {
    Fixed(Arc<C>),
    Files(TlsFiles<C>),
}

impl<C: Send + Sync + 'static> Source<C> {
    pub(super) fn config(&self) -> Result<Arc<C>, TlsError> {
        match self {
            Self::Fixed(config) => Ok(Arc::clone(config)),
            Self::Files(files) => files.config(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_missing_file() {
        let paths = TlsPaths::default().with_certificate("/nowhere/tls.crt", "k").with_authorities("a");
        let error = ClientFiles::client(paths).unwrap_err().to_string();
        assert!(error.contains("certificate chain /nowhere/tls.crt"), "{error}");
    }
}
