//! One test for each reason to refuse a request. Requests are made with another library.

use rcgen::{
    Attribute, BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa,
    KeyPair, KeyUsagePurpose, SanType, SignatureAlgorithm,
};

use super::*;

fn node() -> NodeName {
    NodeName::new("edge-1").unwrap()
}

fn params(names: &[&str], common_name: Option<&str>) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params
}

fn made_with(params: &CertificateParams, algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
    params.serialize_request(&KeyPair::generate_for(algorithm).unwrap()).unwrap().der().to_vec()
}

fn made(params: &CertificateParams) -> Vec<u8> {
    made_with(params, &rcgen::PKCS_ECDSA_P256_SHA256)
}

fn refused(params: &CertificateParams) -> RequestRefused {
    check(&made(params), &node()).unwrap_err()
}

#[test]
fn accepts_the_name_of_the_node_with_both_kinds_of_keys() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519] {
        for params in
            [params(&["edge-1"], None), params(&["edge-1"], Some("edge-1")), params(&[], Some("edge-1"))]
        {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let request = params.serialize_request(&key).unwrap();
            let checked = check(request.der(), &node()).unwrap();
            assert_eq!(checked.public_key, rcgen::PublicKeyData::subject_public_key_info(&key));
        }
    }
}

#[test]
fn longest_name_fits() {
    let long = [&"a".repeat(63)[..]; 4].join(".")[..NodeName::MAX_BYTES].to_owned();
    check(&made(&params(&[&long], None)), &NodeName::new(&long).unwrap()).unwrap();
}

#[test]
fn refuses_the_name_of_another() {
    for (names, common) in [
        (&["edge-2"][..], None),
        (&["csi-proxy"], None),
        (&[], Some("edge-2")),
        (&["edge-1"], Some("csi-proxy")),
        (&["edge-2"], Some("edge-1")),
        (&["edge-1", "edge-2"], None),
        (&["*.edge-1"], None),
        (&["Edge-1"], None),
    ] {
        let refusal = refused(&params(names, common));
        assert!(matches!(refusal, RequestRefused::ForeignName { .. }), "{names:?} {common:?}: {refusal}");
    }
}

#[test]
fn refuses_no_name_and_two_names() {
    assert_eq!(refused(&params(&[], None)), RequestRefused::NameCount { found: 0, common: 0 });
    let twice = params(&["edge-1", "edge-1"], None);
    assert_eq!(refused(&twice), RequestRefused::NameCount { found: 2, common: 0 });
}

#[test]
fn refuses_another_kind_of_name() {
    for name in [
        SanType::IpAddress([10, 0, 0, 1].into()),
        SanType::URI("spiffe://edge/edge-1".try_into().unwrap()),
        SanType::Rfc822Name("edge-1".try_into().unwrap()),
    ] {
        let mut params = params(&["edge-1"], None);
        params.subject_alt_names.push(name);
        assert_eq!(refused(&params), RequestRefused::NameKind);
    }
}

/// An organization is a group of Kubernetes, such as `system:masters`.
#[test]
fn refuses_more_in_the_subject() {
    let mut params = params(&["edge-1"], Some("edge-1"));
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    assert_eq!(refused(&params), RequestRefused::Subject);
}

#[test]
fn refuses_to_make_an_authority() {
    let mut params = params(&["edge-1"], None);
    let extension = CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 0x03, 0x01, 0x01, 0xff]);
    params.custom_extensions.push(extension);
    assert_eq!(refused(&params), RequestRefused::More("551d13".to_owned()));
}

#[test]
fn refuses_other_extensions_and_attributes() {
    let mut usage = params(&["edge-1"], None);
    usage.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    assert!(matches!(refused(&usage), RequestRefused::More(_)));
    // A challenge password.
    let attribute = Attribute { oid: &[1, 2, 840, 113_549, 1, 9, 7], values: vec![0x31, 0x02, 0x0c, 0x00] };
    let key = KeyPair::generate().unwrap();
    let request = params(&["edge-1"], None).serialize_request_with_attributes(&key, vec![attribute]).unwrap();
    assert!(matches!(check(request.der(), &node()), Err(RequestRefused::More(_))));
    let mut authority = params(&["edge-1"], None);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    if let Ok(request) = authority.serialize_request(&key) {
        // The library leaves the extension out, or the request is refused.
        let is_plain = !request.der().windows(3).any(|bytes| bytes == [0x55, 0x1d, 0x13]);
        assert!(is_plain || check(request.der(), &node()).is_err());
    }
}

#[test]
fn refuses_another_kind_of_key() {
    let request = made_with(&params(&["edge-1"], None), &rcgen::PKCS_ECDSA_P384_SHA384);
    assert_eq!(check(&request, &node()), Err(RequestRefused::KeyKind));
}

#[test]
fn refuses_a_signature_of_another_key() {
    let good = made(&params(&["edge-1"], None));
    let mut bad = good.clone();
    // The name is signed: a changed request has no valid signature.
    let at = good.windows(6).position(|bytes| bytes == b"edge-1").unwrap();
    bad[at + 5] = b'2';
    let other = NodeName::new("edge-2").unwrap();
    assert_eq!(check(&bad, &other), Err(RequestRefused::Signature));
    let other = made(&params(&["edge-1"], None));
    let Some(start) = good.len().checked_sub(60).filter(|_| good.len() == other.len()) else { return };
    let swapped = [&good[..start], &other[start..]].concat();
    assert!(check(&swapped, &node()).is_err());
}

#[test]
fn refuses_a_request_that_is_too_large() {
    let large = [made(&params(&["edge-1"], None)), vec![0; MAX_BYTES]].concat();
    assert!(matches!(check(&large, &node()), Err(RequestRefused::TooLarge { .. })));
}

/// No change of one byte, no cut and no addition is accepted or panics.
#[test]
fn refuses_damaged_requests() {
    let good = made(&params(&["edge-1"], Some("edge-1")));
    for end in 0..good.len() {
        assert!(check(&good[..end], &node()).is_err(), "cut at {end}");
    }
    assert!(check(&[&good[..], &[0x05, 0x00]].concat(), &node()).is_err());
    for at in 0..good.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0x81, 0x84, 0xff, good[at] ^ 0x20, good[at].wrapping_add(1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(bad == good || check(&bad, &node()).is_err(), "byte {at} is {value:#04x}");
        }
    }
}
