//! The kernel's escapes in the mount table: a backslash and three octal digits.

/// Decodes a field. `None` if a backslash is not followed by three octal digits up to 377.
pub(super) fn decode(field: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'\\' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..3)?;
        let mut value = 0u32;
        for digit in digits {
            if !(b'0'..=b'7').contains(digit) {
                return None;
            }
            value = value * 8 + u32::from(digit - b'0');
        }
        bytes.push(u8::try_from(value).ok()?);
        rest = &tail[3..];
    }
    Some(bytes)
}

/// Encodes bytes as one word of text for [`decode`]. Everything but visible ASCII is escaped. The result may be empty.
#[cfg(all(feature = "linux", target_os = "linux"))]
pub(super) fn encode_as_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'\\' {
            text.push(char::from(byte));
        } else {
            text.push('\\');
            text.extend([byte >> 6, byte >> 3 & 7, byte & 7].map(|digit| char::from(b'0' + digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decodes_kernel_escapes_and_rejects_others() {
        assert_eq!(decode(br"/a\040b\011\012\134\043"), Some(b"/a b\t\n\\#".to_vec()));
        assert_eq!(decode(br"\377\000"), Some(vec![255, 0]));
        assert_eq!(decode(b"\xff/\xfe"), Some(b"\xff/\xfe".to_vec()));
        for broken in [&br"\4"[..], br"\04", br"\400", br"\08x", br"\xff", br"a\"] {
            assert_eq!(decode(broken), None, "{}", broken.escape_ascii());
        }
    }

    proptest! {
        #[test]
        #[cfg(all(feature = "linux", target_os = "linux"))]
        fn encode_and_decode_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let field = encode_as_text(&bytes);
            prop_assert!(!field.contains(' ') && !field.contains('\n'));
            prop_assert_eq!(decode(field.as_bytes()), Some(bytes));
        }
    }
}
