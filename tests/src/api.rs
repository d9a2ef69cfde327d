//! The lists of public items in the `public-api.txt` of the libraries, and the version that their changes need.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The libraries, in the order in which they are published.
pub const LIBRARIES: [&str; 4] = ["csi-proto", "edge-transport", "csi-proxy", "volume-manager"];

/// The crates of the standard library.
pub const STANDARD: [&str; 3] = ["alloc", "core", "std"];

/// Types whose functions have a path without a crate.
const PRIMITIVE: [&str; 17] = [
    "bool", "char", "f32", "f64", "i128", "i16", "i32", "i64", "i8", "isize", "str", "u128", "u16", "u32",
    "u64", "u8", "usize",
];

/// What a library's users notice of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Change {
    /// The list is the same.
    Nothing,
    /// Users need not change anything.
    Addition,
    /// What a user wrote may not compile any more.
    Breaking,
}

/// Returns the lines of two lists that differ, `-` in front of those that only the older has, with the change that each is.
///
/// A changed line is a removed and an added one, so breaking. An added member of a trait counts as breaking, since the
/// list does not contain whether it has a default.
#[must_use]
pub fn changes(older: &str, newer: &str) -> Vec<(Change, String)> {
    let (older, newer): (BTreeSet<_>, BTreeSet<_>) = (older.lines().collect(), newer.lines().collect());
    let removed = older.difference(&newer).map(|line| {
        let is_unused =
            matches!(dependency(line), Some(name) if newer.iter().all(|line| dependency(line) != Some(name)));
        (if is_unused { Change::Addition } else { Change::Breaking }, format!("- {line}"))
    });
    let added = newer.difference(&older).map(|line| {
        let breaks = parent(line).is_some_and(|(parent, is_member)| {
            older.iter().any(|it| {
                item(it).is_some_and(|(words, path)| path == parent && breaks_with_more(words, is_member))
            })
        });
        (if breaks { Change::Breaking } else { Change::Addition }, format!("+ {line}"))
    });
    removed.chain(added).collect()
}

/// Whether the release of `to` after `from` may have such a change.
#[must_use]
pub fn may_have(from: Version, to: Version, change: Change) -> bool {
    let Version(major, minor, _) = from;
    let needed = match (change, major) {
        (Change::Nothing, _) | (Change::Addition, 0) => from,
        (Change::Addition, _) | (Change::Breaking, 0) => Version(major, minor + 1, 0),
        (Change::Breaking, _) => Version(major + 1, 0, 0),
    };
    to >= needed
}

/// A version: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "a version has three numbers")]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `1.2.3`, with or without a `v` in front.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().trim_start_matches('v').splitn(3, '.').map(|it| it.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??, numbers.next()??))
    }

    /// Returns what every compatible version has in common: `1`, or `0.14` before 1.0.
    #[must_use]
    pub fn compatible(self) -> String {
        match self {
            Self(0, minor, _) => format!("0.{minor}"),
            Self(major, ..) => major.to_string(),
        }
    }
}

/// Checks that the version of a repository fits what has changed since its last tag `v…`. Nothing is wrong while the version
/// is still that of the tag, since it is set for a release only.
///
/// # Errors
/// The lines that the version does not allow.
///
/// # Panics
/// If the repository cannot be read.
pub fn check_version(root: &Path) -> Result<(), String> {
    let Some(tag) = git(root, &["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]) else {
        return Ok(());
    };
    let tag = tag.trim();
    let from = Version::parse(tag).unwrap_or_else(|| panic!("the tag {tag} has no version"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    let to = line.and_then(|it| Version::parse(it.trim_matches('"'))).expect("a version in Cargo.toml");
    if to == from {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for library in LIBRARIES {
        let file = format!("{library}/public-api.txt");
        let older = git(root, &["show", &format!("{tag}:{file}")]).unwrap_or_default();
        let newer = fs::read_to_string(root.join(&file)).unwrap_or_default();
        let too_much = changes(&older, &newer).into_iter().filter(|(change, _)| !may_have(from, to, *change));
        wrong.extend(too_much.map(|(change, line)| format!("{library}: {change:?}: {line}")));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} after {tag} is not enough; increase the minor version before 1.0, then the minor version for an addition \
             and the major version for a breaking change:\n{}",
            line.unwrap_or_default(),
            wrong.join("\n")
        )),
    }
}

/// Returns the crates whose items a list names, other than the library itself and those of the standard library.
#[must_use]
pub fn dependencies(library: &str, list: &str) -> BTreeSet<String> {
    let own = library.replace('-', "_");
    let words = list.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c));
    let crates = words.filter_map(|word| word.split_once("::")).map(|(first, _)| first);
    crates
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter(|name| *name != own && !STANDARD.contains(name) && !PRIMITIVE.contains(name))
        .map(str::to_owned)
        .collect()
}

/// Returns the crate of a line `extern crate NAME VERSION`.
fn dependency(line: &str) -> Option<&str> {
    line.strip_prefix("extern crate ")?.split(' ').next()
}

/// Splits the line of a public item into the words before its path and the path, without generics. `None` for a module at the
/// root, and for an implementation.
#[must_use]
pub fn item(line: &str) -> Option<(&str, String)> {
    let start = line.split(' ').find(|word| word.contains("::")).and_then(|path| line.find(path))?;
    let (mut path, mut depth) = (String::new(), 0);
    for letter in line[start..].chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ if depth > 0 => {}
            _ if letter.is_ascii_alphanumeric() || "_:".contains(letter) => path.push(letter),
            _ => break,
        }
    }
    path.truncate(path.trim_end_matches(':').len());
    line[..start].contains("pub ").then_some((line[..start].trim_end(), path))
}

