//! The process that carries out one operation, which can be killed if it hangs.
//!
//! A program that uses `LinuxMounts` is its own probe. It begins with this, before it reads arguments or starts threads:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use volume_manager::mounts::linux::probe;
//!
//! fn main() -> ExitCode {
//!     if let Some(code) = probe::serve_if_asked() {
//!         return code;
//!     }
//!     // The program.
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! The first argument of a probe is [`MARKER`]. It does what the others say, prints one line, and ends. It ends by itself too: when
//! its deadline has passed, and when the process that started it is gone, so that no late removal of a program that
//! was killed meets the targets of the next.

mod answer;
mod request;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub(super) use answer::Answer;
pub(super) use request::Request;

/// The first argument of a process that is a probe.
pub const MARKER: &str = "--volume-manager-mount-probe";

/// The exit status of a probe whose deadline has passed, or that was given up.
const GIVEN_UP: i32 = 75;

/// Serves, if this process was started as a probe. The program then ends with the code.
#[must_use]
pub fn serve_if_asked() -> Option<ExitCode> {
    serve(std::env::args_os().skip(1))
}

/// As [`serve_if_asked`], for who gets the arguments of the process in another way. They are without the program's name.
#[must_use]
pub fn serve(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    if arguments.next()? != MARKER {
        return None;
    }
    let arguments: Vec<OsString> = arguments.collect();
    let Some((deadline, request)) = request::decode(&arguments) else {
        return Some(ExitCode::from(64));
    };
    // So that what is made gets the mode it is asked for. This process does nothing else.
    rustix::process::umask(rustix::fs::Mode::empty());
    end_with_parent(deadline);
    let line = super::operation::carry_out(&request).encode();
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(74) })
}

/// Ends this process when its deadline has passed, or when the other end of its standard input is closed, whichever is first.
fn end_with_parent(deadline: Duration) {
    let (closed, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(closed);
    });
    thread::spawn(move || {
        let _ = wait.recv_timeout(deadline);
        std::process::exit(GIVEN_UP);
    });
}
