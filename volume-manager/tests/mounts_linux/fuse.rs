//! A FUSE server of one directory, that can be killed or fall silent. It speaks no more of the protocol than that takes.

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

/// A server in a process of its own. Dropped, it is killed.
pub(super) struct FuseServer {
    child: Child,
    /// Kept open, since the test harness in that process writes to it from time to time.
    output: Box<dyn BufRead + Send>,
}

/// What a server does with what it is asked, after it has said that it is there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Manner {
    Answers,
    /// It reads and says nothing. Who asks cannot be killed then.
    Silent,
    /// It does not even read.
    Deaf,
    /// It answers that its storage cannot be had (EIO), as while a link is cut.
    Fails,
}

impl FuseServer {
    /// Mounts at a directory; the server is there when this returns.
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

    /// As a crash of the driver.
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

/// What the process of the server does.
pub(super) fn serve_if_asked() {
    let mut arguments = std::env::args_os().skip_while(|argument| argument != MARKER).skip(1);
    let (Some(mode), Some(at)) = (arguments.next(), arguments.next()) else { return };
    let mut device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", device.as_raw_fd());
    let options = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap();
    rustix::mount::mount("test", &at, "fuse", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    let (mut told, mut buffer) = (false, vec![0; 128 * 1024]);
    loop {
        let Ok(length) = device.read(&mut buffer) else { return };
        let request = &buffer[..length];
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
        match opcode {
            INIT => answer(&mut device, unique, 0, &init()),
            _ if mode == "Silent" => {}
            GETATTR if mode == "Fails" => answer(&mut device, unique, -EIO, &[]),
            GETATTR => answer(&mut device, unique, 0, &attributes()),
            _ => answer(&mut device, unique, -ENOSYS, &[]),
        }
        if !told {
            let mut output = std::io::stdout().lock();
            output.write_all(b"\nmounted\n").and_then(|()| output.flush()).unwrap();
            told = true;
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
    // A request may have been given up by who made it.
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

/// Of the root directory, not to be kept by the kernel.
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
