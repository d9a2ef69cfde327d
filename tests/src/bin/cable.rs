//! A cable with cuts, delay and loss as a process: forwards TCP and UDP until SIGTERM.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use edge_csi_tests::cable::{Cable, Plan};
use tokio::signal::unix::{SignalKind, signal};

/// Forwards TCP and UDP with faults.
///
/// A cut closes all TCP connections, with a reset or in good order by turns, and refuses new ones while it lasts; datagrams are
/// dropped meanwhile, and arrive from another port afterwards, as after a NAT has lost its mappings. Kernels without netem are
/// why this is here.
#[derive(Debug, Parser)]
#[command(name = "cable")]
struct Options {
    /// Forwards TCP. May be given again
    #[arg(long, value_name = "LISTEN=TARGET", value_parser = ends)]
    tcp: Vec<Ends>,

    /// Forwards UDP. May be given again
    #[arg(long, value_name = "LISTEN=TARGET", value_parser = ends)]
    udp: Vec<Ends>,

    /// Time from one cut to the next (ms, s); no cuts if not given
    #[arg(long, value_name = "TIME", value_parser = time)]
    cut_every: Option<Duration>,

    /// How much earlier or later than that each cut may come; at most a quarter of it
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    cut_jitter: Duration,

    /// How long a cut lasts
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "300ms")]
    cut_for: Duration,

    /// How long everything takes in each direction
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    delay: Duration,

    /// How much is lost, of datagrams; TCP data arrives later instead
    #[arg(long, value_name = "PERCENT", value_parser = per_million, default_value = "0%")]
    loss: u32,

    /// What loss and jitter are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    listen: SocketAddr,
    target: SocketAddr,
}

fn ends(text: &str) -> Result<Ends, String> {
    let (listen, target) = text.split_once('=').ok_or("give LISTEN=TARGET, each as IP:PORT")?;
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|cause| format!("{text}: {cause}"));
    Ok(Ends { listen: address(listen)?, target: address(target)? })
}

fn time(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().map_err(|_| format!("{text}: no number"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("{text}: give ms or s")),
    }
}

fn per_million(text: &str) -> Result<u32, String> {
    let percent: f64 = text
        .strip_suffix('%')
        .and_then(|number| number.parse().ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| format!("{text}: give 0% to 100%"))?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a million")]
    Ok((percent * 10_000.0).round() as u32)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            #[allow(clippy::print_stderr, reason = "a command line tool speaks on stderr")]
            {
                eprintln!("error: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let plan = Plan {
        cut_every: options.cut_every,
        cut_jitter: options.cut_jitter,
        cut_for: options.cut_for,
        delay: options.delay,
        loss_per_million: options.loss,
        seed: options.seed,
    };
    let mut cables = Vec::new();
    for Ends { listen, target } in options.tcp {
        cables.push(
            Cable::tcp(listen, target, plan).await.map_err(|cause| format!("--tcp {listen}: {cause}"))?,
        );
    }
    for Ends { listen, target } in options.udp {
        cables.push(
            Cable::udp(listen, target, plan).await.map_err(|cause| format!("--udp {listen}: {cause}"))?,
        );
    }
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    Ok(())
}
