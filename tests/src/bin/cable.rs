//! Forwards TCP and UDP with cuts, delay and loss until SIGTERM or SIGINT.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use edge_csi_tests::cable::{Cable, Plan};
use tokio::signal::unix::{SignalKind, signal};

/// Forwards TCP and UDP with faults.
///
/// A cut closes all TCP connections, by turns with RST and with FIN, and resets new ones while it lasts. Datagrams are
/// dropped during a cut, and arrive from another port afterwards, as after a NAT has lost its mappings. Unlike netem,
/// this needs no root and no kernel module.
#[derive(Debug, Parser)]
#[command(name = "cable")]
struct Options {
    /// Forwards TCP; may be repeated
    #[arg(long, value_name = "LISTEN=TARGET", value_parser = ends)]
    tcp: Vec<Ends>,

    /// Forwards UDP; may be repeated
    #[arg(long, value_name = "LISTEN=TARGET", value_parser = ends)]
    udp: Vec<Ends>,

    /// Time from one cut to the next (ms, s); no cuts if not given
    #[arg(long, value_name = "TIME", value_parser = time)]
    cut_every: Option<Duration>,

    /// The most by which a cut begins earlier or later than planned; at most a quarter of --cut-every
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    cut_jitter: Duration,

    /// Duration of a cut
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "300ms")]
    cut_for: Duration,

    /// Delay of all data, in each direction
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    delay: Duration,

    /// Share of datagrams that are lost; TCP data is delayed instead
    #[arg(long, value_name = "PERCENT", value_parser = per_million, default_value = "0%")]
    loss: u32,

    /// Seed of loss and jitter
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    listen: SocketAddr,
    target: SocketAddr,
}

fn ends(text: &str) -> Result<Ends, String> {
    let (listen, target) = text.split_once('=').ok_or("no '='; expected LISTEN=TARGET, each as IP:PORT")?;
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|cause| format!("{text}: {cause}"));
    Ok(Ends { listen: address(listen)?, target: address(target)? })
}

fn time(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()]
        .parse()
        .map_err(|_| format!("{text}: no number; expected a number with ms or s"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("{text}: unknown unit; expected ms or s")),
    }
}

fn per_million(text: &str) -> Result<u32, String> {
    let percent: f64 = text
        .strip_suffix('%')
        .and_then(|number| number.parse().ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| format!("{text}: expected 0% to 100%"))?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a million")]
    Ok((percent * 10_000.0).round() as u32)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            #[allow(clippy::print_stderr, reason = "a command line tool reports on stderr")]
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
