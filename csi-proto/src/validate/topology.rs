//! The rules of topology keys and values (spec, message Topology).

use std::collections::{BTreeMap, BTreeSet};

use super::{Breach, Report, SEGMENT_MAX_BYTES, SegmentPart};

/// The maximum number of characters of a key in a warning.
const MAX_SHOWN_CHARACTERS: usize = 130;

impl Report {
    pub(super) fn segments(&mut self, field: &str, segments: &BTreeMap<String, String>) {
        self.map(field, segments);
        let mut seen = BTreeSet::new();
        for (key, value) in segments {
            let shown: String = key.chars().take(MAX_SHOWN_CHARACTERS).collect();
            let entry = format!("{field}[{shown:?}]");
            let (prefix, name) = match key.split_once('/') {
                Some((prefix, name)) => (Some(prefix), name),
                None => (None, key.as_str()),
            };
            if let Some(prefix) = prefix {
                self.segment(&entry, SegmentPart::Prefix, prefix);
                self.same_prefix(&entry, prefix);
            }
            self.segment(&entry, SegmentPart::Name, name);
            self.segment(&entry, SegmentPart::Value, value);
            if !seen.insert(key.to_ascii_lowercase()) {
                self.warn(&entry, Breach::SegmentRepeated);
            }
        }
    }

    fn segment(&mut self, entry: &str, part: SegmentPart, text: &str) {
        if text.len() > SEGMENT_MAX_BYTES {
            self.warn(entry, Breach::SegmentSize { part, found: text.len() });
        } else if !has_form(part, text) {
            self.warn(entry, Breach::SegmentForm(part));
        }
    }

    fn same_prefix(&mut self, entry: &str, prefix: &str) {
        match &self.prefix {
            None => self.prefix = Some(prefix.to_owned()),
            Some(first) if first != prefix => self.warn(entry, Breach::PrefixesDiffer),
            Some(_) => {}
        }
    }
}

fn has_form(part: SegmentPart, text: &str) -> bool {
    let is_prefix = part == SegmentPart::Prefix;
    let at_end = |c: char| c.is_ascii_alphanumeric() && !(is_prefix && c.is_ascii_uppercase());
    let between = |c: char| at_end(c) || matches!(c, '-' | '.') || (c == '_' && !is_prefix);
    text.starts_with(at_end) && text.ends_with(at_end) && text.chars().all(between)
}

#[cfg(test)]
mod tests {
    use crate::csi::v1::{NodeGetInfoResponse, Topology, Volume};
    use crate::validate::{Breach, SegmentPart, Validate};

    fn topology(segments: &[(&str, &str)]) -> Topology {
        Topology {
            segments: segments.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }
    }

    fn breaches(segments: &[(&str, &str)]) -> Vec<Breach> {
        topology(segments).validate().into_iter().map(|warning| warning.breach).collect()
    }

    #[test]
    fn validates_keys_and_values() {
        let (longest, longer) = ("a".repeat(63), "a".repeat(64));
        let key = format!("{longest}/{longest}");
        assert_eq!(breaches(&[(&key, &longest)]), []);
        assert_eq!(breaches(&[("zone", "Z1"), ("Rack_1.a-b", "r")]), []);
        let too_long = |part| vec![Breach::SegmentSize { part, found: 64 }];
        let bad_form = |part| vec![Breach::SegmentForm(part)];
        for (key, value, expected) in [
            (format!("{longer}/zone"), "z", too_long(SegmentPart::Prefix)),
            (longer.clone(), "z", too_long(SegmentPart::Name)),
            ("zone".to_owned(), longer.as_str(), too_long(SegmentPart::Value)),
            ("Upper.example/zone".to_owned(), "z", bad_form(SegmentPart::Prefix)),
            ("/zone".to_owned(), "z", bad_form(SegmentPart::Prefix)),
            ("a.example/".to_owned(), "z", bad_form(SegmentPart::Name)),
            ("zone".to_owned(), "-z", bad_form(SegmentPart::Value)),
            ("zone".to_owned(), "", bad_form(SegmentPart::Value)),
        ] {
            assert_eq!(breaches(&[(&key, value)]), expected, "{key}={value}");
        }
    }

    #[test]
    fn rejects_keys_that_differ_only_in_case() {
        assert_eq!(breaches(&[("Zone", "a"), ("zone", "a")]), [Breach::SegmentRepeated]);
    }

    #[test]
    fn one_prefix_serves_a_whole_message() {
        let accessible_topology =
            vec![topology(&[("a.example/zone", "1")]), topology(&[("b.example/zone", "1")])];
        let warnings = Volume { accessible_topology, ..Default::default() }.validate();
        let [warning] = warnings.as_slice() else { panic!("one warning expected, found {warnings:?}") };
        assert_eq!(warning.field, "accessible_topology[1].segments[\"b.example/zone\"]");
        assert_eq!(warning.breach, Breach::PrefixesDiffer);
        let same = topology(&[("a.example/zone", "1"), ("a.example/rack", "1"), ("plain", "1")]);
        let response = NodeGetInfoResponse { accessible_topology: Some(same), ..Default::default() };
        assert_eq!(response.validate(), []);
    }
}