/// Returns the path of the item that has the item of this line, and whether the latter is a field or a variant.
fn parent(line: &str) -> Option<(String, bool)> {
    let (words, path) = item(line)?;
    Some((path.rsplit_once("::")?.0.to_owned(), words.ends_with("pub")))
}

/// Whether an item with these words in front of its path breaks its users when it gets one more field or variant
/// (`is_member`), or one more item.
fn breaks_with_more(words: &str, is_member: bool) -> bool {
    let is_trait = words.ends_with("trait");
    let is_open = words.contains("#[non_exhaustive]") || words.ends_with("mod");
    is_trait || (is_member && !is_open)
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().expect("git");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLDER: &str = "extern crate bytes 1\nextern crate h2 0.4\npub mod a\n#[non_exhaustive] pub enum a::Open\n\
                         pub a::Open::One\npub enum a::Closed\npub a::Closed::One\npub a::Closed::One::field: u8\n\
                         pub struct a::Fields\npub a::Fields::first: u8\npub trait a::Seam: core::marker::Send\n\
                         pub fn a::Seam::call(&self)\nimpl core::fmt::Debug for a::Open\npub fn a::run(limit: u8)\n";

    /// Returns the worst change when `line` becomes `instead`.
    fn change(line: &str, instead: &str) -> Change {
        assert!(line.is_empty() || OLDER.contains(&format!("{line}\n")), "{line}");
        let newer = if line.is_empty() { format!("{OLDER}{instead}") } else { OLDER.replace(line, instead) };
        changes(OLDER, &newer).into_iter().map(|(change, _)| change).max().unwrap_or(Change::Nothing)
    }

    #[test]
    fn a_removed_or_changed_line_breaks() {
        for line in OLDER.lines().filter(|line| !line.starts_with("extern")) {
            assert_eq!(change(line, ""), Change::Breaking, "{line}");
        }
        assert_eq!(change("pub fn a::run(limit: u8)", "pub fn a::run(limit: u16)"), Change::Breaking);
        assert_eq!(change("", ""), Change::Nothing);
    }

    #[test]
    fn an_added_item_breaks_only_where_users_list_all() {
        for added in
            ["pub fn a::walk()", "pub a::Open::Two", "pub fn a::Fields::new()", "pub enum a::B\npub a::B::C"]
        {
            assert_eq!(change("", added), Change::Addition, "{added}");
        }
        for added in [
            "pub a::Closed::Two",
            "pub a::Closed::One::b: u8",
            "pub a::Fields::b: u8",
            "pub fn a::Seam<T>::b(&self)",
        ] {
            assert_eq!(change("", added), Change::Breaking, "{added}");
        }
    }

    #[test]
    fn a_new_major_version_of_a_dependency_breaks() {
        assert_eq!(change("extern crate h2 0.4", "extern crate h2 0.5"), Change::Breaking);
        assert_eq!(change("extern crate h2 0.4", ""), Change::Addition);
        assert_eq!(change("", "extern crate http 1"), Change::Addition);
    }

    #[test]
    fn versions_allow_what_semantic_versioning_says() {
        let version = |text| Version::parse(text).expect("a version");
        let (nothing, addition, breaking) = (Change::Nothing, Change::Addition, Change::Breaking);
        for (from, to, most) in [
            ("v0.1.0", "0.1.1", addition),
            ("v0.1.3", "0.2.0", breaking),
            ("v1.2.0", "1.2.1", nothing),
            ("v1.2.0", "1.3.0", addition),
            ("v1.2.0", "2.0.0", breaking),
        ] {
            for change in [nothing, addition, breaking] {
                assert_eq!(
                    may_have(version(from), version(to), change),
                    change <= most,
                    "{from} {to} {change:?}"
                );
            }
        }
    }

    /// In a repository with a tag, a removed line needs a new minor version.
    #[test]
    fn a_line_removed_since_the_last_tag_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let write = |version: &str, list: &str| {
            fs::write(root.join("Cargo.toml"), format!("[workspace.package]\nversion = \"{version}\"\n"))
                .expect("written");
            for library in LIBRARIES {
                fs::create_dir_all(root.join(library)).expect("created");
                fs::write(root.join(library).join("public-api.txt"), list).expect("written");
            }
        };
        write("0.1.0", OLDER);
        let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
        git(root, &["init", "--quiet"]).expect("a repository");
        assert_eq!(check_version(root), Ok(()), "nothing was released");
        git(root, &["add", "."]).expect("added");
        git(root, &[&identity[..], &["commit", "--quiet", "--no-gpg-sign", "-m", "a"]].concat())
            .expect("a commit");
        git(root, &["tag", "v0.1.0"]).expect("a tag");

        let removed = OLDER.replace("pub fn a::run(limit: u8)\n", "");
        write("0.1.1", &removed);
        let found = check_version(root).expect_err("a removed line");
        assert!(found.contains("csi-proxy: Breaking: - pub fn a::run(limit: u8)"), "{found}");
        for (version, list) in
            [("0.1.0", &*removed), ("0.2.0", &*removed), ("0.1.1", &*format!("{OLDER}pub fn a::b()\n"))]
        {
            write(version, list);
            assert_eq!(check_version(root), Ok(()), "{version}");
        }
    }

    #[test]
    fn the_crates_of_a_list_are_found() {
        let list = "pub fn i32::from(own_name::E)\npub fn own_name::f(body: bytes::bytes::Bytes, T::Item) -> core::result::Result<http::Uri, own_name::E>\n\
                    impl<S: futures_core::stream::Stream> tower_service::Service<S> for own_name::A where <S as a::B>::C: x\n";
        let found: Vec<_> = dependencies("own-name", list).into_iter().collect();
        assert_eq!(found, ["a", "bytes", "futures_core", "http", "tower_service"]);
    }
}
