//! Prints the costs of volume-manager next to their bounds and to the costs of kubelet and Mesos.
//!
//! Exits with a failure if a count or the memory is out of bounds. Times depend on the machine and are only printed; ratios
//! compare alternating runs in one process.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use edge_csi_benches::volumes::{
    Fixture, Measured, PublishedAll, VolumeClient, mount_all, peak_memory, publish_after_boot, publish_bare,
    record_published, recover, resident_memory, salvage, unmount_all,
};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use volume_manager::mounts::linux::{ProbeCommand, probe};

#[derive(Debug, Clone, Parser)]
#[command(about = "Measure volume-manager against its bounds, kubelet and Mesos")]
struct Options {
    /// Volumes that are mounted one after the other, and a hundred at a time, in each round.
    #[arg(long, default_value_t = 200)]
    volumes: usize,
    /// Rounds; the printed times are medians over them.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records to recover.
    #[arg(long, default_value_t = 10_000)]
    records: usize,
    /// Volumes that are published at the same time while memory is measured, and after a boot.
    #[arg(long, default_value_t = 1000)]
    parallel: usize,
    /// The store with the volumes that are published after a boot.
    #[arg(long, hide = true)]
    store: Option<PathBuf>,
    /// Run one part in this process, and print its figures as JSON.
    #[arg(long, value_enum, hide = true)]
    part: Option<Part>,
}

/// The parts that need a separate process: their memory is measured, or their mounts end with the process.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    Recovery,
    Salvage,
    Memory,
    Boot,
    Bare,
    Linux,
}

const IN_FLIGHT: usize = 100;
const DAMAGED: usize = 100;
const MIB: u64 = 1 << 20;
const NO_ROUNDS: &str = "--rounds is 0; expected at least 1";
const MAX_MEMORY: u64 = 64 * MIB;

/// How long each call to the driver takes at least, in the comparison after a boot.
const WORK: [Duration; 2] = [Duration::ZERO, Duration::from_millis(10)];

fn main() -> ExitCode {
    let probe = match probe::serve_if_asked() {
        Ok(probe) => probe,
        Err(code) => return code,
    };
    let options = Options::parse();
    match run(&options, probe) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("volumes: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, probe: ProbeCommand) -> Measured<bool> {
    if let Some(Part::Linux) = options.part {
        enter_new_mount_namespace()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match options.part {
            None => measure_all(options).await,
            Some(part) => {
                let figures = match part {
                    Part::Recovery => serde_json::to_string(&recover(options.records, DAMAGED).await?),
                    Part::Salvage => serde_json::to_string(&salvage(options.records, DAMAGED).await?),
                    Part::Memory => serde_json::to_string(&measure_memory(options.parallel).await?),
                    Part::Boot => {
                        let store = options.store.as_deref().ok_or("--part boot without --store")?;
                        let published = publish_after_boot(store, options.parallel, Duration::ZERO).await?;
                        serde_json::to_string(&published)
                    }
                    Part::Bare => {
                        serde_json::to_string(&publish_bare(options.parallel, Duration::ZERO).await?)
                    }
                    Part::Linux => serde_json::to_string(&measure_linux(options, probe).await?),
                };
                println!("{}", figures?);
                Ok(true)
            }
        }
    })
}

/// Moves this process to a new mount namespace, whose mounts end with the process.
fn enter_new_mount_namespace() -> Measured<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    Ok(())
}

/// Runs a part in a separate process, and parses its figures.
fn run_part<T: for<'de> Deserialize<'de>>(name: &str, options: &Options) -> Measured<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(part_arguments(name, options));
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the part {name} failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn part_arguments(name: &str, options: &Options) -> Vec<String> {
    let numbers = [
        ("--volumes", options.volumes),
        ("--rounds", options.rounds),
        ("--records", options.records),
        ("--parallel", options.parallel),
    ];
    let numbers = numbers.into_iter().flat_map(|(flag, number)| [flag.to_owned(), number.to_string()]);
    let store = options.store.iter().flat_map(|store| ["--store".to_owned(), store.display().to_string()]);
    ["--part".to_owned(), name.to_owned()].into_iter().chain(numbers).chain(store).collect()
}

