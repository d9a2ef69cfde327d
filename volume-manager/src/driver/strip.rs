//! What a driver wrote, without what nobody else may see.

use crate::excerpt::excerpt;

/// What must not appear in a text that a driver wrote, and takes it out.
pub(super) struct Stripper<'a>(Vec<&'a str>);

impl<'a> Stripper<'a> {
    /// Values shorter than this are left in: they would be found in words that are no secret.
    const MIN_BYTES: usize = 4;

    pub(super) fn new(sensitive: impl IntoIterator<Item = &'a str>) -> Self {
        let mut texts: Vec<&str> =
            sensitive.into_iter().map(str::trim).filter(|text| text.len() >= Self::MIN_BYTES).collect();
        // The longest first: of a value that holds another one, nothing may stay.
        texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    /// The text without what is sensitive, on one line, at most `max` bytes of it.
    pub(super) fn strip(&self, text: &str, max: usize) -> String {
        let mut text = text.to_owned();
        for sensitive in &self.0 {
            if text.contains(sensitive) {
                text = text.replace(sensitive, "***stripped***");
            }
        }
        excerpt(&text, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sensitive_leaves_no_rest_whatever_the_order_and_the_cut() {
        let stripper = Stripper::new(["hunter2", "hunter2-and-more", "ab"]);
        let text = "mount -o password=hunter2-and-more,user=ab: bad\nhunter2";
        assert_eq!(stripper.strip(text, 200), "mount -o password=***stripped***,user=ab: bad ***stripped***");
        for max in 0..text.len() {
            let cut = stripper.strip(text, max);
            assert!(!cut.contains("hunt") && cut.len() <= max + '…'.len_utf8(), "{cut}");
        }
    }
}
