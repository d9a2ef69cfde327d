//! The text of the schema against the types, by name, number and type of every field and value.

use std::collections::BTreeSet;

const TEXT: &str = include_str!("../../proto/edge_csi/kubernetes/v1/kubernetes.proto");
const TYPES: &str = include_str!("message.rs");

/// `Message.field = number: type`, or `Enum.VALUE = number`.
type Facts = BTreeSet<String>;

/// What the text says. Each message, enum, oneof, field and value has a line of its own.
fn of_text(text: &str) -> Facts {
    let mut facts = Facts::new();
    let mut open: Vec<(&str, &str)> = Vec::new();
    for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        if let Some(opening) = line.strip_suffix(" {") {
            let (kind, name) = opening.split_once(' ').unwrap();
            open.push((kind, name));
        } else if line == "}" {
            if let Some((kind @ ("message" | "enum"), name)) = open.pop() {
                facts.insert(format!("{kind} {name}"));
            }
        } else if let (Some((declared, number)), Some((kind, owner))) =
            (line.strip_suffix(';').and_then(|line| line.split_once(" = ")), open.last())
        {
            match (*kind, declared.rsplit_once(' ')) {
                ("enum", None) => facts.insert(format!("{owner}.{declared} = {number}")),
                ("oneof", Some((typed, name))) => {
                    let message = open[open.len() - 2].1;
                    facts.insert(format!("{message}.{name} = {number}: oneof {owner} {typed}"))
                }
                ("message", Some((typed, name))) => {
                    facts.insert(format!("{owner}.{name} = {number}: {typed}"))
                }
                other => panic!("{line}: {other:?}"),
            };
        }
    }
    facts
}

fn snake(camel: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in camel.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The value of `key = "value"` in an attribute.
fn value<'a>(attribute: &'a str, key: &str) -> Option<&'a str> {
    attribute.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// What the types say. The fields of a `oneof` are in an enum `Kind`, in a module named after the message and the oneof.
fn of_types(text: &str) -> Facts {
    let mut facts = Facts::new();
    let (mut attribute, mut module, mut owner) = ("", "", "");
    for line in text.lines().map(str::trim) {
        let named = |start: &str| line.strip_prefix(start).and_then(|rest| rest.split([' ', '{']).next());
        if line.starts_with("#[prost(") {
            attribute = line;
        } else if let Some(name) = named("pub mod ") {
            module = name;
        } else if let Some(name) = named("pub struct ") {
            facts.insert(format!("message {name}"));
            owner = name;
        } else if let Some(name) = named("pub enum ") {
            owner = name;
            if name != "Kind" {
                facts.insert(format!("enum {name}"));
            }
        } else if line.starts_with("impl ") {
            owner = "";
        } else if let (Some((name, typed)), "Kind") = (line.split_once('('), owner)
            && let (Some(typed), Some(number)) = (typed.strip_suffix("),"), value(attribute, "tag"))
        {
            let message = module[..1].to_uppercase() + &module[1..];
            let typed = typed.rsplit("::").next().unwrap();
            facts.insert(format!("{message}.{} = {number}: oneof {module} {typed}", snake(name)));
        } else if let (Some((name, typed)), Some(number)) =
            (line.strip_prefix("pub ").and_then(|field| field.split_once(": ")), value(attribute, "tag"))
        {
            let inner = typed.trim_end_matches([',', '>']).rsplit(['<', ':']).next().unwrap();
            let plain = attribute["#[prost(".len()..].split([',', ' ']).next().unwrap();
            let typed = match plain {
                "message" => inner.to_owned(),
                "enumeration" => value(attribute, "enumeration").unwrap().to_owned(),
                "btree_map" => format!("map<{}>", value(attribute, "btree_map").unwrap()),
                plain => plain.to_owned(),
            };
            let label = match () {
                () if attribute.contains(", repeated,") => "repeated ",
                // A message is optional by itself.
                () if attribute.contains(", optional,") && plain != "message" => "optional ",
                () => "",
            };
            facts.insert(format!("{owner}.{name} = {number}: {label}{typed}"));
        } else if let Some((name, number)) = line.strip_suffix(',').and_then(|line| line.split_once(" = "))
            && owner == "Fetched"
        {
            facts.insert(format!("{owner}.{} = {number}", snake(name).to_uppercase()));
        }
    }
    facts
}

#[test]
fn the_text_of_the_schema_and_the_types_say_the_same() {
    let (text, types) = (of_text(TEXT), of_types(TYPES));
    let only_text: Vec<_> = text.difference(&types).collect();
    let only_types: Vec<_> = types.difference(&text).collect();
    assert!(only_text.is_empty() && only_types.is_empty(), "text: {only_text:#?}\ntypes: {only_types:#?}");
    // The parsers must have seen something.
    assert!(text.len() > 120, "{}", text.len());
}

#[test]
fn a_change_of_the_text_is_seen() {
    let types = of_types(TYPES);
    for (from, to) in [
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
    ] {
        let changed = TEXT.replacen(from, to, 1);
        assert!(changed != TEXT && of_text(&changed) != types, "{from}");
    }
}
