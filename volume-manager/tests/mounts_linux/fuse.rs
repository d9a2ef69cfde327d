//! A minimal FUSE server of one directory, which can be killed or can stop responding.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::mount::MountFlags;

const MARKER: &str = "fuse-server-at";
const INIT: u32 = 26;
const GETATTR: u32 = 3;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;

/// A server in its own process. Killed on drop.
pub(super) struct FuseServer {
    child: Child,
    /// Kept open, since the test harness in that process writes to it.
    output: Box<dyn BufRead + Send>,
}

/// The behavior of a server after it has mounted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Manner {
    Answers,
    /// Reads requests and does not reply. The requesting process cannot be killed then.
    Unresponsive,
    /// Does not read requests.
    Deaf,
    /// Returns EIO, as if its storage were unreachable.
    Fails,
}

impl FuseServer {
    /// Mounts on a directory; the mount exists when this returns.
    pub(super) fn start(at: &Path, manner: Manner) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["fuse_server", "--exact", "--ignored", "--nocapture", "--", MARKER]);
        command.arg(format!("{manner:?}")).arg(at);
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        let output = Box::new(BufReader::new(child.stdout.take().unwrap()));
        let mut server = Self { child, output };
        let mut lines = server.output.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "mounted"), "the FUSE server did not mount");
        server
    }

    /// Kills the server, like a crash of the driver.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the server if this process was started as one.
pub(super) fn serve_if_asked() {
    let mut arguments = std::env::args_os().skip_while(|argument| argument != MARKER).skip(1);
    let (Some(mode), Some(at)) = (arguments.next(), arguments.next()) else { return };
    let mut device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", device.as_raw_fd());
    let options = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap();
    rustix::mount::mount("test", &at, "fuse", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    let (mut announced, mut buffer) = (false, vec![0; 128 * 1024]);
    loop {
        let Ok(length) = device.read(&mut buffer) else { return };
        let request = &buffer[..length];
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
        match opcode {
            INIT => answer(&mut device, unique, 0, &init()),
            _ if mode == "Unresponsive" => {}
            GETATTR if mode == "Fails" => answer(&mut device, unique, -EIO, &[]),
            GETATTR => answer(&mut device, unique, 0, &attributes()),
            _ => answer(&mut device, unique, -ENOSYS, &[]),
        }
        if !announced {
            let mut output = std::io::stdout().lock();
            output.write_all(b"\nmounted\n").and_then(|()| output.flush()).unwrap();
            announced = true;
        }
        if mode == "Deaf" {
            loop {
                std::thread::park();
            }
        }
    }
}

fn answer(device: &mut File, unique: u64, error: i32, body: &[u8]) {
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    // The caller may have aborted the request.
    let _ = device.write(&bytes);
}

fn init() -> Vec<u8> {
    let mut body = Vec::new();
    for word in [7u32, 31, 0, 0] {
        body.extend(word.to_ne_bytes());
    }
    body.extend([1u16, 1].map(u16::to_ne_bytes).concat());
    for word in [4096u32, 1] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(64, 0);
    body
}

/// Returns the attributes of the root directory, which the kernel must not cache.
fn attributes() -> Vec<u8> {
    let mut body = vec![0; 16];
    for long in [1u64, 0, 0, 0, 0, 0] {
        body.extend(long.to_ne_bytes());
    }
    for word in [0u32, 0, 0, 0o40755, 1, 0, 0, 0, 4096, 0] {
        body.extend(word.to_ne_bytes());
    }
    body
}
