//! What the link between an agent and a hub costs: each agent is in a network namespace of its own, whose only port counts the
//! bytes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::build::Programs;
use super::carrier::{Carrier, Place};
use super::chain::{DRIVER, pause};
use super::far::CUT;
use super::network::{Network, Passed, quiet};
use super::processes::{Process, Reporter};
use super::{PerfError, far, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf link`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Minutes for which the idle links are counted.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Cut the idle links once a minute.
    #[arg(long, conflicts_with = "far")]
    flapping: bool,
    /// Measure calls over slow links that lose packets, in place of the bytes.
    #[arg(long)]
    far: bool,
    /// Measure only links of edge-csi, without ssh and frp.
    #[arg(long)]
    without_peers: bool,
    /// Folder with release binaries, instead of building them; frp is then run from the PATH.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// The links of the table.
const LINKS: [(&str, Carrier); 5] = [
    ("wss", Carrier::Relay("wss", &[])),
    ("quic", Carrier::Relay("quic", &[])),
    ("wss, --metered", Carrier::Relay("wss", &["--metered"])),
    ("ssh -R", Carrier::Ssh),
    ("frp", Carrier::Frp),
];

/// Pairs of calls on an idle link, and the time before each.
const PAIRS: u64 = 5;
const BETWEEN_CALLS: Duration = Duration::from_secs(12);

const MINUTE: Duration = Duration::from_secs(60);

/// A carrier with its far end in a network namespace, and a driver behind that end.
#[derive(Debug)]
struct Link {
    name: &'static str,
    /// The process at the driver's side: the agent, or the client of a tunnel.
    agent: Process,
    _rest: Vec<Process>,
    /// Makes a pair of calls when it is asked to, over a connection that stays, as a sidecar's does.
    caller: Reporter,
    connect: Passed,
    /// A connection after a lost one, if the far end dials again.
    again: Option<Passed>,
    /// Bytes of a CreateVolume and the DeleteVolume after it.
    pair: u64,
    // Last, so that the processes end before.
    network: Network,
}

impl Link {
    /// Connects a carrier, and counts what that takes.
    fn start(
        number: usize,
        programs: &Programs,
        authority: &Authority,
        run: &Path,
    ) -> Result<Self, PerfError> {
        let (name, carrier) = LINKS[number];
        let folder = run.join(format!("link-{number}"));
        std::fs::create_dir_all(&folder).map_err(PerfError::io(format!("create {}", folder.display())))?;
        let network = Network::new(number as u8, None)?;
        let node = format!("edge-{number}");
        let place = Place { name: &node, folder: &folder, programs, authority };
        let ends = carrier.start(&place, &network, &[DRIVER])?;
        let mut rest = vec![ends.near, place.start_driver()?];
        // What dials before the near end listens would dial twice.
        pause(Duration::from_secs(2));
        let agent = Process::start("agent", &folder, &mut network.within(&ends.far))?;
        let connect = quiet(&network, Passed::default())?;
        for mut command in ends.rest {
            rest.push(Process::start("proxy", &folder, &mut command)?);
        }
        quiet(&network, Passed::default())?;
        let again = carrier.dials_again().then(|| network.connected_again(carrier.is_tcp())).transpose()?;
        let mut caller = programs.rust("load");
        caller.args(["--by-step", "--work", "create-delete", "--endpoint", &ends.endpoints[0]]);
        let caller = Reporter::start(&mut caller)?;
        Ok(Self { name, agent, _rest: rest, caller, connect, again, pair: 0, network })
    }

    fn call(&mut self) -> Result<(), PerfError> {
        self.caller.next_step()?;
        self.caller.next_line().map(drop)
    }

    fn sample(&self) -> Result<(Passed, u64, Duration), PerfError> {
        Ok((self.network.passed()?, self.agent.wake_ups(), self.agent.processor_time()))
    }
}

/// Cuts the links once in each minute, at any second of it, so that they are cut at any time of a ping.
fn flap(links: &[Link], length: Duration) -> Result<(), PerfError> {
    let connected = MINUTE - CUT;
    let mut random = fastrand::Rng::with_seed(1);
    let minutes = length.as_secs() / MINUTE.as_secs();
    for _ in 0..minutes {
        let before = connected.mul_f64(random.f64());
        pause(before);
        links.iter().try_for_each(|link| link.network.cut(true))?;
        pause(CUT);
        links.iter().try_for_each(|link| link.network.cut(false))?;
        pause(connected - before);
    }
    pause(length - Duration::from_secs(minutes * MINUTE.as_secs()));
    Ok(())
}

/// Measures and prints the table.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let peers = !options.without_peers;
    let programs = Programs::at_or_built(options.programs.as_deref(), peers)?;
    let is_measured = |carrier: Carrier| peers || matches!(carrier, Carrier::Relay(..));
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    if options.far {
        return far::run(&programs, &authority, run.path(), is_measured);
    }
    let numbers = (0..LINKS.len()).filter(|number| is_measured(LINKS[*number].1));
    let start = |number| Link::start(number, &programs, &authority, run.path());
    let mut links = numbers.map(start).collect::<Result<Vec<_>, _>>()?;
    // The first pair opens the caller's connection.
    links.iter_mut().try_for_each(Link::call)?;
    pause(BETWEEN_CALLS);
    let before = links.iter().map(|link| link.network.passed()).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..PAIRS {
        links.iter_mut().try_for_each(Link::call)?;
        pause(BETWEEN_CALLS);
    }
    for (link, before) in links.iter_mut().zip(before) {
        link.pair = (link.network.passed()?.bytes - before.bytes) / PAIRS;
    }
    let samples = links.iter().map(Link::sample).collect::<Result<Vec<_>, _>>()?;
    let length = Duration::from_secs_f64(options.minutes.max(0.5) * 60.0);
    let cut = if options.flapping {
        flap(&links, length)?;
        format!("; nothing passes for {} s of each minute", CUT.as_secs())
    } else {
        pause(length);
        String::new()
    };
    println!("IP packets and bytes in both directions; idle for {:.0} s{cut}.\n", length.as_secs_f64());
    println!(
        "| link | connect: bytes (packets) | connect again | CreateVolume, DeleteVolume | idle: kB/day | agent: wake-ups/min | CPU s/day | resident KiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (link, before) in links.iter().zip(samples) {
        let now = link.sample()?;
        let a_day = 86_400.0 / length.as_secs_f64();
        println!(
            "| {} | {} ({}) | {} | {} | {:.0} | {:.1} | {:.1} | {} |",
            link.name,
            link.connect.bytes,
            link.connect.packets,
            link.again.map_or_else(|| "-".to_owned(), |again| format!("{} ({})", again.bytes, again.packets)),
            link.pair,
            (now.0.bytes - before.0.bytes) as f64 * a_day / 1e3,
            (now.1 - before.1) as f64 * 60.0 / length.as_secs_f64(),
            (now.2 - before.2).as_secs_f64() * a_day,
            link.agent.resident(),
        );
    }
    Ok(())
}