/// The printed table.
struct Report {
    /// False once a figure is out of bounds.
    within_bounds: bool,
}

impl Report {
    fn new() -> Self {
        println!("{:<62} {:>16} {:>16}", "", "target", "found");
        Self { within_bounds: true }
    }

    fn line(name: &str, target: &str, found: impl AsRef<str>) {
        println!("{name:<62} {target:>16} {:>16}", found.as_ref());
    }

    fn bound(&mut self, name: &str, target: &str, found: impl AsRef<str>, within: bool) {
        self.within_bounds &= within;
        let found = if within { found.as_ref().to_owned() } else { format!("{} FAILED", found.as_ref()) };
        Self::line(name, target, found);
    }
}

async fn measure_all(options: &Options) -> Measured<bool> {
    let mut report = Report::new();
    compare_with_kubelet(&mut report, options).await?;
    compare_with_mesos(options).await?;
    let recovered: edge_csi_benches::volumes::Recovered = run_part("recovery", options)?;
    let good = options.records - DAMAGED.min(options.records);
    let name = format!("{} records, {DAMAGED} damaged: quarantined", options.records);
    let quarantined = recovered.quarantined;
    report.bound(&name, &DAMAGED.to_string(), quarantined.to_string(), quarantined == DAMAGED);
    let found = recovered.recovered.to_string();
    report.bound("  recovered", &good.to_string(), found, recovered.recovered == good);
    let found = recovered.changed.to_string();
    report.bound("  changed by the desired set", "0", found, recovered.changed == 0);
    let found = recovered.calls.to_string();
    report.bound("  calls to the driver, all for its identity", "< 10", found, recovered.calls < 10);
    Report::line("  opened (file and records read)", "", milliseconds(recovered.opened));
    Report::line("  and compared with the mount table", "", milliseconds(recovered.checked));
    Report::line("  and reconciled with the desired set", "< 500 ms", milliseconds(recovered.reconciled));
    Report::line("  file", "", mebibytes(recovered.file_bytes));
    let growth = recovered.peak_bytes.saturating_sub(recovered.before_bytes);
    Report::line("  peak memory, above the initial memory", "", mebibytes(growth));
    let salvaged: edge_csi_benches::volumes::Salvage = run_part("salvage", options)?;
    let name = format!("{} records, file damaged in {DAMAGED} places: salvaged", options.records);
    Report::line(&name, "", salvaged.salvaged.to_string());
    Report::line("  duration", "", milliseconds(salvaged.elapsed));
    let memory: Memory = run_part("memory", options)?;
    let name = format!("{} volumes published at once: peak memory", options.parallel);
    let within = memory.peak_bytes < MAX_MEMORY;
    report.bound(&name, &format!("< {}", mebibytes(MAX_MEMORY)), mebibytes(memory.peak_bytes), within);
    Report::line("  initial memory", "", mebibytes(memory.before_bytes));
    Report::line("  duration", "", milliseconds(memory.elapsed));
    compare_after_boot(&mut report, options).await?;
    if geteuid().is_root() {
        let rounds: Vec<LinuxRound> = run_part("linux", options)?;
        for LinuxRound { in_flight, manager, kubelet } in rounds {
            let name = format!("real mounts, {in_flight} at a time: mounts/s");
            Report::line(&name, "", rate(options.volumes, manager));
            Report::line("  kubelet, without path checks", "", rate(options.volumes, kubelet));
        }
    } else {
        println!("real mounts: not measured, since mounting requires root");
    }
    Ok(report.within_bounds)
}

