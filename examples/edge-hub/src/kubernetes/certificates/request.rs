//! Checks that a certificate request (PKCS #10, RFC 2986) asks for the name of its node and for nothing else.
//!
//! Whatever is not named here is refused, so that no other reading of the same bytes can find more in them.

use rustls_pki_types::SignatureVerificationAlgorithm;
use webpki::ring::{ECDSA_P256_SHA256, ED25519};

use super::der::{Element, Reader, only, tag};
use crate::kubernetes::node_name::NodeName;
use edge_csi_common::excerpt::excerpt;

/// The maximum length of a request in bytes. A request for the longest name is shorter.
pub(super) const MAX_BYTES: usize = 1024;

/// 2.5.4.3, the common name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 1.2.840.113549.1.9.14, the requested extensions.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// 2.5.29.17, the subject alternative name.
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A kind of key: the contents of its algorithm identifiers, and the length of its public key.
struct KeyKind {
    key: &'static [u8],
    signature: &'static [u8],
    bytes: usize,
    algorithm: &'static dyn SignatureVerificationAlgorithm,
}

/// The kinds of keys that a request may have.
static KEY_KINDS: [KeyKind; 2] = [
    KeyKind {
        // 1.2.840.10045.2.1 and 1.2.840.10045.3.1.7
        key: &[
            0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
            0x03, 0x01, 0x07,
        ],
        // 1.2.840.10045.4.3.2
        signature: &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],
        // An uncompressed point.
        bytes: 65,
        algorithm: ECDSA_P256_SHA256,
    },
    KeyKind {
        // 1.3.101.112
        key: &[0x06, 0x03, 0x2b, 0x65, 0x70],
        signature: &[0x06, 0x03, 0x2b, 0x65, 0x70],
        bytes: 32,
        algorithm: ED25519,
    },
];

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestRefused {
    /// The request is too large.
    #[error("the request has {found} bytes; expected at most {MAX_BYTES}")]
    TooLarge {
        /// Its length.
        found: usize,
    },
    /// The bytes are not a request.
    #[error("not a PKCS #10 request in DER: cannot read {0}")]
    Malformed(&'static str),
    /// The kind of key is not supported.
    #[error("the key or its signature is neither ECDSA P-256 with SHA-256 nor Ed25519")]
    KeyKind,
    /// The signature is not by the key.
    #[error("the signature of the request does not belong to its key")]
    Signature,
    /// A name is not that of the node.
    #[error("the request is for {found:?}; expected only {expected}, the name that the node has proved")]
    ForeignName {
        /// The first other name, cut to 100 bytes.
        found: String,
        /// The name of the node.
        expected: NodeName,
    },
    /// The request has no name, or more than one.
    #[error(
        "the request has {found} DNS names and {common} common names; expected one name, that of the node"
    )]
    NameCount {
        /// The number of DNS names.
        found: usize,
        /// The number of common names.
        common: usize,
    },
    /// The subject has something else than a common name.
    #[error("the subject of the request has more than a common name")]
    Subject,
    /// A name is of another kind.
    #[error("the request has an alternative name that is not a DNS name")]
    NameKind,
    /// The request has another attribute or extension.
    #[error("the request asks for more than an alternative name: attribute or extension {0}")]
    More(String),
}

/// A checked request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CheckedRequest<'a> {
    /// The public key, as in a certificate (SubjectPublicKeyInfo in DER).
    pub(super) public_key: &'a [u8],
}

/// Checks a request of a node.
///
/// # Errors
/// If the request is not signed by its key, or asks for anything but the name of the node.
pub(super) fn check<'a>(request: &'a [u8], node: &NodeName) -> Result<CheckedRequest<'a>, RequestRefused> {
    if request.len() > MAX_BYTES {
        return Err(RequestRefused::TooLarge { found: request.len() });
    }
    let mut outer = Reader::new(read(only(request, tag::SEQUENCE), "the request")?);
    let info = read(outer.expect(tag::SEQUENCE), "its content")?;
    let algorithm = read(outer.expect(tag::SEQUENCE), "the algorithm of its signature")?;
    let signature = bits(read(outer.expect(tag::BIT_STRING), "its signature")?)?;
    end(outer)?;

    let mut reader = Reader::new(info.content);
    if read(reader.expect(tag::INTEGER), "its version")?.content != [0] {
        return Err(RequestRefused::Malformed("its version"));
    }
    let subject = read(reader.expect(tag::SEQUENCE), "its subject")?;
    let key = read(reader.expect(tag::SEQUENCE), "its key")?;
    let attributes = read(reader.expect(tag::ATTRIBUTES), "its attributes")?;
    end(reader)?;

    verify(info, key, (algorithm, signature))?;
    check_names(&common_names(subject.content)?, &dns_names(attributes.content)?, node)?;
    Ok(CheckedRequest { public_key: key.whole })
}

fn read<T>(found: Option<T>, part: &'static str) -> Result<T, RequestRefused> {
    found.ok_or(RequestRefused::Malformed(part))
}

