//! Measures a hub while hostile connections attack it.
//!
//! Each round measures under attack, and under an inert load: the same attackers attack an equal hub without peers, so
//! that both measurements share the processors with equal work. The attackers run on one processor at the lowest priority.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::build::Programs;
use super::chain::{Chain, HubTransport, Kind, Load, agent_of, free_port, hub_at, pause};
use super::processes::{Process, Reporter, http_get, raise_open_files};
use super::rounds::{Spread, median};
use super::{PerfError, folder};
use crate::authority::{Authority, Usage};

/// Maximum growth of the hub's memory in KiB under attacks that have at most one certificate.
const GROWTH: u64 = 32 << 10;

/// Maximum growth of the hub's memory in KiB under attackers with a certificate each: the budget for received data,
/// 300 KiB for each of 256 links, and a reserve.
const GROWTH_OF_MANY: u64 = 160 << 10;

/// Maximum time in seconds from the start of a genuine agent to its admission.
const ADMISSION: f64 = 1.0;

/// Lowest ratio of the rates under attack and under inert load.
const RATIO: f64 = 0.9;

/// Time limit for the admission of the genuine agent.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for an attack to take effect.
const SETTLE: Duration = Duration::from_millis(500);

/// A token that no attacker has, only its name and SHA-256: the hub accepts links without certificates.
const TOKENS: &str = "unused 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n";

/// Options of `cargo xtask perf hostile`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rounds: each measures under attack and under inert load. With fewer, the medians spread by 0.2 on two processors.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Seconds of each measurement of the rate.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Number of concurrent callers.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Hostile connections that send bytes.
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Hostile connections that are opened again each second when they end.
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Hostile connections that do not complete a handshake.
    #[arg(long, default_value_t = 1290)]
    half_open: usize,
    /// Connections without a handshake that are opened again each second when they end.
    #[arg(long, default_value_t = 26.0)]
    half_open_rate: f64,
    /// The processor of the attackers.
    #[arg(long, default_value_t = 0)]
    processor: usize,
    /// Only these attacks.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "unauthenticated,one-certificate,many-certificates,half-open"
    )]
    attack: Vec<Attack>,
    /// Only these transports.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "wss,quic")]
    transport: Vec<Transport>,
    /// Folder with release binaries, instead of building them.
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
}

/// The attacks; see `hostile-links --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Attack {
    Unauthenticated,
    OneCertificate,
    ManyCertificates,
    HalfOpen,
}

impl Attack {
    const fn name(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::OneCertificate => "one-certificate",
            Self::ManyCertificates => "many-certificates",
            Self::HalfOpen => "half-open",
        }
    }

    /// The maximum growth of the hub's memory in KiB.
    const fn growth(self) -> u64 {
        match self {
            Self::ManyCertificates => GROWTH_OF_MANY,
            Self::Unauthenticated | Self::OneCertificate | Self::HalfOpen => GROWTH,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Wss,
    Quic,
}

impl Transport {
    const fn of_hub(self) -> HubTransport {
        match self {
            Self::Wss => HubTransport::Wss,
            Self::Quic => HubTransport::Quic,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Wss => "wss",
            Self::Quic => "quic",
        }
    }
}

/// The attackers' own figures.
#[derive(Debug, serde::Deserialize)]
struct Attacked {
    /// Connections opened.
    opened: u64,
    /// Admissions by the hub.
    admitted: u64,
    /// Connections opened again per second.
    rate: f64,
}

/// One measurement.
struct Measured {
    /// Calls per second.
    rate: f64,
    /// Seconds until a new agent was admitted.
    admission: f64,
    attacked: Attacked,
}

/// The measurements of one attack.
struct Outcome {
    /// Memory of the hub before the attack, and the highest memory since, in KiB.
    memory: (u64, u64),
    /// Under attack and under inert load.
    rounds: Vec<(Measured, Measured)>,
}

/// Measures and prints the table; fails if the hub's memory grew beyond its bound.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::at_or_built(options.programs.as_deref(), false)?;
    raise_open_files((options.connections + options.half_open) as u64)?;
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    for number in 0..options.connections {
        let name = format!("hostile-{number}");
        authority.issue(&name, &[&name], Usage::Client)?;
    }
    print_head(options);
    let mut exceeded = None;
    for &transport in &options.transport {
        for &attack in &options.attack {
            let case = Case {
                options,
                programs: &programs,
                authority: &authority,
                run: run.path(),
                transport,
                attack,
            };
            let outcome = case.measure()?;
            case.print(&outcome);
            let (from, to) = outcome.memory;
            let bound = from + attack.growth();
            if to > bound {
                let part = format!("hub ({}, {})", transport.name(), attack.name());
                exceeded = exceeded.or(Some(PerfError::Growth { part, from, to, bound }));
            }
        }
    }
    exceeded.map_or(Ok(()), Err)
}

/// One attack over one transport.
struct Case<'a> {
    options: &'a Options,
    programs: &'a Programs,
    authority: &'a Authority,
    run: &'a Path,
    transport: Transport,
    attack: Attack,
}

