//! Shortens texts for logs and messages.

/// Returns the beginning of a text: at most `bytes` bytes, in whole characters.
pub fn excerpt(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (bytes, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (9, "aä")] {
            assert_eq!(excerpt("aä", bytes), expected);
        }
    }
}