const fn end(reader: Reader<'_>) -> Result<(), RequestRefused> {
    if reader.is_empty() { Ok(()) } else { Err(RequestRefused::Malformed("what follows its last part")) }
}

/// Returns the bytes of a bit string, which must be whole.
fn bits(element: Element<'_>) -> Result<&[u8], RequestRefused> {
    match element.content.split_first() {
        Some((0, bytes)) => Ok(bytes),
        _ => Err(RequestRefused::Malformed("a bit string")),
    }
}

/// Checks the kind of the key, and that the key has signed the request.
fn verify(
    info: Element<'_>,
    key: Element<'_>,
    (algorithm, signature): (Element<'_>, &[u8]),
) -> Result<(), RequestRefused> {
    let mut reader = Reader::new(key.content);
    let kind = read(reader.expect(tag::SEQUENCE), "the kind of its key")?;
    let public = bits(read(reader.expect(tag::BIT_STRING), "its key")?)?;
    end(reader)?;
    let same = |known: &&KeyKind| kind.content == known.key && algorithm.content == known.signature;
    let kind = KEY_KINDS.iter().find(same).filter(|known| public.len() == known.bytes);
    let kind = kind.ok_or(RequestRefused::KeyKind)?;
    let verified = kind.algorithm.verify_signature(public, info.whole, signature);
    verified.map_err(|_| RequestRefused::Signature)
}

fn check_names(common: &[&[u8]], dns: &[&[u8]], node: &NodeName) -> Result<(), RequestRefused> {
    let is_foreign = |name: &&&[u8]| **name != node.as_str().as_bytes();
    if let Some(foreign) = dns.iter().chain(common).find(is_foreign) {
        let found = excerpt(&String::from_utf8_lossy(foreign), 100).to_owned();
        return Err(RequestRefused::ForeignName { found, expected: node.clone() });
    }
    match (dns.len(), common.len()) {
        (1, 0 | 1) | (0, 1) => Ok(()),
        (found, common) => Err(RequestRefused::NameCount { found, common }),
    }
}

/// Returns the common names of a subject that has nothing else.
fn common_names(subject: &[u8]) -> Result<Vec<&[u8]>, RequestRefused> {
    let mut names = Vec::new();
    let mut parts = Reader::new(subject);
    while !parts.is_empty() {
        let part = read(parts.expect(tag::SET), "its subject")?.content;
        let mut attribute = Reader::new(read(only(part, tag::SEQUENCE), "its subject")?);
        if read(attribute.expect(tag::OID), "its subject")?.content != COMMON_NAME {
            return Err(RequestRefused::Subject);
        }
        let value = read(attribute.next(), "its subject")?;
        end(attribute)?;
        if ![tag::UTF8_STRING, tag::PRINTABLE_STRING].contains(&value.tag) {
            return Err(RequestRefused::Subject);
        }
        names.push(value.content);
    }
    Ok(names)
}

/// Returns the DNS names of attributes that ask for nothing else.
fn dns_names(attributes: &[u8]) -> Result<Vec<&[u8]>, RequestRefused> {
    let mut names = Vec::new();
    let mut attributes = Reader::new(attributes);
    while !attributes.is_empty() {
        let mut attribute = Reader::new(read(attributes.expect(tag::SEQUENCE), "its attributes")?.content);
        let kind = read(attribute.expect(tag::OID), "its attributes")?.content;
        if kind != EXTENSION_REQUEST {
            return Err(RequestRefused::More(hex(kind)));
        }
        let values = read(attribute.expect(tag::SET), "its attributes")?.content;
        end(attribute)?;
        let mut extensions = Reader::new(read(only(values, tag::SEQUENCE), "its extensions")?);
        while !extensions.is_empty() {
            let extension = read(extensions.expect(tag::SEQUENCE), "its extensions")?.content;
            names.extend(names_of_extension(extension)?);
        }
    }
    Ok(names)
}

fn names_of_extension(extension: &[u8]) -> Result<Vec<&[u8]>, RequestRefused> {
    const PART: &str = "an extension";
    let mut extension = Reader::new(extension);
    let kind = read(extension.expect(tag::OID), PART)?.content;
    if kind != SUBJECT_ALTERNATIVE_NAME {
        return Err(RequestRefused::More(hex(kind)));
    }
    let mut value = read(extension.next(), PART)?;
    if value.tag == tag::BOOLEAN && value.content == [0xff] {
        value = read(extension.next(), PART)?;
    }
    end(extension)?;
    if value.tag != tag::OCTET_STRING {
        return Err(RequestRefused::Malformed(PART));
    }
    let mut names = Vec::new();
    let mut reader = Reader::new(read(only(value.content, tag::SEQUENCE), PART)?);
    while !reader.is_empty() {
        let name = read(reader.next(), PART)?;
        if name.tag != tag::DNS_NAME {
            return Err(RequestRefused::NameKind);
        }
        names.push(name.content);
    }
    Ok(names)
}

/// The content of an object identifier in hexadecimal, at most 32 bytes of it.
fn hex(oid: &[u8]) -> String {
    oid.iter().take(32).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
