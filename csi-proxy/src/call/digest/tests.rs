use std::collections::BTreeMap;

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use proptest::prelude::*;
use prost::Message as _;

use super::*;

/// A length-delimited field, encoded.
fn delimited(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut field);
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend_from_slice(bytes);
    field
}

fn entry(number: u32, key: &str, value: &str) -> Vec<u8> {
    delimited(number, &[delimited(1, key.as_bytes()), delimited(2, value.as_bytes())].concat())
}

fn segments(order: [usize; 2]) -> Vec<u8> {
    let zone = [entry(1, "zone", "z1"), entry(1, "rack", "r7")];
    order.map(|at| zone[at].clone()).concat()
}

fn create(request: &[u8]) -> Digest {
    Digest::of(Method::CreateVolume.request_shape(), request)
}

/// A CreateVolume with every kind of field, in an order chosen by `swapped`.
fn parts(swapped: bool) -> Vec<Vec<u8>> {
    let order = if swapped { [1, 0] } else { [0, 1] };
    let topology = delimited(1, &segments(order));
    vec![
        delimited(1, b"pvc-1"),
        delimited(2, &[0x08, 0x80, 0x01]),
        entry(4, "type", "ssd"),
        entry(4, "iops", "10"),
        entry(5, "password", "canary"),
        delimited(7, &[topology.clone(), topology].concat()),
        entry(8, "tier", "gold"),
    ]
}

#[test]
fn order_of_fields_and_map_entries_is_ignored() {
    let expected = create(&parts(false).concat());
    let mut turned = parts(true);
    turned.reverse();
    assert_eq!(create(&turned.concat()), expected);
    let typed = csi::CreateVolumeRequest::decode(&*turned.concat()).unwrap();
    assert_eq!(create(&typed.encode_to_vec()), expected, "also as encoded by prost");
}

#[test]
fn every_field_but_the_secrets_counts() {
    let expected = create(&parts(false).concat());
    for left_out in 0..parts(false).len() {
        let mut parts = parts(false);
        let secret = parts.remove(left_out).starts_with(&[5 << 3 | 2]);
        assert_eq!(create(&parts.concat()) == expected, secret, "part {left_out}");
    }
    let mut other = parts(false);
    other[4] = entry(5, "password", "another");
    assert_eq!(create(&other.concat()), expected);
    other[4] = entry(4, "password", "another");
    assert_ne!(create(&other.concat()), expected);
}

#[test]
fn order_of_a_list_counts() {
    let (one, two) = (delimited(1, &segments([0, 1])), delimited(1, &entry(1, "zone", "z2")));
    let with = |list: Vec<u8>| create(&[delimited(1, b"pvc-1"), delimited(7, &list)].concat());
    assert_ne!(with([one.clone(), two.clone()].concat()), with([two, one].concat()));
}

#[test]
fn fields_of_a_later_version_count() {
    let known = parts(false).concat();
    let (one, other) = (delimited(99, b"1"), delimited(99, b"2"));
    let digests = [&[][..], &one, &other].map(|unknown| create(&[known.clone(), unknown.to_vec()].concat()));
    assert!(digests[0] != digests[1] && digests[1] != digests[2]);
}

#[test]
fn service_account_token_is_a_secret() {
    let publish = |entries: &[Vec<u8>]| {
        let request = [delimited(1, b"vol-1"), entries.concat()].concat();
        Digest::of(Method::NodePublishVolume.request_shape(), &request)
    };
    let (shape, context) = (Method::NodePublishVolume.request_shape(), entry(8, "share", "a"));
    assert!(matches!(shape.field(8), Some(Inside::Map)), "volume_context");
    assert_eq!(
        publish(&[context.clone(), entry(8, TOKENS, "old")]),
        publish(&[entry(8, TOKENS, "new"), context])
    );
}

#[test]
fn last_map_entry_of_a_key_counts() {
    let with = |entries: &[Vec<u8>]| create(&entries.concat());
    let (one, two) = (entry(4, "a", "1"), entry(4, "a", "2"));
    assert_eq!(with(&[one.clone(), two.clone()]), with(std::slice::from_ref(&two)));
    assert_ne!(with(&[two, one]), with(&[entry(4, "a", "2")]));
}

#[test]
fn invalid_protobuf_is_digested_as_bytes() {
    let digests = [&b"\xff"[..], b"\xff\xff", b"\x0b", b"\x0a\x05x", b""].map(create);
    for (at, digest) in digests.iter().enumerate() {
        assert!(!digests[..at].contains(digest), "{at}");
    }
}

/// The same parts in an order chosen by `seed`.
fn shuffled(parts: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut keyed: Vec<_> = parts.iter().enumerate().collect();
    keyed
        .sort_by_key(|(at, _)| (seed ^ (*at as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
    keyed.into_iter().flat_map(|(_, part)| part.clone()).collect()
}

proptest! {
    #[test]
    fn maps_are_equal_iff_they_decode_equal(
        one in prop::collection::btree_map("[ab]{0,2}", "[ab]{0,2}", 0..4),
        two in prop::collection::btree_map("[ab]{0,2}", "[ab]{0,2}", 0..4),
        seed: u64,
    ) {
        let encoded = |map: &BTreeMap<String, String>, seed| {
            let parts: Vec<_> = map.iter().map(|(key, value)| entry(4, key, value)).collect();
            create(&shuffled(&parts, seed))
        };
        prop_assert_eq!(encoded(&one, 0), encoded(&one, seed));
        prop_assert_eq!(encoded(&one, 0) == encoded(&two, seed), one == two);
    }

    #[test]
    fn any_bytes_have_a_digest(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert_eq!(create(&bytes), create(&bytes));
    }
}