/// Compares volume-manager with kubelet, which does not attach volumes.
async fn compare_with_kubelet(report: &mut Report, options: &Options) -> Measured<()> {
    let fixture = Fixture::start(false).await?;
    let (manager, kubelet) = (fixture.manager().await?, fixture.kubelet()?);
    let count = options.volumes;
    let mut rates = Vec::new();
    for in_flight in [1, IN_FLIGHT] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            ours.push(Round::run(&fixture, &manager, count, in_flight).await?);
            theirs.push(Round::run(&fixture, &kubelet, count, in_flight).await?);
        }
        if in_flight == 1 {
            let (ours, theirs) = (ours.first().ok_or(NO_ROUNDS)?, theirs.first().ok_or(NO_ROUNDS)?);
            let found = average(ours.calls, count);
            report.bound("RPCs per mount", "2.00", &found, found == "2.00");
            let found = average(ours.connections, count);
            report.bound("  connections per mount", "0.00", &found, found == "0.00");
            Report::line("  kubelet: RPCs per mount", "8.00", average(theirs.calls, count));
            Report::line("  kubelet: connections per mount", "8.00", average(theirs.connections, count));
        }
        rates.push((in_flight, median_round(&ours), median_round(&theirs)));
    }
    for (in_flight, ours, theirs) in rates {
        Report::line(&format!("mounts/s, {in_flight} at a time"), "", rate(count, ours));
        Report::line("  kubelet, without durable state", "", rate(count, theirs));
        Report::line("  ratio", "", ratio(theirs, ours));
    }
    Ok(())
}

/// Compares volume-manager with Mesos, including the attachment.
async fn compare_with_mesos(options: &Options) -> Measured<()> {
    let fixture = Fixture::start(true).await?;
    let (manager, mesos) = (fixture.manager().await?, fixture.mesos().await?);
    let count = options.volumes;
    for in_flight in [1, IN_FLIGHT] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (commits, checkpoints) = (manager.commits(), mesos.checkpoints());
        for _ in 0..options.rounds {
            ours.push(cycle(&manager, count, in_flight).await?);
            theirs.push(cycle(&mesos, count, in_flight).await?);
        }
        let cycles = count * options.rounds;
        let commits = average(manager.commits() - commits, cycles);
        Report::line(&format!("commits per cycle with attach, {in_flight} at a time"), "", commits);
        Report::line("  Mesos: checkpoints", "12.00", average(mesos.checkpoints() - checkpoints, cycles));
        let (ours, theirs) = (median(ours), median(theirs));
        Report::line(&format!("cycles/s, {in_flight} at a time"), "", rate(count, ours));
        Report::line("  Mesos", "", rate(count, theirs));
        Report::line("  ratio", "", ratio(theirs, ours));
    }
    Ok(())
}

/// Compares volume-manager after a boot with a bare loop of the same calls: the duration in alternating rounds, and the memory in
/// a process for each.
async fn compare_after_boot(report: &mut Report, options: &Options) -> Measured<()> {
    let (directory, count) = (tempfile::tempdir()?, options.parallel);
    let store = directory.path().join("volumes.redb");
    record_published(&store, count).await?;
    for work in WORK {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            ours.push(publish_after_boot(&store, count, work).await?);
            bare.push(publish_bare(count, work).await?);
        }
        let name = format!("{count} volumes after a boot, a call takes {} ms: duration", work.as_millis());
        let elapsed = |rounds: &[PublishedAll]| median(rounds.iter().map(|round| round.elapsed).collect());
        Report::line(&name, "", milliseconds(elapsed(&ours)));
        Report::line("  bare loop of the same calls", "", milliseconds(elapsed(&bare)));
        Report::line("  ratio", "", ratio(elapsed(&ours), elapsed(&bare)));
        let needed = 2 * u64::try_from(count)?;
        let calls: Vec<u64> = ours.iter().map(|round| round.calls).collect();
        let (least, most) = (calls.iter().min().ok_or(NO_ROUNDS)?, calls.iter().max().ok_or(NO_ROUNDS)?);
        let within = *least >= needed && *most < needed + 10;
        report.bound("  calls to the driver", &format!("< {}", needed + 10), most.to_string(), within);
    }
    let options = Options { store: Some(store), ..options.clone() };
    let ours: PublishedAll = run_part("boot", &options)?;
    let bare: PublishedAll = run_part("bare", &options)?;
    let (name, peak) = (format!("{count} volumes after a boot: peak memory"), ours.peak_bytes);
    report.bound(&name, &format!("< {}", mebibytes(MAX_MEMORY)), mebibytes(peak), peak < MAX_MEMORY);
    Report::line("  initial memory", "", mebibytes(ours.before_bytes));
    Report::line("  bare loop: peak memory", "", mebibytes(bare.peak_bytes));
    Report::line("  bare loop: initial memory", "", mebibytes(bare.before_bytes));
    Ok(())
}

