//! The operations themselves. Each may hang, and so runs in a probe process only.

mod bind;
mod create;
mod remove;
mod unmount;

use rustix::io::Errno;

use super::super::{AbsolutePath, Inspection, Presence};
use super::entry::{Entry, is_dead};
use super::probe::{Answer, Request};

/// Carries out one request.
pub(super) fn carry_out(request: &Request) -> Answer {
    let done = match request {
        Request::Hello => Ok(Answer::Hello),
        Request::Inspect(path) => inspect(path),
        Request::Create(creation) => create::create(creation),
        Request::Bind(wish) => bind::bind(wish),
        Request::Unmount(wish) => unmount::unmount(wish),
        Request::Remove(removal) => remove::remove(removal),
    };
    done.unwrap_or_else(|errno| Answer::Errno(errno.raw_os_error()))
}

fn inspect(path: &AbsolutePath) -> Result<Answer, Errno> {
    let entry = match Entry::open(path) {
        Ok(entry) => entry,
        Err(Errno::NOENT) => return Ok(Answer::Inspected(Inspection::of(Presence::Missing))),
        Err(errno) if is_dead(errno) => {
            return Ok(Answer::Inspected(Inspection::of(Presence::Dead { errno: errno.raw_os_error() })));
        }
        Err(errno) => return Err(errno),
    };
    let mount = entry.mount()?;
    Ok(Answer::Inspected(Inspection { presence: entry.presence()?, mount }))
}
