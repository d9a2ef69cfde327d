//! Which operations hang together.

use std::os::unix::ffi::OsStrExt;

use super::super::{DeviceNumber, Mount};

/// What a mount gets its answers from. If it does not answer one, it answers none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Storage {
    /// One file system.
    Device(DeviceNumber),
    /// The server of shares, each of which may be a file system of its own.
    Server(Vec<u8>),
}

impl Storage {
    pub(super) fn of(mount: &Mount) -> Self {
        let source = mount.source.as_bytes();
        let host = match source.strip_prefix(b"//") {
            Some(share) => share.split(|&byte| byte == b'/').next(),
            None => source.windows(2).position(|pair| pair == b":/").map(|end| &source[..end]),
        };
        match host {
            Some(host) if mount.device.major == 0 && !host.is_empty() => Self::Server(host.to_vec()),
            _ => Self::Device(mount.device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_one_server_hang_together_and_disks_do_not() {
        let of = |device: &str, fs_type: &str, source: &str| {
            let line = format!("20 1 {device} / /m rw - {fs_type} {source} rw");
            Storage::of(&Mount::parse(line.as_bytes()).unwrap())
        };
        let server = |host: &str| Storage::Server(host.as_bytes().to_vec());
        for (fs_type, source, host) in [
            ("nfs4", "10.0.0.1:/a", "10.0.0.1"),
            ("nfs", "10.0.0.1:/b", "10.0.0.1"),
            ("nfs", "[fe80::1]:/a", "[fe80::1]"),
            ("cifs", "//files/share", "files"),
            ("fuse.sshfs", "me@there:/home", "me@there"),
        ] {
            assert_eq!(of("0:50", fs_type, source), server(host));
        }
        let device = |major, minor| Storage::Device(DeviceNumber { major, minor });
        assert_eq!(of("8:1", "ext4", "/dev/sda1"), device(8, 1));
        assert_eq!(of("8:1", "ext4", "odd:/name"), device(8, 1));
        assert_eq!(of("0:51", "fuse.driver", "driver"), device(0, 51));
        assert_eq!(of("0:52", "tmpfs", ":/"), device(0, 52));
    }
}
