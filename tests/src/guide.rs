//! The commands on the pages of the guide.

use std::fs;
use std::path::{Path, PathBuf};

/// How the tests treat a block of commands. The mark is the second word of the fence: ` ```sh run `.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// `run`: the tests run the block unchanged, in the order of its page.
    Run,
    /// `cluster`: the tests with an API server run the block unchanged, in the order of its page.
    Cluster,
    /// `nodes`: the tests with nodes that run pods run the block unchanged, in the order of its page.
    Nodes,
    /// `kubeedge`: the tests with KubeEdge run the block unchanged, in the order of its page.
    KubeEdge,
    /// No mark: the tests check the syntax of the block, and the options of our programs in it.
    Read,
}

/// A block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The position of the block, as `PAGE:LINE`.
    pub place: String,
    /// How the tests treat the block.
    pub mark: Mark,
    /// Whether the block is in a section "Clean up", which deletes objects that other pages need.
    pub is_cleanup: bool,
    /// The lines of the block.
    pub text: String,
}

/// The pages whose blocks `run` and `cluster` are run against an API server, in this order, without the sections "Clean
/// up".
pub const API_SERVER_PAGES: [&str; 7] =
    ["install.md", "dynamic.md", "snapshots.md", "expansion.md", "block.md", "static.md", "upgrading.md"];

/// The pages whose blocks are run on nodes with kubelets, in this order. With `true` only the section "Clean up" of the
/// page is run, with `false` only the rest.
pub const NODE_PAGES: [(&str, bool); 10] = [
    ("install.md", false),
    ("dynamic.md", false),
    ("snapshots.md", false),
    ("expansion.md", false),
    ("block.md", false),
    ("static.md", false),
    ("operating.md", false),
    ("upgrading.md", false),
    ("dynamic.md", true),
    ("install.md", true),
];

/// The page whose blocks `kubeedge` are run on a node of KubeEdge.
pub const KUBEEDGE_PAGE: &str = "kubeedge.md";

/// The page whose blocks `nodes` are never run, since they need a kernel with NFS, and an NFS server.
pub const WITHOUT_NODES: &str = "static.md";

/// Returns the root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the paths of the guide's pages.
///
/// # Panics
/// If the pages cannot be listed.
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs/src")).expect("the guide");
    let mut pages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// Returns the blocks of a page.
///
/// # Panics
/// If the page cannot be read or has a mark that does not exist.
#[must_use]
pub fn blocks_of(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap_or_else(|cause| panic!("{}: {cause}", page.display()));
    let name = page.file_name().unwrap_or_default().to_string_lossy();
    blocks(&name, &text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Returns the commands of a page's blocks with one of these marks, in the order of the page. With `is_cleanup` only
/// the section "Clean up" counts, without it only the rest of the page.
///
/// # Panics
/// If the page cannot be read, has a mark that does not exist, or has no such command.
#[must_use]
pub fn script(page: &str, marks: &[Mark], is_cleanup: bool) -> String {
    let mut blocks = blocks_of(&root().join("docs/src").join(page));
    blocks.retain(|block| block.is_cleanup == is_cleanup && marks.contains(&block.mark));
    assert!(!blocks.is_empty(), "{page} has no commands with the marks {marks:?}");
    blocks.into_iter().map(|block| block.text).collect()
}

/// Returns the blocks of a page's text.
///
/// # Errors
/// If a block has a mark that does not exist, or no end.
pub fn blocks(name: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut is_cleanup = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("## ") {
            is_cleanup = line == "## Clean up";
        }
        let Some(fence) = line.strip_prefix("```") else { continue };
        let place = format!("{name}:{}", number + 1);
        let mut body = String::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some((_, line)) => body.extend([line, "\n"]),
                None => return Err(format!("{place}: the block has no end")),
            }
        }
        let mut words = fence.split_whitespace();
        if words.next() != Some("sh") {
            continue;
        }
        let mark = match words.next() {
            None => Mark::Read,
            Some("run") => Mark::Run,
            Some("cluster") => Mark::Cluster,
            Some("nodes") => Mark::Nodes,
            Some("kubeedge") => Mark::KubeEdge,
            Some(other) => return Err(format!("{place}: unknown mark {other}")),
        };
        blocks.push(Block { place, mark, is_cleanup, text: body });
    }
    Ok(blocks)
}

/// Returns the command lines in a block that start one of these programs: the program and its arguments, with `/x` for
/// every variable.
#[must_use]
pub fn commands_of(text: &str, programs: &[&str]) -> Vec<(String, Vec<String>)> {
    let joined = text.replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in joined.lines() {
        let mut words = words(line).into_iter();
        let Some(first) = words.next() else { continue };
        let program = first.trim_start_matches("./");
        if programs.contains(&program) {
            let arguments = words.take_while(|word| !matches!(word.as_str(), "&" | "|" | ">" | "&&" | ";"));
            commands.push((program.to_owned(), arguments.collect()));
        }
    }
    commands
}

/// Splits a line into words, with the part of the shell's syntax that the guide uses.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('#', None) if !begun => break,
            ('\'' | '"', None) => (quote, begun) = (Some(character), true),
            (character, Some(open)) if character == open => quote = None,
            (' ', None) => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            ('$', _) if quote != Some('\'') => {
                while characters
                    .next_if(|next| next.is_ascii_alphanumeric() || "_{}".contains(*next))
                    .is_some()
                {}
                word.push_str("/x");
                begun = true;
            }
            (character, _) => {
                word.push(character);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_marks_and_others_are_left_out() {
        let text = "a\n```sh run\nls\n```\n```yaml\na: b\n```\n```sh\nedge-hub\n```\n";
        let found = blocks("page", text).expect("good marks");
        let marks: Vec<_> = found.iter().map(|block| (block.place.as_str(), block.mark)).collect();
        assert_eq!(marks, [("page:2", Mark::Run), ("page:8", Mark::Read)]);
        assert_eq!(found[0].text, "ls\n");
    }

    #[test]
    fn only_blocks_below_the_heading_clean_up_are_cleanup() {
        let block = "```sh\nls\n```\n";
        let text = format!("# A\n{block}## Clean up\n{block}### More\n{block}## Next\n{block}");
        let found = blocks("page", &text).expect("good marks");
        let cleanup: Vec<_> = found.iter().map(|block| block.is_cleanup).collect();
        assert_eq!(cleanup, [false, true, true, false]);
    }

    #[test]
    fn rejects_an_unknown_mark_and_a_block_without_end() {
        assert!(blocks("page", "```sh ran\nls\n```\n").is_err_and(|wrong| wrong.contains("page:1")));
        assert!(blocks("page", "```sh\nls\n").is_err());
    }

    #[test]
    fn commands_span_lines_and_end_before_shell_operators() {
        let text = "mkdir a\n./edge-hub --listen unix://$dir/hub.sock \\\n  --allow 'a=edge-*' & # on\n";
        let arguments = ["--listen", "unix:///x/hub.sock", "--allow", "a=edge-*"].map(str::to_owned).to_vec();
        assert_eq!(commands_of(text, &["edge-hub"]), [("edge-hub".to_owned(), arguments)]);
    }
}
