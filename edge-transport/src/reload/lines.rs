//! Files with an entry on each line: deny lists and token files.

use std::path::Path;

use super::FileError;

/// Maximum number of lines of a file.
const MAX_LINES: usize = 200_000;

/// A line with an entry.
pub(crate) struct Line<'a> {
    kind: &'static str,
    path: &'a Path,
    number: usize,
    /// The line without white space around it.
    pub(crate) text: &'a str,
}

impl Line<'_> {
    /// Returns the error of a line that is not an entry. The cause names what is expected.
    pub(crate) fn refused(&self, cause: impl Into<String>) -> FileError {
        FileError::Line {
            kind: self.kind,
            path: self.path.to_owned(),
            line: self.number,
            cause: cause.into(),
        }
    }
}

/// Returns the lines of a file of this kind that are not empty and do not begin with `#`.
pub(crate) fn entries<'a>(
    kind: &'static str,
    path: &'a Path,
    text: &'a [u8],
) -> impl Iterator<Item = Result<Line<'a>, FileError>> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').zip(1..).map(move |(line, number)| {
        if number > MAX_LINES {
            return Err(FileError::TooManyLines { kind, path: path.to_owned(), max: MAX_LINES });
        }
        let found = Line { kind, path, number, text: "" };
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Line { text: line.trim_ascii(), ..found }),
            Err(_) => Err(found.refused("it is not UTF-8")),
        }
    });
    lines.filter(|line| !line.as_ref().is_ok_and(|line| line.text.is_empty() || line.text.starts_with('#')))
}

/// Decodes hexadecimal digits, with or without colons between bytes. An odd number of digits has a leading zero.
pub(crate) fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.trim_ascii().bytes().filter(|byte| *byte != b':').collect();
    let nibble = |digit: &u8| char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let nibbles: Vec<u8> = digits.iter().map(nibble).collect::<Option<_>>()?;
    let odd = nibbles.len() % 2;
    let first = nibbles.get(..odd)?.iter().copied();
    let rest = nibbles.get(odd..)?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
    Some(first.chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &[u8]) -> Result<Vec<&str>, FileError> {
        entries("list", Path::new("file"), text).map(|line| line.map(|line| line.text)).collect()
    }

    #[test]
    fn skips_empty_lines_and_comments() {
        assert_eq!(texts(b"# a\n\n a b \r\n\t#c\nd").unwrap(), ["a b", "d"]);
    }

    #[test]
    fn names_the_line_that_is_not_utf_8_and_the_most_lines() {
        assert_eq!(texts(b"a\n\n\xff").unwrap_err().to_string(), "list file, line 3: it is not UTF-8");
        assert!(texts(&[b'\n'; MAX_LINES]).is_ok());
        let error = texts(&[b'\n'; MAX_LINES + 1]).unwrap_err();
        assert_eq!(error.to_string(), "list file has more than 200000 lines");
    }
}
