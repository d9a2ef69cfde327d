//! Reads the parts of an X.509 certificate that the verifier does not expose: its serial number, its validity, the subject's
//! common name, and whether it has a subject alternative name; and the parts of a certificate revocation list. It supports only
//! definite lengths, copies nothing, and returns `None` for everything else.

/// Tag bytes (X.690 section 8.1.2) of the elements of a certificate.
mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const BIT_STRING: u8 = 0x03;
    pub(super) const OID: u8 = 0x06;
    pub(super) const UTF8_STRING: u8 = 0x0c;
    pub(super) const PRINTABLE_STRING: u8 = 0x13;
    pub(super) const IA5_STRING: u8 = 0x16;
    pub(super) const UTC_TIME: u8 = 0x17;
    pub(super) const GENERALIZED_TIME: u8 = 0x18;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    pub(super) const VERSION: u8 = 0xa0;
    pub(super) const EXTENSIONS: u8 = 0xa3;
}

/// 2.5.4.3, the common name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// 2.5.29.17, the extension with the subject alternative name.
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the tag and the content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk::<2>()?;
        let mut length = usize::from(first);
        if first & 0x80 != 0 {
            let bytes = usize::from(first & 0x7f);
            if !(1..=4).contains(&bytes) {
                return None;
            }
            let (digits, after) = rest.split_at_checked(bytes)?;
            length = digits.iter().fold(0_usize, |sum, digit| sum << 8 | usize::from(*digit));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }

    /// Returns the whole next element, and its content.
    fn next_whole(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let before = self.0;
        let (_, content) = self.next()?;
        Some((before.get(..before.len() - self.0.len())?, content))
    }

    /// Returns the content of the next element, which must have this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }
}

/// The parts of a certificate's body.
pub(super) struct Body<'a> {
    #[cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only links need it"))]
    serial: &'a [u8],
    not_before: (u8, &'a [u8]),
    not_after: (u8, &'a [u8]),
    subject: &'a [u8],
    /// The public key, and what follows it.
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// Reads a certificate (RFC 5280 section 4.1).
    pub(super) fn read(certificate: &'a [u8]) -> Option<Self> {
        let mut outer = Reader(Reader(certificate).expect(tag::SEQUENCE)?);
        let mut body = Reader(outer.expect(tag::SEQUENCE)?);
        if body.0.first() == Some(&tag::VERSION) {
            body.next()?;
        }
        let serial = body.expect(tag::INTEGER)?;
        body.expect(tag::SEQUENCE)?;
        body.expect(tag::SEQUENCE)?;
        let mut validity = Reader(body.expect(tag::SEQUENCE)?);
        let not_before = validity.next()?;
        let not_after = validity.next()?;
        let subject = body.expect(tag::SEQUENCE)?;
        Some(Self { serial, not_before, not_after, subject, rest: body.0 })
    }

    /// Whether the certificate has the extension with the subject alternative name; `None` if that is not readable.
    pub(super) fn has_alternative_name(&self) -> Option<bool> {
        let mut rest = Reader(self.rest);
        rest.expect(tag::SEQUENCE)?;
        while !rest.0.is_empty() {
            // Two optional identifiers may precede the extensions.
            let (tag::EXTENSIONS, extensions) = rest.next()? else { continue };
            let mut extensions = Reader(Reader(extensions).expect(tag::SEQUENCE)?);
            while !extensions.0.is_empty() {
                let mut extension = Reader(extensions.expect(tag::SEQUENCE)?);
                if extension.expect(tag::OID)? == SUBJECT_ALTERNATIVE_NAME {
                    return Some(true);
                }
            }
        }
        Some(false)
    }

    /// The serial number, without leading zero bytes.
    #[cfg(any(feature = "runtime", test))]
    pub(super) fn serial(&self) -> &'a [u8] {
        let zeros = self.serial.iter().take_while(|byte| **byte == 0).count();
        self.serial.get(zeros..).unwrap_or_default()
    }

    /// When the certificate begins to be valid, in seconds since 1970.
    pub(super) fn not_before(&self) -> Option<u64> {
        seconds_since_1970(self.not_before)
    }

    /// When the certificate expires, in seconds since 1970.
    pub(super) fn not_after(&self) -> Option<u64> {
        seconds_since_1970(self.not_after)
    }

    /// The subject's common name, if it has exactly one.
    pub(super) fn common_name(&self) -> Option<&'a str> {
        let mut subject = Reader(self.subject);
        let mut found = None;
        while let Some(set) = subject.expect(tag::SET) {
            let mut set = Reader(set);
            while let Some(attribute) = set.expect(tag::SEQUENCE) {
                let mut attribute = Reader(attribute);
                if attribute.expect(tag::OID)? != COMMON_NAME {
                    continue;
                }
                if found.is_some() {
                    return None;
                }
                match attribute.next()? {
                    (tag::UTF8_STRING | tag::PRINTABLE_STRING | tag::IA5_STRING, text) => {
                        found = Some(std::str::from_utf8(text).ok()?);
                    }
                    _ => return None,
                }
            }
        }
        found
    }
}

