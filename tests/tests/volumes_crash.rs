//! Volumes of a real driver with real mounts, over kills, reboots and damage to the store. The tests need root; without
//! it, each test logs that it did not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::fs;
use std::path::Path;

use csi_proto::Method;
use edge_csi_tests::cluster::DRIVER;
use edge_csi_tests::volumes::history::History;
use edge_csi_tests::volumes::namespace::{mounts_below, private};
use edge_csi_tests::volumes::node::{Ended, NodeOptions, NodeProcess};
use edge_csi_tests::volumes::rounds::Rounds;
use edge_csi_tests::volumes::storage::Storage;
use tonic::Code;

const PROGRAM: &str = env!("CARGO_BIN_EXE_volume-node");

fn publish(id: &str, consumer: &str) -> String {
    format!("publish {DRIVER} {id} {consumer} pods/{consumer}/mount rw")
}

fn publish_read_only(id: &str, consumer: &str) -> String {
    format!("publish {DRIVER} {id} {consumer} pods/{consumer}/mount ro")
}

fn unpublish(id: &str, consumer: &str) -> String {
    format!("unpublish {DRIVER} {id} {consumer}")
}

async fn start(options: &NodeOptions) -> NodeProcess {
    NodeProcess::start(options).await.unwrap_or_else(|Ended| panic!("volume-node ended at its start"))
}

/// Publishes and unpublishes a volume until the process is killed. Returns the number of steps, or the order that was
/// interrupted by the kill.
async fn run(options: &NodeOptions, id: &str) -> Result<u64, &'static str> {
    let Ok(mut node) = NodeProcess::start(options).await else { return Err("start") };
    for (order, name) in [(publish(id, "a"), "publish"), (unpublish(id, "a"), "unpublish")] {
        match node.ask(&order).await {
            Ok(answer) => drop(answer.unwrap()),
            Err(Ended) => return Err(name),
        }
    }
    if node.wait_until_empty().await.is_err() {
        return Err("unstage");
    }
    let steps = node.must("steps").await.parse().unwrap();
    node.kill().await;
    Ok(steps)
}

/// A node that is killed before and after every effect, with a reboot and without, completes its orders and leaves
/// nothing.
#[tokio::test]
async fn a_node_killed_at_any_step_recovers() {
    let Some(directory) = private() else { return };
    let mut rounds = Rounds::begin("volumes_crash", "a_node_killed_at_any_step_recovers");
    let mut storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let mut options = storage.node(PROGRAM);
    let steps = run(&options, &id).await.unwrap();
    storage.assert_clean();

    let count = Rounds::how_many(2 * steps, 26);
    let mut killed = 0;
    for round in rounds.sample(count, 2 * steps) {
        let (step, reboot) = (round.div_ceil(2), round % 2 == 0);
        let given_up = rounds.below(3) == 0;
        storage.interceptor.history(History::another_caller);
        options.kill_at = Some(step);
        let Err(at) = run(&options, &id).await else { continue };
        options.kill_at = None;
        killed += 1;
        let what = format!("killed at step {step} in {at}, reboot {reboot}, given up {given_up}");
        eprintln!("{what}");
        storage.interceptor.history(History::another_caller);
        if reboot {
            options.boot += 1;
            storage.reboot().await;
        }
        let mut node = start(&options).await;
        if at == "publish" && !given_up {
            node.at_last(&publish(&id, "a")).await;
            assert!(storage.is_at("a", "volume"), "{what}: {:?}", mounts_below(&directory));
        }
        node.at_last(&unpublish(&id, "a")).await;
        node.wait_until_empty().await.unwrap();
        node.kill().await;
        storage.assert_clean();
        storage.assert_canary(&id, "volume");
        storage.interceptor.assert_lawful();
        let last = storage.interceptor.history(|history| {
            let attaching = [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume];
            history.calls().iter().rfind(|call| attaching.contains(&call.method)).cloned().unwrap()
        });
        assert_eq!(
            (last.method, last.code),
            (Method::ControllerUnpublishVolume, Some(Code::Ok)),
            "{what}: it is not attached any more"
        );
    }
    assert!(killed * 4 >= count * 3, "{killed} of {count} rounds were killed in");
}

