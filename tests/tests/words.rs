//! Sources, messages and documents use the field's words (`docs/src/glossary.md`) and keep to the width.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::fs;
use std::path::{Path, PathBuf};

use edge_csi_tests::guide::root;

/// Words that mean something only to us, and the term of the field. They are compared with whole words and with whole parts of
/// identifiers: `lookup`, `background`, `lifecycle` and `standby` do not match.
const BANNED: [(&str, &str); 30] = [
    ("anybody everybody nobody somebody whoever whomever", "the name of the component"),
    ("asker askers", "waiter, caller"),
    ("ballot ballots", "node selection"),
    ("bell bells", "waker"),
    ("board boards", "node feed"),
    ("book books", "table, aggregator"),
    ("crowd", "load test"),
    ("deed deeds", "operation"),
    ("desk desks", "executor"),
    ("dwell dwells dwelt", "time in state"),
    ("errand errands", "job"),
    ("farewell", "drain"),
    ("gift gifts", "fsGroup job"),
    ("gone", "lost, closed, removed, decommissioned"),
    ("ground", "fixture, environment"),
    ("hasten hastens hastened haste", "refresh soon"),
    ("hear heard hears", "receive, observe"),
    ("judge judged judges", "check, classify"),
    ("keeper keepers ledger", "store, table"),
    ("leg legs", "run"),
    ("life lives", "lifetime, process, instance"),
    ("look looked looking looks sight sights", "check, read, find, observation"),
    ("mend mended mends", "fix, repair"),
    ("news", "change, update"),
    ("road roads", "path"),
    ("scene scenes story stories", "scenario"),
    ("stand standing stands stood", "state, hold, be"),
    ("tell telling tells told", "report, notify, log, return"),
    ("till", "until"),
    ("trouble troubles verdict verdicts weather wish wishes", "error, result, link condition, request"),
];

/// Phrases that are not English of the field, in comments and documents.
const PHRASES: [(&str, &str); 7] = [
    (" for good", "permanently"),
    (" of which", "whose, or two sentences"),
    (" so many of ", "the number of"),
    (" looks after", "manages"),
    (" takes back", "retracts, undoes"),
    (" taken back", "retracted, undone"),
    (" goes on", "continues"),
];

/// Words that stay where they are, and why. The path is a prefix.
const EXCEPTIONS: [(&str, &str, &str); 1] = [("tests/tests/words.rs", "*", "lists the words")];

/// Columns of a comment or of a document's line. Tables, links and commands cannot be wrapped; code is rustfmt's.
const WIDTH: usize = 130;

/// Folders with sources and documents.
const FOLDERS: [&str; 11] = [
    "benches",
    "csi-proto",
    "csi-proxy",
    "deploy",
    "docs",
    "edge-transport",
    "examples",
    "fuzz/fuzz_targets",
    "tests",
    "volume-manager",
    "xtask",
];

/// No source and no document has a banned word or phrase.
#[test]
fn words_are_the_fields() {
    let banned: Vec<(&str, &str)> = BANNED
        .iter()
        .flat_map(|(words, instead)| words.split(' ').map(move |word| (word, *instead)))
        .collect();
    let mut found = Vec::new();
    each_line(|file, number, line| {
        let words = words_of(line);
        let lower = line.to_lowercase();
        let words = banned.iter().filter(|(word, _)| words.iter().any(|found| found == word));
        let phrases = PHRASES.iter().filter(|(phrase, _)| lower.contains(phrase));
        for (banned, instead) in words.chain(phrases) {
            if !is_excepted(file, banned) {
                found.push(format!("{file}:{number}: {banned:?} (better: {instead})"));
            }
        }
    });
    assert!(found.is_empty(), "{} banned words:\n{}", found.len(), found.join("\n"));
}

/// No comment and no line of a document's prose is wider than a screen.
#[test]
fn lines_are_not_too_wide() {
    let mut found = Vec::new();
    let mut in_block = false;
    each_line(|file, number, line| {
        if file.ends_with(".md") {
            let fence = line.trim_start().starts_with("```");
            in_block ^= fence;
            // A row of a table, a command, or a link of its own.
            if fence || in_block || line.starts_with('|') || line.trim_start().starts_with("](") {
                return;
            }
        } else if !line.trim_start().starts_with("//")
            || line.trim_start().trim_start_matches(['/', '!']).starts_with(" |")
        {
            return;
        }
        let columns = line.chars().count();
        if columns > WIDTH {
            found.push(format!("{file}:{number}: {columns} columns"));
        }
    });
    assert!(found.is_empty(), "{} lines above {WIDTH} columns:\n{}", found.len(), found.join("\n"));
}

/// A test's name fits a line of a report; the sentence is its doc comment.
#[test]
fn names_of_tests_are_short() {
    let mut found = Vec::new();
    let mut is_test = false;
    each_line(|file, number, line| {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test && file.ends_with(".rs")) {
            let name = rest.split('(').next().unwrap_or_default();
            if name.len() > 60 {
                found.push(format!("{file}:{number}: {name} ({} characters)", name.len()));
            }
            is_test = false;
        }
    });
    assert!(found.is_empty(), "{} names above 60 characters:\n{}", found.len(), found.join("\n"));
}

/// Identifiers are split into their parts; a part of a word is not a word.
#[test]
fn identifiers_are_split_into_words() {
    assert_eq!(
        words_of("fn wait_for_MountCheck(lookup: X2Road)"),
        ["fn", "wait", "for", "mount", "check", "lookup", "x", "road"]
    );
    assert_eq!(words_of("HTTPServer, it's"), ["httpserver", "it", "s"]);
}

/// Calls `visit` with each line of each source and document: its file's path from the root, its number from 1, its text.
fn each_line(mut visit: impl FnMut(&str, usize, &str)) {
    let mut files: Vec<PathBuf> = FOLDERS.iter().flat_map(|folder| files_in(&root().join(folder))).collect();
    files.extend(entries(root()).into_iter().filter(|path| path.is_file() && is_text(path)));
    assert!(files.len() > 500, "{} files were found", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
        for (number, line) in (1..).zip(text.lines()) {
            visit(&name, number, line);
        }
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let inside =
        entries(folder).into_iter().flat_map(|path| match path.file_name().and_then(|it| it.to_str()) {
            // Generated from schemas, which are checked themselves.
            Some("target" | "generated" | "corpus") => Vec::new(),
            _ if path.is_dir() => files_in(&path),
            _ => vec![path],
        });
    inside.filter(|path| is_text(path)).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn is_text(path: &Path) -> bool {
    let of_others =
        path.ends_with("csi.proto") || path.to_string_lossy().contains("/proto/pluginregistration/");
    !of_others && path.extension().is_some_and(|it| it == "rs" || it == "md" || it == "proto" || it == "sh")
}

fn is_excepted(file: &str, word: &str) -> bool {
    EXCEPTIONS.iter().any(|(path, excepted, _)| {
        file.starts_with(path) && excepted.split(' ').any(|it| it == "*" || it == word.trim())
    })
}

/// The words of a line in lower case; an identifier gives its parts.
fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut was_lower) = (String::new(), false);
    for letter in line.chars() {
        let begins = letter.is_ascii_uppercase() && was_lower;
        if (begins || !letter.is_ascii_alphabetic()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_ascii_alphabetic() {
            word.push(letter.to_ascii_lowercase());
        }
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}
