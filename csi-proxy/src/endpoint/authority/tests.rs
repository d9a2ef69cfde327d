use bytes::BytesMut;
use proptest::prelude::*;

use super::*;

/// The filtered input, pushed in pieces of this size.
fn filtered(input: &[u8], piece: usize) -> Vec<u8> {
    let (mut filter, mut passed) = (Filter::default(), BytesMut::new());
    input.chunks(piece).for_each(|piece| filter.push(piece, &mut passed));
    passed.to_vec()
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
    frame.extend_from_slice(payload);
    frame
}

/// A connection that starts with settings, headers with this block, and data.
fn connection(flags: u8, block: &[u8]) -> Vec<u8> {
    [vec![b'P'; PREFACE], frame(4, 0, &[]), frame(HEADERS, flags, block), frame(0, 1, b"data")].concat()
}

/// The method, then a field, then a path.
fn block(field: &[u8]) -> Vec<u8> {
    [b"\x83", field, b"\x04\x02/p"].concat()
}

#[test]
fn rewrites_invalid_authority_to_the_same_length() {
    let x = |length: usize| [&[0x41, length as u8][..], &b"x".repeat(length)].concat();
    // Plain and Huffman-coded; indexed, not indexed or never indexed; with an indexed or literal name.
    let cases: [(&[u8], Vec<u8>); 9] = [
        (b"\x41\x0d/csi/csi.sock", x(13)),
        (b"\x41\x11%2Fcsi%2Fcsi.sock", x(17)),
        (b"\x41\x89\x60\x88\x33\x04\x41\x97\x41\xc9\xd7", x(13)),
        (b"\x01\x0d/csi/csi.sock", b"\x01\x01x".to_vec()),
        (b"\x11\x0d/csi/csi.sock", b"\x01\x01x".to_vec()),
        (b"\x40\x0a:authority\x02/p", b"\x40\x0a:authority\x02xx".to_vec()),
        (b"\x41\x00", b"\x7a\x00".to_vec()),
        (b"\x81", b"\x01\x01x".to_vec()),
        (b"\x01\x00", b"\x01\x01x".to_vec()),
    ];
    for (field, expected) in cases {
        let expected = connection(4, &block(&expected));
        for piece in [1, 5, 1000] {
            assert_eq!(filtered(&connection(4, &block(field)), piece), expected, "{field:x?} by {piece}");
        }
    }
}

#[test]
fn valid_or_absent_authority_ends_inspection() {
    for field in [&b"\x41\x09localhost"[..], b"\x41\x86\xa0\xe4\x1d\x13\x9d\x09", b"\x01\x06[::1]:", b""] {
        let mut input = connection(4, &block(field));
        input.extend(frame(HEADERS, 4, &block(b"\x41\x02/p")));
        assert_eq!(filtered(&input, 7), input, "{field:x?}");
    }
}

#[test]
fn rewrites_later_calls_of_the_connection() {
    let later =
        |field: &[u8]| [connection(4, &block(b"\x41\x02/p")), frame(HEADERS, 4, &block(field))].concat();
    let out = filtered(&later(b"\x41\x03/pp"), 3);
    assert!(out.ends_with(&frame(HEADERS, 4, &block(b"\x41\x03xxx"))));
    let out = filtered(&later(b"\xbe"), 3);
    assert!(out.ends_with(&frame(HEADERS, 4, &block(b"\xbe"))));
}

#[test]
fn skips_priority_and_passes_padded_or_large_blocks() {
    let priority = [b"\0\0\0\0\x10", &*block(b"\x41\x02/p")].concat();
    let expected = [b"\0\0\0\0\x10", &*block(b"\x41\x02xx")].concat();
    assert_eq!(filtered(&connection(0x24, &priority), 9), connection(0x24, &expected));
    for (flags, block) in [(PADDED, block(b"\x41\x02/p")), (4, vec![0x41; MAX_BLOCK + 1])] {
        let input = connection(flags, &block);
        assert_eq!(filtered(&input, 11), input);
    }
}

proptest! {
    #[test]
    fn result_is_independent_of_the_pieces(
        junk in prop::collection::vec(any::<u8>(), 0..200),
        length in 0_u8..60,
        piece in 1_usize..50,
    ) {
        let input = [&[b'P'; PREFACE][..], &[0, 0, length, HEADERS, 4, 0, 0, 0, 1], &junk].concat();
        prop_assert_eq!(filtered(&input, piece), filtered(&input, input.len()));
    }
}