/// With any damage to the store's file the node starts, readable records are kept, and every mount stays.
#[tokio::test]
async fn a_damaged_store_costs_no_mount_and_no_readable_volume() {
    let Some(directory) = private() else { return };
    let mut rounds = Rounds::begin("volumes_crash", "a_damaged_store_costs_no_mount_and_no_readable_volume");
    let storage = Storage::start(&directory).await;
    let options = storage.node(PROGRAM);
    let store = directory.join("volumes.redb");
    let names = ["one", "two", "three"];
    let mut node = start(&options).await;
    let mut ids = Vec::new();
    let mut earlier = Vec::new();
    for name in names {
        let id = storage.create(name).await;
        node.must(&publish(&id, name)).await;
        ids.push(id);
        if name == "two" {
            earlier = fs::read(&store).unwrap();
        }
    }
    node.kill().await;
    let whole = fs::read(&store).unwrap();
    let mounts = mounts_below(&directory);
    assert_eq!(mounts.len(), 6, "{mounts:?}");

    let len = whole.len() as u64;
    let at = |rounds: &mut Rounds, bound: u64| usize::try_from(rounds.below(bound)).unwrap();
    let mut damages = vec![
        ("as it was".to_owned(), whole.clone()),
        ("zero bytes long".to_owned(), Vec::new()),
        ("as it was a while ago".to_owned(), earlier),
        ("with its tail doubled".to_owned(), [&whole[..], &whole[whole.len() - 4096..]].concat()),
    ];
    for _ in 0..Rounds::how_many(1000, 8) {
        let end = at(&mut rounds, len);
        damages.push((format!("cut at {end}"), whole[..end].to_vec()));
        let flips = 1 + at(&mut rounds, 3);
        let mut flipped = whole.clone();
        let mut places = Vec::new();
        for _ in 0..flips {
            // Only at bytes that are not zero, since most of a new file is zeros.
            let place = (0..64).map(|_| at(&mut rounds, len)).find(|place| whole[*place] != 0);
            let place = place.unwrap_or(0);
            flipped[place] ^= 1 << at(&mut rounds, 8);
            places.push(place);
        }
        damages.push((format!("with bits flipped at {places:?}"), flipped));
    }
    let quiet = |interceptor: &edge_csi_tests::volumes::interceptor::Interceptor| {
        let down =
            [Method::NodeUnpublishVolume, Method::NodeUnstageVolume, Method::ControllerUnpublishVolume];
        down.map(|method| interceptor.count(method)) == [0; 3]
    };
    for (what, bytes) in damages {
        fs::write(&store, bytes).unwrap();
        storage.interceptor.history(History::another_caller);
        let mut node = start(&options).await;
        let list = node.must("list").await;
        let quarantined: usize = node.must("quarantined").await.parse().unwrap();
        let started_over = damaged_files(&directory);
        let known = ids.iter().filter(|id| list.contains(id.as_str())).count();
        eprintln!("{what}: {known} known, {quarantined} quarantined, {} kept", started_over.len());
        match what.as_str() {
            "as it was" | "with its tail doubled" => assert_eq!(known, 3, "{what}"),
            "as it was a while ago" => assert_eq!(known, 2, "{what}"),
            _ => assert!(known + quarantined >= 3 || !started_over.is_empty(), "{what}: {list}"),
        }
        for id in ids.iter().filter(|id| list.contains(id.as_str())) {
            node.at_last(&publish(id, names[ids.iter().position(|known| known == id).unwrap()])).await;
        }
        assert_eq!(mounts_below(&directory), mounts, "{what}");
        assert!(quiet(&storage.interceptor), "{what}: nothing is taken down");
        node.kill().await;
        for kept in started_over {
            fs::remove_file(kept).unwrap();
        }
        for (id, name) in ids.iter().zip(names) {
            storage.assert_canary(id, name);
            assert!(storage.is_at(name, name), "{what}");
        }
    }

    // The node has no records, and all volumes are published again: their mounts are adopted, and unpublished in order.
    fs::remove_file(&store).unwrap();
    let mut node = start(&options).await;
    for (id, name) in ids.iter().zip(names) {
        node.must(&publish(id, name)).await;
    }
    assert_eq!(mounts_below(&directory), mounts);
    for (id, name) in ids.iter().zip(names) {
        node.must(&unpublish(id, name)).await;
    }
    node.wait_until_empty().await.unwrap();
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// Returns the files that were set aside when the store was recreated.
fn damaged_files(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains(".damaged-")).collect()
}

