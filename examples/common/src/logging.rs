//! Logs on stderr, as lines for people or as JSON for machines.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The crates whose log level `-v` raises: those of this suite, not their dependencies.
const OWN_CRATES: &[&str] = &[
    "edge_csi_common",
    "edge_hub",
    "edge_agent",
    "edge_csi_driver",
    "hostpath_driver",
    "quickstart",
    "csi_proto",
    "csi_proxy",
    "edge_transport",
    "volume_manager",
];

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line for people, coloured on a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

// The log options of every binary. A doc comment here would replace the one of the binary in its help.
#[derive(Debug, Clone, clap::Args)]
#[allow(missing_docs, reason = "a doc comment would be in the help")]
pub struct LogOptions {
    /// Log more: -v every call and connection (debug), -vv each step of every call (trace); RUST_LOG overrides both
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,

    /// Format of the log lines on stderr
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT", global = true)]
    log_format: LogFormat,
}

impl LogOptions {
    /// Returns what is logged. A level, or levels of targets (`info,csi_proxy=debug`), in `rust_log` is preferred.
    fn filter(&self, base: &str, rust_log: Option<&str>) -> Result<Targets, ParseError> {
        let wanted = rust_log.map(str::trim).filter(|directives| !directives.is_empty());
        wanted.map_or_else(|| directives(base, self.verbose).parse(), str::parse)
    }
}

/// Returns the filter directives for `verbose` times `-v`; `base` is the level without `-v`.
fn directives(base: &str, verbose: u8) -> String {
    let own = match verbose {
        0 => return base.to_owned(),
        1 => "debug",
        _ => "trace",
    };
    OWN_CRATES.iter().fold("info".to_owned(), |all, one| format!("{all},{one}={own}"))
}

/// Sends this process's logs to stderr: those of level `base` and above, more with `-v`. A second call changes nothing.
pub fn init(options: &LogOptions, base: &str) {
    let rust_log = std::env::var("RUST_LOG").ok();
    let is_terminal = io::stderr().is_terminal();
    let (filter, unusable) = match options.filter(base, rust_log.as_deref()) {
        Ok(filter) => (filter, None),
        Err(cause) => (Targets::new().with_default(LevelFilter::INFO), Some(cause)),
    };
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(is_terminal);
    let installed = match options.log_format {
        LogFormat::Text => {
            let writer = move || OneLine { to: io::stderr(), is_terminal };
            builder.with_writer(writer).finish().with(filter).try_init()
        }
        // JSON escapes by itself.
        LogFormat::Json => {
            builder.with_writer(io::stderr).json().flatten_event(true).finish().with(filter).try_init()
        }
    };
    if let Err(cause) = installed {
        tracing::debug!(%cause, "logging is already set up");
    }
    if let Some(cause) = unusable {
        tracing::warn!(%cause, "RUST_LOG cannot be used: expected a level, or levels of targets as in info,csi_proxy=debug");
    }
}

/// Writes each event on one line, so that text of another host in an event forges no other line: invisible characters
/// are escaped as in `Debug`.
struct OneLine<W> {
    to: W,
    /// Whether the output has escape sequences for colours. The subscriber escapes those in fields.
    is_terminal: bool,
}

impl<W: Write> Write for OneLine<W> {
    /// Writes an event, which arrives as a whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        let mut line = String::with_capacity(event.len());
        for found in text.chars() {
            let is_kept = matches!(found, '\'' | '"' | '\\') || (self.is_terminal && found == '\x1b');
            match is_kept {
                true => line.push(found),
                false => line.extend(found.escape_debug()),
            }
        }
        line.push_str(end);
        self.to.write_all(line.as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let forged = "WARN name=\"größe\" X\n2026 ERROR forged\r\x1b[31m\u{202e}\n";
        for (is_terminal, color) in [(false, r"\u{1b}"), (true, "\x1b")] {
            let mut log = OneLine { to: Vec::new(), is_terminal };
            log.write_all(forged.as_bytes()).unwrap();
            let expected = format!("WARN name=\"größe\" X\\n2026 ERROR forged\\r{color}[31m\\u{{202e}}\n");
            assert_eq!(String::from_utf8(log.to).unwrap(), expected);
        }
    }

    #[test]
    fn verbosity_turns_up_own_crates_only_and_rust_log_wins() {
        assert_eq!(directives("info", 0), "info");
        assert_eq!(directives("error", 0), "error");
        let (debug, trace) = (directives("info", 1), directives("info", 7));
        assert!(debug.starts_with("info,") && debug.contains("csi_proxy=debug"));
        assert!(trace.contains("edge_transport=trace") && !trace.contains("h2="));
        let options = LogOptions { verbose: 2, log_format: LogFormat::Text };
        assert_eq!(options.filter("info", Some("warn")).unwrap().to_string(), "warn");
        assert!(options.filter("info", Some(" ")).unwrap().to_string().contains("csi_proxy=trace"));
        options.filter("info", Some("csi_proxy=loud")).unwrap_err();
    }
}
