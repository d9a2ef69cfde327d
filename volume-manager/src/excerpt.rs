//! Texts of others and errors, fit to be kept and shown.

use std::error::Error;

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

/// Enough of a text to recognise it by.
pub(crate) fn short(text: &str) -> String {
    excerpt(text, 64)
}

/// An error and all that caused it, in words, without a cause that the words before have already.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}
