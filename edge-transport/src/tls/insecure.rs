//! Encryption without authentication, for experiments.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

use super::{ServerTls, TlsError, protocols, provider, server};

/// Accepts any server certificate. Verifies the signature, so that the server holds the certificate's key.
#[derive(Debug)]
pub(super) struct AcceptAnyServer(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerTls {
    /// Encrypts without authentication: a self-signed certificate with a new key, and no client certificates. Only
    /// [`ClientTls::insecure`](super::ClientTls::insecure) connects to it.
    ///
    /// # Errors
    /// If the system has no randomness, or the TLS library rejects the configuration.
    pub fn insecure() -> Result<Self, TlsError> {
        let certificate = self_signed().map_err(|error| TlsError::Config(error.to_string()))?;
        let resolver = Arc::new(SingleCertAndKey::from(certificate));
        let mut config = server::builder()?.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = protocols();
        Ok(Arc::new(config).into())
    }
}

/// PKCS#8 prefix of the 32 bytes of an Ed25519 seed (RFC 8410 section 7).
const KEY_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Algorithm identifier of Ed25519 (RFC 8410 section 3).
const ED25519: [u8; 7] = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];

fn self_signed() -> Result<CertifiedKey, Error> {
    let provider = provider();
    let (mut seed, mut serial) = ([0; 32], [0; 8]);
    provider.secure_random.fill(&mut seed)?;
    provider.secure_random.fill(&mut serial)?;
    // A serial number in DER must be positive and have no leading zero byte.
    serial[0] = serial[0] & 0x3f | 0x40;
    let key = PrivatePkcs8KeyDer::from([&KEY_PREFIX[..], &seed].concat());
    let key = provider.key_provider.load_private_key(key.into())?;
    let unsupported = || Error::General("the crypto library has no Ed25519".to_owned());
    let public = key.public_key().ok_or_else(unsupported)?;
    let signer = key.choose_scheme(&[SignatureScheme::ED25519]).ok_or_else(unsupported)?;

    let common_name =
        element(0x30, &[element(0x06, &[0x55, 0x04, 0x03]), element(0x0c, b"insecure")].concat());
    let name = element(0x30, &element(0x31, &common_name));
    let validity = [element(0x17, b"200101000000Z"), element(0x18, b"99991231235959Z")].concat();
    let body = element(
        0x30,
        &[
            &element(0xa0, &element(0x02, &[2]))[..],
            &element(0x02, &serial),
            &ED25519,
            &name,
            &element(0x30, &validity),
            &name,
            public.as_ref(),
        ]
        .concat(),
    );
    let signature = [&[0][..], &signer.sign(&body)?].concat();
    let certificate = element(0x30, &[&body[..], &ED25519, &element(0x03, &signature)].concat());
    Ok(CertifiedKey::new(vec![CertificateDer::from(certificate)], key))
}

/// Encodes one DER element of less than 64 KiB.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let mut out = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_signed_certificate_matches_its_key() {
        let made = self_signed().unwrap();
        made.keys_match().unwrap();
        let names = super::super::peer_names(made.end_entity_cert().unwrap());
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].as_str(), "insecure");
    }
}
