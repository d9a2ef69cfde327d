//! The `main` of every binary: options, logs, one runtime, one line on failure, graceful shutdown on SIGTERM.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
#[cfg(feature = "threads")]
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args as _, FromArgMatches as _, Parser};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::logging::{self, LogOptions};

/// An error that prevents or ends the process. Printed as one line on stderr; sets the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fatal {
    /// An option or a file that it names cannot be used: exit code 2.
    Input(String),
    /// An operation with valid input failed: exit code 1.
    Runtime(String),
}

impl Fatal {
    /// Creates an input error from an error and its sources.
    pub fn input(error: impl std::error::Error) -> Self {
        Self::Input(chain(&error))
    }

    /// Creates a run-time error from an error and its sources.
    pub fn runtime(error: impl std::error::Error) -> Self {
        Self::Runtime(chain(&error))
    }

    /// The exit code: 2 for bad input as with clap's own errors, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Runtime(_) => 1,
        }
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Input(message) | Self::Runtime(message)) = self;
        f.write_str(&one_line(message))
    }
}

/// Formats an error with its causes, without those that its text already contains.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Prints a line to stdout.
pub fn print_line(line: impl fmt::Display) {
    // The reader may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// SIGTERM and SIGINT: each requests a graceful shutdown.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers of both signals.
    ///
    /// # Errors
    /// If the process may not install handlers.
    pub fn install() -> Result<Self, Fatal> {
        let install = |kind| signal(kind).map_err(Fatal::runtime);
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Runs `drain` to its end after a signal, unless a second signal aborts it.
    pub async fn drain(&mut self, signal: &'static str, drain: impl Future<Output = ()>) {
        tracing::info!(signal, "draining: no new calls, waiting for open ones");
        tokio::select! {
            () = drain => {}
            signal = self.next() => tracing::warn!(signal, "a second signal: not waiting for open calls"),
        }
        tracing::info!("ended");
    }
}

/// How a program runs.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    level: &'static str,
    #[cfg(feature = "threads")]
    threads: NonZeroUsize,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            level: "info",
            #[cfg(feature = "threads")]
            threads: NonZeroUsize::MIN,
        }
    }
}

impl Launch {
    /// Sets the log level that applies without `-v`.
    #[must_use]
    pub const fn level(mut self, level: &'static str) -> Self {
        self.level = level;
        self
    }

    /// Sets the number of threads of the runtime.
    #[cfg(feature = "threads")]
    #[must_use]
    pub const fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = threads;
        self
    }

    /// With one thread, tasks never wake another thread, which costs as much as a small call.
    fn runtime(self) -> tokio::runtime::Builder {
        #[cfg(feature = "threads")]
        if self.threads > NonZeroUsize::MIN {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(self.threads.get());
            return builder;
        }
        tokio::runtime::Builder::new_current_thread()
    }
}

/// Parses the command line, sets up logs and runs `body` on a single-threaded runtime.
pub fn run<O, F>(body: impl FnOnce(O, Signals) -> F) -> ExitCode
where
    O: Parser,
    F: Future<Output = Result<(), Fatal>>,
{
    run_with(|_| Launch::default(), body)
}

/// Like [`run`], as the options say.
pub fn run_with<O, F>(launch: impl FnOnce(&O) -> Launch, body: impl FnOnce(O, Signals) -> F) -> ExitCode
where
    O: Parser,
    F: Future<Output = Result<(), Fatal>>,
{
    let name = O::command().get_name().to_owned();
    let (options, log) = match parse::<O>(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return usage(&name, &error),
    };
    let launch = launch(&options);
    logging::init(&log, launch.level);
    let outcome = launch.runtime().enable_all().build().map_err(Fatal::runtime).and_then(|runtime| {
        let outcome = runtime.block_on(async { body(options, Signals::install()?).await });
        // A blocking task that hangs in the kernel must not hold up the exit.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => report(&name, &fatal),
    }
}

/// Parses a command line: the binary's own options and the common log options.
pub fn parse<O: Parser>(
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<(O, LogOptions), clap::Error> {
    let matches = LogOptions::augment_args(O::command()).try_get_matches_from(line)?;
    Ok((O::from_arg_matches(&matches)?, LogOptions::from_arg_matches(&matches)?))
}

/// `--help` and `--version` are printed to stdout by clap; an error becomes one line.
fn usage(name: &str, error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    report(name, &Fatal::Input(usage_line(error)))
}

fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first_part = text.split("\n\n").next().unwrap_or(&text);
    format!("{} (see --help)", one_line(first_part.strip_prefix("error: ").unwrap_or(first_part)))
}

fn report(name: &str, fatal: &Fatal) -> ExitCode {
    // stderr may be closed; then the error cannot be reported.
    let _ = writeln!(std::io::stderr(), "{name}: error: {fatal}");
    ExitCode::from(fatal.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Demo {
        #[arg(long)]
        nodeid: String,
        #[arg(long)]
        count: Option<u8>,
    }

    #[test]
    fn a_usage_error_is_one_line_that_names_the_option() {
        for (arguments, names) in [
            (&["demo"][..], "--nodeid"),
            (&["demo", "--nodeid", "a", "--count", "300"], "--count"),
            (&["demo", "--nodeid", "a", "--nosuch"], "--nosuch"),
        ] {
            let error = Demo::try_parse_from(arguments).map(|demo| (demo.nodeid, demo.count)).unwrap_err();
            let line = usage_line(&error);
            assert!(line.contains(names) && !line.contains('\n') && !line.starts_with("error"), "{line}");
        }
    }

    #[test]
    fn prints_each_source_once_on_one_line() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read a.pem:\n {source}")]
        struct Outer {
            source: std::io::Error,
        }
        let fatal = Fatal::input(Outer { source: std::io::Error::other("no such file") });
        assert_eq!(fatal.to_string(), "cannot read a.pem: no such file");
        assert_eq!((fatal.exit_code(), Fatal::Runtime(String::new()).exit_code()), (2, 1));
    }
}
