//! The operations themselves. Each may hang, and so runs in a probe process only.

mod create;
mod remove;

use super::entry::inspect;
use super::probe::{Answer, Request};

/// Carries out one request.
pub(super) fn carry_out(request: &Request) -> Answer {
    let done = match request {
        Request::Hello => Ok(Answer::Hello),
        Request::Inspect(path) => inspect(path).map(Answer::Inspected),
        Request::CreateDirectory(path) => create::create_directory(path),
        Request::Remove(removal) => remove::remove(removal),
    };
    done.unwrap_or_else(|errno| Answer::Errno(errno.raw_os_error()))
}