/// The consumers survive a restart of the node and of the driver. The unpublish of the last consumer unstages once.
#[tokio::test]
async fn two_consumers_over_a_restart_cost_one_unstage() {
    let Some(directory) = private() else { return };
    let mut storage = Storage::start(&directory).await;
    let id = storage.create("shared").await;
    let options = storage.node(PROGRAM);
    for (round, (redeploy, read_only)) in
        [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        let what = format!("driver redeployed: {redeploy}, second one read-only: {read_only}");
        let unstages = |storage: &Storage| storage.interceptor.count(Method::NodeUnstageVolume);
        let stages = |storage: &Storage| storage.interceptor.count(Method::NodeStageVolume);
        let mut node = start(&options).await;
        node.must(&publish(&id, "a")).await;
        node.must(&if read_only { publish_read_only(&id, "b") } else { publish(&id, "b") }).await;
        node.kill().await;
        storage.interceptor.history(History::another_caller);
        if redeploy {
            storage.kill_driver();
            storage.start_driver().await;
        }
        let mut node = start(&options).await;
        node.at_last(&unpublish(&id, "a")).await;
        assert!(storage.is_at("b", "shared"), "{what}");
        assert!(!storage.target("a").exists(), "{what}");
        assert_eq!((stages(&storage), unstages(&storage)), (round + 1, round), "{what}");
        assert_eq!(fs::write(storage.target("b").join("new"), "x").is_err(), read_only, "{what}");
        node.at_last(&unpublish(&id, "b")).await;
        node.wait_until_empty().await.unwrap();
        assert_eq!((stages(&storage), unstages(&storage)), (round + 1, round + 1), "{what}");
        node.kill().await;
        storage.interceptor.history(History::another_caller);
        storage.assert_clean();
        storage.assert_canary(&id, "shared");
        storage.interceptor.assert_lawful();
    }
}

/// After a boot every published volume is mounted again, and released ones are removed.
#[tokio::test]
async fn remounts_all_volumes_after_a_boot() {
    let Some(directory) = private() else { return };
    let mut storage = Storage::start(&directory).await;
    let mut options = storage.node(PROGRAM);
    let mut node = start(&options).await;
    let mut ids = Vec::new();
    for number in 0..8 {
        let name = format!("volume-{number}");
        let id = storage.create(&name).await;
        node.must(&publish(&id, &name)).await;
        ids.push((id, name));
    }
    node.must(&publish(&ids[0].0, "another")).await;
    // The driver is down, so that a volume that is released now is still managed at the power cut.
    let (given_up, kept) = ids.split_last().unwrap();
    storage.kill_driver();
    node.must(&format!("release {DRIVER} {} {}", given_up.0, given_up.1)).await;
    node.kill().await;
    for boot in 2..=3 {
        storage.reboot().await;
        options.boot = boot;
        let mut node = start(&options).await;
        for (_, name) in kept {
            storage.mounted_at(name, name).await;
        }
        storage.mounted_at("another", &kept[0].1).await;
        edge_csi_tests::wait::until("the released volume is removed", async || {
            (mounts_below(&directory).len() == 2 * kept.len() + 1).then_some(())
        })
        .await;
        assert!(!node.must("list").await.contains(&given_up.0) || boot == 2);
        node.kill().await;
        storage.interceptor.assert_lawful();
    }
    let mut node = start(&options).await;
    node.at_last(&unpublish(&kept[0].0, "another")).await;
    for (id, name) in kept {
        node.at_last(&unpublish(id, name)).await;
        storage.assert_canary(id, name);
    }
    node.wait_until_empty().await.unwrap();
    storage.assert_clean();
}
