//! A driver that answers every controller call immediately with the same bytes: the baseline of the performance table. A call
//! for a volume with the prefix `held-` hangs until a call for a volume with the prefix `let-go-` arrives.
#![allow(clippy::print_stderr, reason = "a command's output")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use edge_csi_benches::payload;

#[derive(Debug, Parser)]
#[command(about = "Answer every csi.v1.Controller call at once with the same CreateVolumeResponse")]
struct Options {
    /// Path of the unix socket.
    #[arg(long)]
    socket: PathBuf,
    /// The size of each answer in bytes, if it is not that of a vendor's answer.
    #[arg(long)]
    reply_bytes: Option<usize>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let reply = options.reply_bytes.map_or_else(payload::reply, payload::reply_of);
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(edge_csi_benches::driver::serve(&options.socket, reply)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-driver: {}: {error}", options.socket.display());
            ExitCode::FAILURE
        }
    }
}
