//! Every table, measured with the programs of this commit and of another one in turn.
//!
//! The figures are read from the printed tables, so that a new table or column needs nothing here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use super::PerfError;
use super::build::{Programs, run_to_end};
use super::rounds::{MeanRatio, check_pairs, median};
use crate::workspace_root;

/// Options of `cargo xtask perf all`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The other commit, such as the one before a change.
    #[arg(long, value_name = "COMMIT")]
    against: String,
    /// Pairs of measurements of each table, at least 5.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Only these tables.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// The tables, with options for a short measurement.
const TABLES: [(&str, &[&str]); 6] = [
    ("relay", &["--rounds", "2", "--seconds", "1", "--in-flight", "1,64"]),
    ("hung", &["--rounds", "3"]),
    ("link", &["--minutes", "1", "--without-peers"]),
    ("selection", &["--nodes", "1000", "--placements", "20000"]),
    ("sessions", &["--sessions", "1000", "--idle-seconds", "20"]),
    ("threads", &["--pairs", "5", "--seconds", "1"]),
];

/// The programs that are measured. The clients are those of this commit, so that only these differ.
const MEASURED: [&str; 5] = ["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver", "selection"];
const CLIENTS: [&str; 5] = ["bare", "bench-driver", "idle-sessions", "hostile-links", "load"];

/// A figure of a table: its section, its row and its column.
type Cell = (String, String, String);

/// Measures every table in turn, and prints the ratio of each figure: this commit to the other one.
#[allow(clippy::print_stderr, reason = "the progress of an hour")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    check_pairs(options.pairs)?;
    let now = Programs::build(false)?;
    let folder = workspace_root().join("target/against");
    build(&options.against, &folder, &now)?;
    for (table, arguments) in TABLES {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == table) {
            continue;
        }
        let mut pairs: BTreeMap<Cell, Vec<[f64; 2]>> = BTreeMap::new();
        for pair in 0..options.pairs {
            let mut both = [BTreeMap::new(), BTreeMap::new()];
            // The order changes, so that what the machine warms up meets both.
            for side in if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
                let programs = if side == 0 { folder.join("programs") } else { now.folder().to_owned() };
                both[side] = figures(&measure(table, arguments, &programs)?);
            }
            eprintln!("{table}: {} of {} pairs measured", pair + 1, options.pairs);
            let [before, after] = both;
            for (cell, after) in after {
                if let Some(before) = before.get(&cell).filter(|before| **before > 0.0 && after > 0.0) {
                    pairs.entry(cell).or_default().push([*before, after]);
                }
            }
        }
        print(table, options, &pairs);
    }
    Ok(())
}

/// Builds the measured programs of a commit, and puts the clients of this one beside them.
fn build(commit: &str, folder: &Path, now: &Programs) -> Result<(), PerfError> {
    let (source, programs) = (folder.join("source"), folder.join("programs"));
    std::fs::create_dir_all(&programs).map_err(PerfError::io(format!("create {}", programs.display())))?;
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(workspace_root());
        git
    };
    if source.exists() {
        run_to_end(git().args(["worktree", "remove", "--force"]).arg(&source))?;
    }
    run_to_end(git().args(["worktree", "add", "--force", "--detach"]).arg(&source).arg(commit))?;
    let target = folder.join("target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&source).env("CARGO_TARGET_DIR", &target).args(["build", "--release", "--locked"]);
    for package in ["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver", "edge-csi-benches"] {
        cargo.args(["--package", package]);
    }
    run_to_end(cargo.args(MEASURED.iter().flat_map(|name| ["--bin", *name])))?;
    let copies = MEASURED.iter().map(|name| (target.join("release"), name));
    for (from, name) in copies.chain(CLIENTS.iter().map(|name| (now.folder().to_owned(), name))) {
        let from = from.join(name);
        std::fs::copy(&from, programs.join(name))
            .map_err(PerfError::io(format!("copy {}", from.display())))?;
    }
    run_to_end(git().args(["worktree", "remove", "--force"]).arg(&source))
}

/// Prints one table with these programs, and returns what was printed.
fn measure(table: &str, arguments: &[&str], programs: &PathBuf) -> Result<String, PerfError> {
    let this = std::env::current_exe().map_err(PerfError::io("find this program"))?;
    let mut command = Command::new(this);
    command.args(["perf", table, "--programs"]).arg(programs).args(arguments).stderr(Stdio::inherit());
    let shown = format!("{command:?}");
    let output = command.output().map_err(PerfError::io(shown.clone()))?;
    if !output.status.success() {
        return Err(PerfError::ended_early(&shown));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the figures of printed tables. The first line of the text before a table is its section, also that of the tables after
/// it that have no text. The first cell of a row and the ones after it, up to a number, are its name.
fn figures(text: &str) -> BTreeMap<Cell, f64> {
    let (mut figures, mut section, mut columns) = (BTreeMap::new(), String::new(), Vec::new());
    let mut last = "";
    for line in text.lines().map(str::trim) {
        let before = std::mem::replace(&mut last, line);
        let Some(row) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            columns.clear();
            if !line.is_empty() && (before.is_empty() || before.starts_with('|')) {
                line.clone_into(&mut section);
            }
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells.into_iter().map(ToOwned::to_owned).collect();
            continue;
        }
        let is_figure = |cell: &&str| number(cell).is_some();
        let first = cells.iter().skip(1).position(is_figure).map_or(cells.len(), |after| after + 1);
        let name = cells[..first].join(", ");
        for (column, cell) in columns.iter().zip(&cells).skip(first) {
            if let Some(number) = number(cell) {
                figures.insert((section.clone(), name.clone(), column.clone()), number);
            }
        }
    }
    figures
}

/// Returns the number at the start of a cell.
fn number(cell: &str) -> Option<f64> {
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(cell.len());
    cell[..end].parse().ok()
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(table: &str, options: &Options, pairs: &BTreeMap<Cell, Vec<[f64; 2]>>) {
    println!("\n## {table}: this commit to {}, {} pairs\n", options.against, options.pairs);
    println!("| table | row | figure | before | after | ratio | 95 % interval |");
    println!("|---|---|---|---|---|---|---|");
    for ((section, row, column), pairs) in pairs {
        let of = |side: usize| median(pairs.iter().map(|pair| pair[side]).collect());
        let ratios: Vec<f64> = pairs.iter().map(|[before, after]| after / before).collect();
        // A figure that is 0 at times has no mean ratio.
        let ratio = if ratios.len() == options.pairs {
            MeanRatio::of(&ratios).to_string()
        } else {
            "- | -".to_owned()
        };
        println!("| {section} | {row} | {column} | {} | {} | {ratio} |", of(0), of(1));
    }
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn reads_figures_of_three_tables() {
        let text = "one\nsecond line\n\n| chain | figure | calls/s | spread |\n|---|---|---|---|\n| a | p50 | 12.5 | 1.00 (0.9-1.1) |\n\
            \ntwo\nsecond line\n| chain | x (y) |\n|---|---|\n| a | 7 (3) |\n| b | - |\n\n| figure | s |\n|---|---|\n| 90 % | 3 |\n";
        let found: Vec<_> = figures(text).into_iter().collect();
        let cell =
            |section: &str, row: &str, column: &str| (section.to_owned(), row.to_owned(), column.to_owned());
        let expected = [
            (cell("one", "a, p50", "calls/s"), 12.5),
            (cell("one", "a, p50", "spread"), 1.0),
            (cell("two", "90 %", "s"), 3.0),
            (cell("two", "a", "x (y)"), 7.0),
        ];
        assert_eq!(found, expected);
    }
}