async fn cycle(client: &impl VolumeClient, count: usize, in_flight: usize) -> Measured<Duration> {
    Ok(mount_all(client, count, in_flight).await? + unmount_all(client, count, in_flight).await?)
}

/// The duration of one round of mounts, and the calls and connections that the driver counted.
struct Round {
    elapsed: Duration,
    calls: u64,
    connections: u64,
}

impl Round {
    async fn run(
        fixture: &Fixture,
        client: &impl VolumeClient,
        count: usize,
        in_flight: usize,
    ) -> Measured<Self> {
        let (calls, connections) = (fixture.driver().calls(), fixture.driver().connections());
        let elapsed = mount_all(client, count, in_flight).await?;
        let (calls, connections) =
            (fixture.driver().calls() - calls, fixture.driver().connections() - connections);
        unmount_all(client, count, in_flight).await?;
        Ok(Self { elapsed, calls, connections })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Memory {
    before_bytes: u64,
    peak_bytes: u64,
    elapsed: Duration,
}

async fn measure_memory(count: usize) -> Measured<Memory> {
    let fixture = Fixture::start(false).await?;
    let manager = fixture.manager().await?;
    let before_bytes = resident_memory()?;
    let elapsed = mount_all(&manager, count, count).await?;
    Ok(Memory { before_bytes, peak_bytes: peak_memory()?, elapsed })
}

#[derive(Debug, Serialize, Deserialize)]
struct LinuxRound {
    in_flight: usize,
    manager: Duration,
    kubelet: Duration,
}

async fn measure_linux(options: &Options, probe: ProbeCommand) -> Measured<Vec<LinuxRound>> {
    let fixture = Fixture::start_on_linux(probe, false).await?;
    let (manager, kubelet) = (fixture.manager().await?, fixture.kubelet()?);
    let mut found = Vec::new();
    for in_flight in [1, IN_FLIGHT] {
        found.push(LinuxRound {
            in_flight,
            manager: Round::run(&fixture, &manager, options.volumes, in_flight).await?.elapsed,
            kubelet: Round::run(&fixture, &kubelet, options.volumes, in_flight).await?.elapsed,
        });
    }
    Ok(found)
}

fn median_round(rounds: &[Round]) -> Duration {
    median(rounds.iter().map(|round| round.elapsed).collect())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn average(all: u64, count: usize) -> String {
    format!("{:.2}", all as f64 / count as f64)
}

fn rate(count: usize, elapsed: Duration) -> String {
    format!("{:.0}", count as f64 / elapsed.as_secs_f64())
}

fn ratio(theirs: Duration, ours: Duration) -> String {
    format!("{:.2}", theirs.as_secs_f64() / ours.as_secs_f64())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_process_accepts_its_arguments() {
        let options = Options::parse_from(["volumes"]);
        for part in Part::value_variants() {
            let name = part.to_possible_value().unwrap();
            let arguments = part_arguments(name.get_name(), &options);
            Options::try_parse_from(["volumes".to_owned()].into_iter().chain(arguments)).unwrap();
        }
    }
}
