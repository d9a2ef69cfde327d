//! Has a checked request signed: creates a CertificateSigningRequest, approves it, and waits for the certificate.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tokio::time::{sleep, timeout};
use webpki::EndEntityCert;

use super::limits::Digest;
use super::request::CheckedRequest;
use super::signer::NodeSigner;
use crate::kubernetes::api_error::ApiError;
use crate::kubernetes::node_name::NodeName;
use edge_csi_common::certificates::{ChainError, MAX_CHAIN_BYTES, certificates, verify_client};
use edge_csi_common::excerpt::excerpt;
use edge_transport::tls::peer_names;

/// The maximum wait for the certificate. Less than a node waits for its answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two reads of the request.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What a certificate of a node may be used for.
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignFailure {
    /// A request to the API server failed.
    #[error("{action}: {cause}")]
    Api {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        cause: ApiError,
    },
    /// The object of this name is not the request of the node.
    #[error("CertificateSigningRequest {0} exists and is another request; expected to create it")]
    Foreign(String),
    /// An approver or the signer has refused.
    #[error("CertificateSigningRequest {name} is {condition}: {reason}")]
    Refused {
        /// The object.
        name: String,
        /// `Denied` or `Failed`.
        condition: String,
        /// The reason and the message, cut to 200 bytes.
        reason: String,
    },
    /// The signer has not signed in time.
    #[error("CertificateSigningRequest {0} has no certificate yet; check that its signer runs")]
    Slow(String),
    /// The certificate is not for the name of the node alone.
    #[error("the signer issued a certificate for {found:?}; expected only the name of the node")]
    Names {
        /// The names.
        found: Vec<String>,
    },
    /// The certificate has another key.
    #[error("the signer issued a certificate that cannot be read, or that has another key than the request")]
    Key,
    /// The certificate is too large.
    #[error("the signer issued a chain of {0} bytes; expected at most {MAX_CHAIN_BYTES}")]
    TooLarge(usize),
    /// The hub itself would refuse the certificate.
    #[error("--client-ca does not accept the certificate that the signer issued: {0}")]
    Chain(#[from] ChainError),
    /// The authorities cannot be read.
    #[error("cannot read --client-ca {}: {source}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl SignFailure {
    /// Whether the same request may succeed later.
    pub(super) const fn may_succeed_later(&self) -> bool {
        !matches!(self, Self::Foreign(_) | Self::Refused { .. } | Self::Names { .. } | Self::Key)
    }
}

fn failed(action: &'static str) -> impl FnOnce(kube::Error) -> SignFailure {
    move |error| SignFailure::Api { action, cause: error.into() }
}

/// The signer, and how to reach it.
#[derive(Clone)]
pub(super) struct Signing {
    pub(super) client: Client,
    pub(super) signer: NodeSigner,
    /// The authorities of `--client-ca`.
    pub(super) authorities: PathBuf,
}

impl Signing {
    /// Returns a certificate chain, in PEM, for a checked request. An equal request joins the one before.
    pub(super) async fn sign(
        &self,
        node: &NodeName,
        (request, digest): (&[u8], &Digest),
        checked: CheckedRequest<'_>,
    ) -> Result<String, SignFailure> {
        let hex: String = digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("edge-csi-{hex}");
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let steps = async {
            let found = self.create(&api, &name, request).await?;
            if condition(&found, "Approved").is_none() {
                approve(&api, &name, node).await?;
            }
            certificate(&api, &name).await
        };
        let pem = timeout(TIMEOUT, steps).await.unwrap_or_else(|_| Err(SignFailure::Slow(name.clone())))?;
        check(&pem, node, checked, &self.authorities().await?, SystemTime::now())?;
        Ok(pem)
    }

    /// Creates the object, or returns the one that an equal request has created.
    async fn create(
        &self,
        api: &Api<CertificateSigningRequest>,
        name: &str,
        request: &[u8],
    ) -> Result<CertificateSigningRequest, SignFailure> {
        let pem = pem(request);
        let new = CertificateSigningRequest {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.clone().into_bytes()),
                signer_name: self.signer.as_str().to_owned(),
                usages: Some(USAGES.map(str::to_owned).into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let found = match api.create(&PostParams::default(), &new).await {
            Ok(created) => created,
            Err(error) => match ApiError::from(error) {
                ApiError::Conflict(_) => api.get(name).await.map_err(failed("reading the request"))?,
                cause => return Err(SignFailure::Api { action: "creating the request", cause }),
            },
        };
        // What is approved is what the node has sent: others may create objects of this name.
        let is_own = found.spec.request.0 == pem.as_bytes()
            && found.spec.signer_name == self.signer.as_str()
            && found.spec.usages.iter().flatten().eq(&USAGES);
        if is_own { Ok(found) } else { Err(SignFailure::Foreign(name.to_owned())) }
    }

    /// Reads the authorities that the hub accepts. A disk that hangs holds up no other call.
    async fn authorities(&self) -> Result<Vec<u8>, SignFailure> {
        let path = self.authorities.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let read = read.unwrap_or_else(|ended| Err(std::io::Error::other(ended)));
        read.map_err(|source| SignFailure::Authorities { path: self.authorities.clone(), source })
    }
}

async fn approve(
    api: &Api<CertificateSigningRequest>,
    name: &str,
    node: &NodeName,
) -> Result<(), SignFailure> {
    let approved = json!({ "status": { "conditions": [{
        "type": "Approved", "status": "True", "reason": "NodeRenewal",
        "message": format!("edge-hub: node {node} has proved its name and renews its certificate"),
    }]}});
    let patched = api.patch_approval(name, &PatchParams::default(), &Patch::Merge(approved)).await;
    patched.map_err(failed("approving the request"))?;
    Ok(())
}

/// Waits for the certificate of an approved request.
async fn certificate(api: &Api<CertificateSigningRequest>, name: &str) -> Result<String, SignFailure> {
    loop {
        let found = api.get(name).await.map_err(failed("reading the request"))?;
        for kind in ["Denied", "Failed"] {
            if let Some(found) = condition(&found, kind) {
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                let reason = format!("{} {}", text(&found.reason), text(&found.message));
                let reason = excerpt(reason.trim(), 200).to_owned();
                return Err(SignFailure::Refused {
                    name: name.to_owned(),
                    condition: kind.to_owned(),
                    reason,
                });
            }
        }
        if let Some(ByteString(pem)) = found.status.and_then(|status| status.certificate) {
            return if pem.len() > MAX_CHAIN_BYTES {
                Err(SignFailure::TooLarge(pem.len()))
            } else {
                String::from_utf8(pem).map_err(|_| SignFailure::Key)
            };
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn condition<'a>(
    request: &'a CertificateSigningRequest,
    kind: &str,
) -> Option<&'a CertificateSigningRequestCondition> {
    let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().find(|condition| condition.type_ == kind)
}

/// Checks that a chain is for the name and the key of the request only, and that the hub accepts it.
fn check(
    pem: &str,
    node: &NodeName,
    checked: CheckedRequest<'_>,
    authorities: &[u8],
    now: SystemTime,
) -> Result<(), SignFailure> {
    let chain = certificates(pem.as_bytes()).map_err(ChainError::from)?;
    let own: &CertificateDer<'_> = chain.first().ok_or(ChainError::Empty)?;
    let names = peer_names(own);
    if names.iter().any(|name| name.as_str() != node.as_str()) || names.is_empty() {
        return Err(SignFailure::Names { found: names.iter().map(ToString::to_string).collect() });
    }
    let parsed = EndEntityCert::try_from(own).map_err(|_| SignFailure::Key)?;
    if &*parsed.subject_public_key_info() != checked.public_key {
        return Err(SignFailure::Key);
    }
    Ok(verify_client(&chain, authorities, now)?)
}

/// Encodes a request as PEM (RFC 7468).
fn pem(request: &[u8]) -> String {
    let text = STANDARD.encode(request);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A signer that returns something else than it was asked for gives the node nothing.
    #[test]
    fn only_the_requested_certificate_is_passed_on() {
        let (own, other) = (authority(), authority());
        let (key, other_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let public_key = rcgen::PublicKeyData::subject_public_key_info(&key);
        let node = NodeName::new("edge-1").unwrap();
        let found = |names: &[&str], key: &KeyPair, by: &CertifiedIssuer<'static, KeyPair>| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let pem = params.signed_by(key, by).unwrap().pem();
            let checked = CheckedRequest { public_key: &public_key };
            check(&pem, &node, checked, own.pem().as_bytes(), SystemTime::now())
        };
        found(&["edge-1"], &key, &own).unwrap();
        for names in [&["edge-2"][..], &["edge-1", "csi-proxy"], &[]] {
            assert!(matches!(found(names, &key, &own), Err(SignFailure::Names { .. })), "{names:?}");
        }
        assert!(matches!(found(&["edge-1"], &other_key, &own), Err(SignFailure::Key)));
        assert!(matches!(found(&["edge-1"], &key, &other), Err(SignFailure::Chain(_))));
    }

    #[test]
    fn request_is_one_pem_section() {
        let text = pem(&[7; 100]);
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest <= 64, "{text}");
        let (label, bytes) = rustls_pki_types::pem::from_buf(&mut text.as_bytes()).unwrap().unwrap();
        assert!(matches!(label, rustls_pki_types::pem::SectionKind::Csr) && bytes == [7; 100]);
    }
}