impl Case<'_> {
    fn measure(&self) -> Result<Outcome, PerfError> {
        let folder = self.run.join(format!("{}-{}", self.transport.name(), self.attack.name()));
        std::fs::create_dir_all(&folder).map_err(PerfError::io(format!("create {}", folder.display())))?;
        let mut hub_options = Vec::new();
        if self.attack == Attack::Unauthenticated {
            let tokens = folder.join("tokens");
            std::fs::write(&tokens, TOKENS).map_err(PerfError::io(format!("write {}", tokens.display())))?;
            hub_options = vec!["--tokens".to_owned(), tokens.display().to_string()];
        }
        let kind = Kind::Relay(self.transport.of_hub());
        let chain = Chain::start_with(kind, self.programs, &folder, self.authority, &hub_options)?;
        let inert_url = format!("{}://127.0.0.1:{}", self.transport.name(), free_port()?);
        let mut inert = hub_at(self.programs, self.authority, "inert-hub", &inert_url)?;
        let _inert = Process::start("inert-hub", &folder, inert.args(&hub_options))?;
        let hub = chain.part("hub");
        self.rate(&chain)?;
        let before = hub.map_or(0, Process::resident);
        let mut rounds = Vec::new();
        for round in 0..self.options.rounds.max(1) {
            let attacked = |number: usize| self.measure_while(&chain, &folder, &chain.hub_url, 2 * number);
            let inert = |number: usize| self.measure_while(&chain, &folder, &inert_url, 2 * number + 1);
            rounds.push(if round.is_multiple_of(2) {
                let first = attacked(round)?;
                (first, inert(round)?)
            } else {
                let first = inert(round)?;
                (attacked(round)?, first)
            });
        }
        Ok(Outcome { memory: (before, hub.map_or(0, Process::peak_resident)), rounds })
    }

    /// Measures the chain while a hub is attacked.
    fn measure_while(
        &self,
        chain: &Chain,
        folder: &Path,
        attacked_url: &str,
        number: usize,
    ) -> Result<Measured, PerfError> {
        let mut attackers = Reporter::start(&mut self.attackers(attacked_url))?;
        attackers.next_line()?;
        pause(SETTLE);
        let admission = self.admit(chain, folder, number)?;
        let rate = self.rate(chain)?;
        attackers.close_input();
        let attacked = attackers.figures()?;
        attackers.wait();
        Ok(Measured { rate, admission, attacked })
    }

    fn attackers(&self, url: &str) -> Command {
        let options = self.options;
        let (connections, rate) = match self.attack {
            Attack::HalfOpen => (options.half_open, options.half_open_rate),
            _ => (options.connections, options.rate),
        };
        let address = url.rsplit('/').next().unwrap_or_default();
        let mut command = Command::new("nice");
        command.args(["-n", "19", "taskset", "-c", &options.processor.to_string()]);
        command.arg(self.programs.rust("hostile-links").get_program());
        command.args(["--attack", self.attack.name(), "--transport", self.transport.name()]);
        command.args(["--hub", address, "--connections", &connections.to_string()]);
        command.args(["--rate", &rate.to_string()]);
        command.arg("--tls-ca").arg(self.authority.root()).arg("--certificates").arg(self.run);
        command
    }

    /// Starts another agent, and returns the seconds until its admission.
    fn admit(&self, chain: &Chain, folder: &Path, number: usize) -> Result<f64, PerfError> {
        let (name, port) = (format!("edge-{}", number + 2), free_port()?);
        let mut agent = agent_of(self.programs, self.authority, &name, &chain.hub_url, &chain.driver)?;
        agent.args(["--http-endpoint", &format!("127.0.0.1:{port}")]);
        let started = Instant::now();
        let _agent = Process::start(&name, folder, &mut agent)?;
        while http_get(port, "/readyz").is_none() {
            if started.elapsed() > ADMISSION_TIMEOUT {
                return Ok(f64::INFINITY);
            }
            pause(Duration::from_millis(5));
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn rate(&self, chain: &Chain) -> Result<f64, PerfError> {
        let load = Load { in_flight: self.options.in_flight.max(1), ..Load::new(self.options.seconds) };
        Ok(load.run(self.programs, &chain.endpoint)?.rate)
    }

    #[allow(clippy::print_stdout, reason = "the table is the output of the command")]
    fn print(&self, outcome: &Outcome) {
        let (from, to) = outcome.memory;
        let growth = to.saturating_sub(from);
        let of = |part: &dyn Fn(&(Measured, Measured)) -> f64| {
            outcome.rounds.iter().map(part).collect::<Vec<f64>>()
        };
        let admission = Spread::extremes(of(&|(attacked, _)| attacked.admission));
        let inert_admission = median(of(&|(_, inert)| inert.admission));
        let ratio = Spread::extremes(of(&|(attacked, inert)| attacked.rate / inert.rate));
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.0} / {:.0} | {:.1} | {} | {} | {admission} | {inert_admission:.2} | {} | {:.0} | {ratio} | {} |",
            self.transport.name(),
            self.attack.name(),
            median(of(&|(attacked, _)| attacked.attacked.opened as f64)),
            median(of(&|(attacked, _)| attacked.attacked.admitted as f64)),
            median(of(&|(attacked, _)| attacked.attacked.rate)),
            median(of(&|(_, inert)| inert.attacked.rate)),
            growth as f64 / 1024.0,
            self.attack.growth() >> 10,
            word(growth <= self.attack.growth()),
            word(admission.high <= ADMISSION),
            median(of(&|(_, inert)| inert.rate)),
            word(ratio.median >= RATIO),
        );
    }
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print_head(options: &Options) {
    println!(
        "{} hostile connections, opened again at {} a second; half-open: {} at {} a second; {} callers, {} rounds.",
        options.connections,
        options.rate,
        options.half_open,
        options.half_open_rate,
        options.in_flight.max(1),
        options.rounds.max(1),
    );
    println!("In brackets: minimum and maximum. Again/s: under attack and under inert load.\n");
    println!(
        "| transport | attack | opened | admitted | again/s | growth MiB | at most | | agent s | inert | <= {ADMISSION} | inert calls/s | rate/inert | >= {RATIO} |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

const fn word(passed: bool) -> &'static str {
    if passed { "pass" } else { "FAIL" }
}
