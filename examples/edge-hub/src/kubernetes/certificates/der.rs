//! A strict reader of DER: definite, shortest lengths only. What follows an element is an error where nothing may follow.

/// Tags of the elements that a certificate request has (X.690 section 8.1.2).
pub(super) mod tag {
    pub(in super::super) const BOOLEAN: u8 = 0x01;
    pub(in super::super) const INTEGER: u8 = 0x02;
    pub(in super::super) const BIT_STRING: u8 = 0x03;
    pub(in super::super) const OCTET_STRING: u8 = 0x04;
    pub(in super::super) const OID: u8 = 0x06;
    pub(in super::super) const UTF8_STRING: u8 = 0x0c;
    pub(in super::super) const PRINTABLE_STRING: u8 = 0x13;
    pub(in super::super) const SEQUENCE: u8 = 0x30;
    pub(in super::super) const SET: u8 = 0x31;
    /// The DNS name of a GeneralName.
    pub(in super::super) const DNS_NAME: u8 = 0x82;
    /// The attributes of a certificate request.
    pub(in super::super) const ATTRIBUTES: u8 = 0xa0;
}

/// One element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// Tag, length and content.
    pub(super) whole: &'a [u8],
}

/// Reads elements one after another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next element; `None` if there is none, or if it is not DER.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, header) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81 => (usize::from(*rest.first()?), 3),
            0x82 => (usize::from(u16::from_be_bytes(*rest.first_chunk::<2>()?)), 4),
            // A request is smaller than 64 KiB.
            _ => return None,
        };
        let shortest = match header {
            2 => true,
            3 => length >= 0x80,
            _ => length > 0xff,
        };
        let (whole, after) = self.0.split_at_checked(header + length).filter(|_| shortest)?;
        self.0 = after;
        Some(Element { tag, content: &whole[header..], whole })
    }

    /// Reads the next element, which must have this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<Element<'a>> {
        self.next().filter(|element| element.tag == tag)
    }
}

/// Reads the content of the one element that the bytes are, which must have this tag.
pub(super) fn only(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let mut reader = Reader::new(bytes);
    reader.expect(tag).filter(|_| reader.is_empty()).map(|element| element.content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shortest_length_is_read() {
        let long = [&[0x04, 0x81, 0x80][..], &[7; 0x80]].concat();
        let longer = [&[0x04, 0x82, 0x01, 0x00][..], &[7; 0x100]].concat();
        for valid in [&[0x04, 0x00][..], &[0x04, 0x01, 0x07], &long, &longer] {
            assert!(only(valid, tag::OCTET_STRING).is_some(), "{valid:?}");
        }
        let indefinite = [0x04, 0x80, 0x00, 0x00];
        let padded = [0x04, 0x81, 0x01, 0x07];
        let padded_twice = [&[0x04, 0x82, 0x00, 0x80][..], &[7; 0x80]].concat();
        for bad in [&[][..], &[0x04], &[0x04, 0x01], &indefinite, &padded, &padded_twice, &[0x04, 0x00, 0x00]]
        {
            assert_eq!(only(bad, tag::OCTET_STRING), None, "{bad:?}");
        }
        assert_eq!(only(&[0x05, 0x00], tag::OCTET_STRING), None, "another tag");
    }
}
