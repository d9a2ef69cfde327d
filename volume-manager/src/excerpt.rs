//! Foreign texts, fit to be kept and shown.

/// The text on one line, without control characters, and cut at `max` bytes; a text that was cut ends with `…`.
pub(crate) fn excerpt(text: &str, max: usize) -> String {
    let mut line: String = text.chars().map(|found| if found.is_control() { ' ' } else { found }).collect();
    if line.len() > max {
        let end = (0..=max).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
