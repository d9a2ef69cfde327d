//! Texts of other hosts, made safe for logs and terminals.

/// The maximum length in bytes of a text of another host in a fault or a log.
pub(crate) const MAX_TEXT: usize = 1024;

/// The end of a text that was cut.
const CUT: char = '…';

/// Returns the text in at most [`MAX_TEXT`] bytes on one line. Characters that forge other lines or reverse their order
/// are escaped, as `\n` and `\u{202e}`. A cut text ends with `…`.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_TEXT));
    let mut end = 0;
    for found in text.chars() {
        match is_invisible(found) {
            true => line.extend(found.escape_debug()),
            false => line.push(found),
        }
        if line.len() > MAX_TEXT {
            line.truncate(end);
            line.push(CUT);
            break;
        }
        if line.len() <= MAX_TEXT - CUT.len_utf8() {
            end = line.len();
        }
    }
    line
}

/// Whether `Debug` escapes the character for another reason than its quotes: control characters, separators of lines,
/// characters that change the direction of text.
fn is_invisible(found: char) -> bool {
    !matches!(found, '\'' | '"' | '\\') && found.escape_debug().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forging_characters_are_escaped() {
        assert_eq!(printable("größe \"盤\" \\n"), "größe \"盤\" \\n");
        let forged = "a\n\r\t\x1b[31m\x07\u{9b}\u{202e}\u{2028}\u{2066}\u{feff}z";
        let escaped = r"a\n\r\t\u{1b}[31m\u{7}\u{9b}\u{202e}\u{2028}\u{2066}\u{feff}z";
        assert_eq!(printable(forged), escaped);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for long in ["ä", "\n", "盤"].map(|unit| unit.repeat(MAX_TEXT)) {
            let line = printable(&long);
            assert!(line.len() <= MAX_TEXT && line.len() > MAX_TEXT - 8 && line.ends_with(CUT), "{line}");
        }
        assert_eq!(printable(&"x".repeat(MAX_TEXT)).len(), MAX_TEXT);
        assert!(!printable(&"x".repeat(MAX_TEXT)).ends_with(CUT));
    }
}
