//! The Huffman code of header texts (RFC 7541, appendix B), restricted to the characters of paths and names.

/// The characters with codes of each length in bits. Codes count up through the characters in this order, and
/// continue in the next length where the last ended, which defines the whole code. Longer codes belong to bytes
/// that no path contains.
const CHARACTERS_BY_LENGTH: [(u32, &[u8]); 10] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

/// Decodes a text; `None` if it contains a byte that is not in the table, or is invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    // The shortest code has five bits.
    let mut text = Vec::with_capacity(bytes.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        if let Some(character) = character(code, length) {
            text.push(character);
            (code, length) = (0, 0);
        } else if length > 15 {
            return None;
        }
    }
    // The last byte is padded with ones.
    (length < 8 && code == (1 << length) - 1).then_some(text)
}

fn character(code: u32, length: u32) -> Option<u8> {
    let (mut first, mut before) = (0, 0);
    for (bits, characters) in CHARACTERS_BY_LENGTH {
        first <<= bits - before;
        before = bits;
        if bits == length {
            return characters.get(usize::try_from(code.checked_sub(first)?).ok()?).copied();
        }
        first += u32::try_from(characters.len()).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_examples_of_the_rfc() {
        let cases: [(&[u8], &str); 4] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (
                b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3",
                "https://www.example.com",
            ),
        ];
        for (bytes, text) in cases {
            assert_eq!(decode(bytes).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(decode(b""), Some(Vec::new()));
        for none in
            [&b"\xff"[..], b"\x00", b"\xff\xff\xff\xff", b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\x00"]
        {
            assert_eq!(decode(none), None, "{none:x?}");
        }
    }
}
