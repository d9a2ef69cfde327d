//! Being told that the table has changed.

use std::fs::File;
use std::io;

use async_trait::async_trait;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::MountChanges;

/// The kernel marks the open file as urgent at each change, until it was asked.
#[derive(Debug)]
pub(super) struct Changes(AsyncFd<File>);

impl Changes {
    #[allow(deprecated, reason = "sound for a file, which owns its descriptor; what replaces it is unsafe")]
    pub(super) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/mountinfo")?;
        Ok(Self(AsyncFd::with_interest(file, Interest::PRIORITY)?))
    }
}

#[async_trait]
impl MountChanges for Changes {
    async fn changed(&mut self) -> io::Result<()> {
        self.0.ready(Interest::PRIORITY).await?.clear_ready();
        Ok(())
    }
}
