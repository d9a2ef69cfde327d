//! The texts of our schemas against the types that are written by hand, by name, number and type of every field and value.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeSet;

/// `Message.field = number: type`, or `Enum.VALUE = number`; enums and messages without their place.
type Facts = BTreeSet<String>;

/// A schema, and what must be seen if it is changed.
struct Schema {
    text: &'static str,
    types: &'static [&'static str],
    changes: &'static [(&'static str, &'static str)],
}

const KUBERNETES: Schema = Schema {
    text: include_str!("../../examples/proto/edge_csi/kubernetes/v1/kubernetes.proto"),
    types: &[include_str!("../../examples/src/kubernetes/message.rs")],
    changes: &[
        ("uint64 revision = 2;", "uint64 revision = 9;"),
        ("uint64 revision = 2;", "uint32 revision = 2;"),
        ("uint64 revision = 2;", "uint64 version = 2;"),
        ("repeated Object changed", "Object changed"),
        ("optional uint32 fs_group", "uint32 fs_group"),
        ("map<string, string> segments", "map<string, bytes> segments"),
        ("NOT_FOUND = 2;", "NOT_FOUND = 5;"),
        ("Driver driver = 5;", "Driver plugin = 5;"),
        ("Driver driver = 5;", "Pod driver = 5;"),
        ("Fetched fetched = 1;", "uint32 fetched = 1;"),
        ("message StatusTaken", "message StatusGiven"),
    ],
};

fn words(line: &str) -> Vec<&str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

/// What the text says. Each message, enum, oneof, field and value has a line of its own.
fn of_text(text: &str) -> Facts {
    let mut facts = Facts::new();
    let mut open: Vec<(&str, &str)> = Vec::new();
    for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        let words = words(line);
        match (&words[..], line.ends_with('{'), line) {
            ([kind @ ("message" | "enum" | "oneof"), name], true, _) => open.push((kind, name)),
            ([kind @ "message", name], false, _) => {
                facts.insert(format!("{kind} {name}"));
            }
            (_, _, "}") => {
                if let Some((kind @ ("message" | "enum"), name)) = open.pop() {
                    facts.insert(format!("{kind} {name}"));
                }
            }
            ([value, number], _, _) if matches!(open.last(), Some(("enum", _))) => {
                let name = open.last().unwrap().1;
                facts.insert(format!("{name}.{value} = {number}"));
            }
            ([.., number], _, _) if line.ends_with(';') && !open.is_empty() => {
                let message = open.iter().rfind(|(kind, _)| *kind == "message").unwrap().1;
                let in_oneof = open.last().unwrap().0 == "oneof";
                let (label, rest) = match words[0] {
                    label @ ("optional" | "repeated") => (label, &words[1..]),
                    _ if in_oneof => ("oneof", &words[..]),
                    _ => ("", &words[..]),
                };
                let (kind, name) = match rest {
                    ["map", key, value, name, _] => (format!("map {key} {value}"), name),
                    [kind, name, _] => ((*kind).to_owned(), name),
                    other => panic!("{line}: {other:?}"),
                };
                facts.insert(format!("{message}.{name} = {number}: {label} {kind}"));
            }
            _ => {}
        }
    }
    facts
}

fn upper(camel: &str) -> String {
    let mut upper = String::new();
    for (at, c) in camel.char_indices() {
        if at > 0 && c.is_ascii_uppercase() {
            upper.push('_');
        }
        upper.push(c.to_ascii_uppercase());
    }
    upper
}

fn quoted<'a>(line: &'a str, after: &str) -> Option<&'a str> {
    let rest = &line[line.find(after)? + after.len()..];
    rest.split('"').nth(1)
}

/// What the hand-written types say. A `oneof` is an enum in a module named after its message.
fn of_types(text: &str) -> Facts {
    let mut facts = Facts::new();
    let mut attribute = "";
    let mut module = String::new();
    let mut open: Option<(&str, String)> = None;
    for line in text.lines().map(str::trim) {
        let words: Vec<&str> = words(line);
        let after = |word: &str| words.iter().position(|one| *one == word).and_then(|at| words.get(at + 1));
        if line.starts_with("#[prost(") {
            attribute = line;
        } else if line.contains("mod ") && line.ends_with('{') {
            let name = after("mod").unwrap();
            module = name.split('_').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        } else if line.contains("struct ") && (line.ends_with('{') || line.ends_with("{}")) {
            let name = (*after("struct").unwrap()).to_owned();
            facts.insert(format!("message {name}"));
            open = Some(("message", name));
        } else if line.contains("enum ") && line.ends_with('{') {
            open = Some(("enum", (*after("enum").unwrap()).to_owned()));
        } else if line == "}" {
            if let Some(("enum", name)) = open.take()
                && facts.iter().any(|fact| fact.starts_with(&format!("{name}.")) && !fact.contains(':'))
            {
                facts.insert(format!("enum {name}"));
            }
        } else if let Some((kind, owner)) = &open {
            let number = quoted(attribute, " tag = ");
            match (*kind, number, &words[..]) {
                // A value of a plain enum.
                ("enum", None, [value, number]) if line.contains(" = ") => {
                    facts.insert(format!("{owner}.{} = {number}", upper(value)));
                }
                // A field of a oneof.
                ("enum", Some(number), [variant, .., typed]) if line.ends_with("),") => {
                    let name = upper(variant).to_lowercase();
                    facts.insert(format!("{module}.{name} = {number}: oneof {typed}"));
                    attribute = "";
                }
                ("message", Some(number), _) if line.contains(": ") && line.ends_with(',') => {
                    let name = words.iter().rev().find(|word| line.contains(&format!("{word}: "))).unwrap();
                    let typed = words.iter().rfind(|word| !matches!(**word, "Vec" | "Option")).unwrap();
                    let label = ["optional", "repeated"].into_iter().find(|label| attribute.contains(label));
                    let message = attribute.contains("(message");
                    // A message is optional by itself.
                    let label = label.filter(|label| !(message && *label == "optional")).unwrap_or("");
                    let kind = if message {
                        (*typed).to_owned()
                    } else if let Some(name) = quoted(attribute, "enumeration = ") {
                        name.rsplit("::").next().unwrap().to_owned()
                    } else if let Some(types) = quoted(attribute, "btree_map = ") {
                        format!("map {}", types.replace(',', ""))
                    } else {
                        attribute["#[prost(".len()..].split(',').next().unwrap().to_owned()
                    };
                    facts.insert(format!("{owner}.{name} = {number}: {label} {kind}"));
                    attribute = "";
                }
                _ => {}
            }
        }
    }
    facts
}

impl Schema {
    fn types(&self) -> Facts {
        self.types.iter().flat_map(|text| of_types(text)).collect()
    }
}

#[test]
fn the_text_of_a_schema_and_its_types_say_the_same() {
    for schema in [KUBERNETES] {
        let (text, types) = (of_text(schema.text), schema.types());
        let only_text: Vec<_> = text.difference(&types).collect();
        let only_types: Vec<_> = types.difference(&text).collect();
        assert!(
            only_text.is_empty() && only_types.is_empty(),
            "text: {only_text:#?}\ntypes: {only_types:#?}"
        );
        // The parsers must have seen something.
        assert!(text.len() > 120, "{}", text.len());
    }
}

#[test]
fn a_change_of_the_text_is_seen() {
    for schema in [KUBERNETES] {
        let types = schema.types();
        for (from, to) in schema.changes {
            let changed = schema.text.replacen(from, to, 1);
            assert!(changed != schema.text && of_text(&changed) != types, "{from}");
        }
    }
}
