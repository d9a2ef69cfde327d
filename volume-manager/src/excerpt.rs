//! Shortens foreign messages, and formats errors with their causes.

use std::error::Error;

/// Returns the text on one line, without control characters, cut at `max` bytes; a cut text ends with `…`.
pub(crate) fn excerpt(text: &str, max: usize) -> String {
    let mut line: String = text.chars().map(|found| if found.is_control() { ' ' } else { found }).collect();
    if line.len() > max {
        let end = (0..=max).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Returns the start of a text, for messages.
pub(crate) fn short(text: &str) -> String {
    excerpt(text, 64)
}

/// Formats an error with its chain of sources, omitting sources that are contained in the text already.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}
