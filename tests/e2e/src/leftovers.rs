//! The leftovers that a run must not leave on the host: mounts, loop devices, processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::wait;

use super::error::E2eError;

/// The directory of control groups, or with cgroup v1 of their hierarchies.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Time for processes of an ended namespace to exit.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the control groups of this name, one in each hierarchy.
pub(crate) fn cgroups(name: &str) -> Vec<PathBuf> {
    let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    hierarchies
        .chain([PathBuf::from(CGROUPS)])
        .map(|place| place.join(name))
        .filter(|group| group.is_dir())
        .collect()
}

/// Removes control groups and all groups below them, unless they contain processes.
pub(crate) fn remove_cgroups(groups: &[PathBuf]) {
    wait::poll(REMOVAL_TIMEOUT, || {
        groups.iter().for_each(|group| remove_group(group));
        groups.iter().all(|group| !group.exists()).then_some(())
    });
}

fn remove_group(group: &Path) {
    let inner = fs::read_dir(group).into_iter().flatten().flatten();
    inner
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .for_each(|entry| remove_group(&entry.path()));
    // A group that is in use stays, and its processes are found by their command lines.
    let _ = fs::remove_dir(group);
}

/// Lists all mounts, loop devices and processes that refer to `scratch`, and removes them if possible.
///
/// # Errors
/// Returns an error if there were any.
pub(crate) fn clear(scratch: &Path) -> Result<(), E2eError> {
    let mut found = Vec::new();
    let place = scratch.to_string_lossy();

    let mut mounts: Vec<String> = fs::read_to_string("/proc/self/mountinfo")
        .map(|table| mount_points(&table, &place))
        .unwrap_or_default();
    // The innermost first.
    mounts.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for mount in mounts {
        attempt(Command::new("umount").arg("--lazy").arg(&mount));
        found.push(format!("mount {mount}"));
    }
    for (device, file) in loop_devices(&place) {
        attempt(Command::new("losetup").arg("--detach").arg(&device));
        found.push(format!("loop device {device} of {file}"));
    }
    // A killed process may take a moment to exit.
    wait::poll(REMOVAL_TIMEOUT, || processes(&place).is_empty().then_some(()));
    found.extend(processes(&place));
    if found.is_empty() { Ok(()) } else { Err(E2eError::Leftovers { found }) }
}

/// Runs a cleanup command. A failure appears as a leftover in any case.
fn attempt(command: &mut Command) {
    let _ = command.output();
}

/// Returns the mount points below `place` in a mount table.
fn mount_points(table: &str, place: &str) -> Vec<String> {
    let below =
        |point: &&str| point.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    table.lines().filter_map(|line| line.split(' ').nth(4)).filter(below).map(ToOwned::to_owned).collect()
}

/// Returns the loop devices with a file below `place`.
pub(crate) fn loop_devices(place: &str) -> Vec<(String, String)> {
    all_loop_devices().into_iter().filter(|(_, file)| file.starts_with(place) && names(file, place)).collect()
}

/// Returns all loop devices of the host with their files.
pub(crate) fn all_loop_devices() -> Vec<(String, String)> {
    let Ok(blocks) = fs::read_dir("/sys/block") else { return Vec::new() };
    blocks
        .flatten()
        .filter_map(|block| {
            let file = fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
            let device = format!("/dev/{}", block.file_name().to_string_lossy());
            Some((device, file.trim().to_owned()))
        })
        .collect()
}

/// Returns the processes with `place` in their command line.
fn processes(place: &str) -> Vec<String> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten()
        .filter_map(|process| {
            let line = fs::read(process.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let id = process.file_name().to_string_lossy().into_owned();
            names(&line, place)
                .then(|| format!("process {id}: {}", line.chars().take(120).collect::<String>()))
        })
        .collect()
}

/// Returns true if a text contains this path or a path below it. A path with a longer last component does not match.
fn names(text: &str, place: &str) -> bool {
    let continues =
        |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    text.match_indices(place).any(|(at, _)| text.get(at + place.len()..).is_some_and(|rest| !continues(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_place_count() {
        let table = "22 1 0:21 / /sys rw - sysfs sysfs rw\n\
                     90 22 7:0 / /t/ecr-1/a/mnt/target rw - ext4 /dev/loop0 rw\n\
                     91 22 7:1 / /t/ecr-12/mnt rw - ext4 /dev/loop1 rw\n";
        assert_eq!(mount_points(table, "/t/ecr-1"), ["/t/ecr-1/a/mnt/target"]);
    }

    #[test]
    fn a_path_does_not_match_a_longer_name() {
        assert!(names("edge-agent --state-dir /t/ecr-1/mock-ws/agent -vv", "/t/ecr-1/mock-ws"));
        assert!(names("drivers --ignored /t/ecr-1", "/t/ecr-1"));
        assert!(names(
            "--driver a=unix:///t/ecr-1/mock-ws-far/d --listen unix:///t/ecr-1/mock-ws",
            "/t/ecr-1/mock-ws"
        ));
        assert!(!names("edge-agent --state-dir /t/ecr-1/mock-wss/agent", "/t/ecr-1/mock-ws"));
        assert!(!names("edge-agent --state-dir /t/ecr-1/mock-ws-far/agent", "/t/ecr-1/mock-ws"));
        assert!(!names("edge-agent", "/t/ecr-1/mock-ws"));
    }

    #[test]
    fn a_process_is_found_by_its_command_line() {
        let own = std::env::current_exe().unwrap();
        assert!(!processes(&own.to_string_lossy()).is_empty());
        assert!(processes("/no/such/place/anywhere").is_empty());
    }
}