/// The parts of a certificate revocation list (RFC 5280 section 5.1).
pub(super) struct RevocationList<'a> {
    /// What is signed.
    pub(super) body: &'a [u8],
    /// Content of the algorithm identifier of the signature.
    pub(super) algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
    /// When the authority issues the next list at the latest, in seconds since 1970.
    pub(super) next_update: Option<u64>,
}

impl<'a> RevocationList<'a> {
    /// Reads a list of version 2.
    pub(super) fn read(list: &'a [u8]) -> Option<Self> {
        let mut outer = Reader(Reader(list).expect(tag::SEQUENCE)?);
        let (body, content) = outer.next_whole()?;
        let algorithm = outer.expect(tag::SEQUENCE)?;
        // The first byte is the number of unused bits.
        let (&0, signature) = outer.expect(tag::BIT_STRING)?.split_first()? else { return None };
        let mut fields = Reader(content);
        fields.expect(tag::INTEGER)?;
        fields.expect(tag::SEQUENCE)?;
        fields.expect(tag::SEQUENCE)?;
        fields.next()?;
        let next_update = fields.next().and_then(seconds_since_1970);
        Some(Self { body, algorithm, signature, next_update })
    }
}

/// Reads a time with its tag (RFC 5280 section 4.1.2.5).
fn seconds_since_1970((tag, text): (u8, &[u8])) -> Option<u64> {
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0_u64, |sum, c| c.is_ascii_digit().then(|| sum * 10 + u64::from(c - b'0')))
    };
    let (year, rest) = match tag {
        // Two digits of the year mean 1950 to 2049 (RFC 5280 section 4.1.2.5.1).
        tag::UTC_TIME if text.len() == 13 => match number(&text[..2])? {
            short @ 50.. => (1900 + short, &text[2..]),
            short => (2000 + short, &text[2..]),
        },
        tag::GENERALIZED_TIME if text.len() == 15 => (number(&text[..4])?, &text[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    let (month, day, time) = (month?, day?, hour? * 3600 + minute? * 60 + second?);
    if rest[10] != b'Z' || !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + time)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, from 1970 on.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // 719_468 days lie between 0000-03-01 and 1970-01-01.
    (year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1) - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "edge");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2021, 3, 1);
        params.not_after = rcgen::date_time_ymd(2031, 3, 1);
        params.serial_number = Some(vec![0xab, 0x01].into());
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn reads_common_name_and_expiry() {
        let der = certificate("edge-1");
        let body = Body::read(&der).unwrap();
        assert_eq!(body.common_name(), Some("edge-1"));
        assert_eq!((body.not_before(), body.not_after()), (Some(1_614_556_800), Some(1_930_089_600)));
        assert_eq!(body.serial(), [0xab, 0x01], "the sign byte is not part of the number");
        assert_eq!(body.has_alternative_name(), Some(true));
    }

    #[test]
    fn counts_calendar_days() {
        for (date, days) in
            [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017), ((2038, 1, 19), 24_855)]
        {
            assert_eq!(days_since_1970(date.0, date.1, date.2), days, "{date:?}");
        }
    }

    #[test]
    fn damaged_certificates_never_panic() {
        let good = certificate("edge-1");
        let read = |der: &[u8]| {
            Body::read(der).map(|body| {
                (body.not_after(), body.common_name().map(str::to_owned), body.has_alternative_name())
            })
        };
        for end in 0..good.len() {
            assert_eq!(read(&good[..end]), None, "cut at {end}");
        }
        let mut damaged = good.clone();
        for at in 0..good.len() {
            for value in [0x00, 0x01, 0x7f, 0x80, 0x84, 0x88, 0xff, good[at] ^ 0x20, good[at].wrapping_add(1)]
            {
                damaged[at] = value;
                let _ = read(&damaged);
            }
            damaged[at] = good[at];
        }
    }

    #[test]
    fn rejects_two_common_names() {
        let name = |text: &[u8]| {
            let mut attribute = vec![tag::OID, 3];
            attribute.extend_from_slice(COMMON_NAME);
            attribute.extend_from_slice(&[tag::UTF8_STRING, u8::try_from(text.len()).unwrap()]);
            attribute.extend_from_slice(text);
            let length = u8::try_from(attribute.len()).unwrap();
            [&[tag::SET, length + 2, tag::SEQUENCE, length], &attribute[..]].concat()
        };
        let body = |subject: &'static [u8]| Body {
            serial: b"",
            not_before: (0, b""),
            not_after: (0, b""),
            subject,
            rest: b"",
        };
        assert_eq!(body(Vec::leak(name(b"a"))).common_name(), Some("a"));
        assert_eq!(body(Vec::leak([name(b"a"), name(b"b")].concat())).common_name(), None);
        assert_eq!(body(Vec::leak(name(&[0xff]))).common_name(), None);
    }
}
