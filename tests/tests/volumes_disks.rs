//! Volumes on separate disks: one disk for two volumes, and disks that are frozen. The tests need root; without it,
//! each test logs that it did not run.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::Method;
use edge_csi_tests::volumes::disk::{Disk, Frozen};
use edge_csi_tests::volumes::interceptor::Interception;
use edge_csi_tests::volumes::local::{LocalNode, key};
use edge_csi_tests::volumes::namespace::{mounts_below, private, table, unmount};
use edge_csi_tests::volumes::storage::Storage;
use edge_csi_tests::wait;
use volume_manager::mounts::MountIdentity;
use volume_manager::node::{Rpc, Waiting};

const PROGRAM: &str = env!("CARGO_BIN_EXE_volume-node");

/// Makes the interceptor stage a volume by a mount of the disk, and publish it by a bind mount of the staging path.
fn serve_from_disk(storage: &Storage, id: &str, disk: &Disk) {
    let device = disk.device().to_owned();
    let mount = move |at: &Path| if table().at(at).is_some() { Ok(()) } else { Disk::mount(&device, at) };
    let taken = |at: &Path| {
        if table().at(at).is_some() {
            unmount(at);
        }
        Ok(())
    };
    let acts = [
        (Method::NodeStageVolume, Interception::instead(move |about| mount(Path::new(&about.path)))),
        (Method::NodeUnstageVolume, Interception::instead(move |about| taken(Path::new(&about.path)))),
        (
            Method::NodePublishVolume,
            Interception::instead(|about| {
                if table().at(Path::new(&about.path)).is_some() {
                    return Ok(());
                }
                fs::create_dir_all(&about.path)?;
                rustix::mount::mount_bind(&about.staging, &about.path).map_err(Into::into)
            }),
        ),
        (
            Method::NodeUnpublishVolume,
            Interception::instead(move |about| {
                taken(Path::new(&about.path))?;
                fs::remove_dir(&about.path).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })
            }),
        ),
    ];
    for (method, act) in acts {
        storage.interceptor.always(method, id, act);
    }
}

fn identity(at: &Path) -> MountIdentity {
    MountIdentity::of(table().at(at).unwrap())
}

/// Two volumes mount one export: neither blocks the unmount of the other (csi-driver-smb#353).
///
/// A network share mounted twice is one file system to the kernel: both mounts have the same source, the same device
/// number and the whole as their root, so only the mount point distinguishes them in the mount table. A disk mounted twice
/// has the same entries, and needs no share, which this kernel may not have.
#[tokio::test]
async fn two_volumes_of_one_export_are_independent() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let disk = Disk::new(&directory, "export");
    let ids = [storage.create("one").await, storage.create("two").await];
    ids.iter().for_each(|id| serve_from_disk(&storage, id, &disk));
    let names = ["a", "b"];
    let targets = names.map(|name| storage.target(name));
    let mut node = LocalNode::open(&storage, PROGRAM).await;
    for (id, name) in ids.iter().zip(names) {
        node.publish(id, name).await.unwrap();
    }
    fs::write(targets[0].join("shared"), "seen by both").unwrap();
    for (round, removed) in [0, 1].into_iter().enumerate() {
        let stays = 1 - removed;
        assert_eq!(
            identity(&targets[removed]),
            identity(&targets[stays]),
            "the table does not distinguish them"
        );
        if round == 1 {
            // A node that has only its records must reach the same result.
            drop(node);
            node = LocalNode::open(&storage, PROGRAM).await;
            node.publish(&ids[stays], names[stays]).await.unwrap();
        }
        node.unpublish(&ids[removed], names[removed]).await.unwrap();
        wait::until("what is given up is forgotten", async || {
            let waits = node.volumes.explain(&key(&ids[removed])).await.unwrap();
            let foreign =
                waits.as_ref().is_some_and(|said| matches!(said.waiting, Waiting::ForeignMount { .. }));
            assert!(!foreign, "it waits for what is another volume's: {waits:?}");
            waits.is_none().then_some(())
        })
        .await;
        assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), round + 1);
        assert!(!targets[removed].exists());
        assert_eq!(fs::read_to_string(targets[stays].join("shared")).unwrap(), "seen by both");
        assert_eq!((mounts_below(&storage.root()).len(), mounts_below(&storage.pods()).len()), (1, 1));
        node.publish(&ids[removed], names[removed]).await.unwrap();
        assert_eq!(fs::read_to_string(targets[removed].join("shared")).unwrap(), "seen by both");
    }
    for (id, name) in ids.iter().zip(names) {
        node.unpublish(id, name).await.unwrap();
    }
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// Two volumes are on a frozen disk, one with its target and one with its data. 50 others are mounted and unmounted
/// meanwhile. After the thaw the two continue without another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_disk_delays_only_its_own_volumes() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let (target_disk, data_disk) = (Disk::new(&directory, "of-target"), Disk::new(&directory, "of-data"));
    let (by_target, by_data) = (storage.create("by-target").await, storage.create("by-data").await);
    serve_from_disk(&storage, &by_data, &data_disk);
    let mut healthy = Vec::new();
    for number in 0..50 {
        let name = format!("healthy-{number}");
        healthy.push((storage.create(&name).await, name));
    }
    // A short deadline, since the test waits for it. Healthy checks take milliseconds.
    let deadline = Duration::from_secs(8);
    let node = LocalNode::open_with_deadline(&storage, PROGRAM, deadline).await;
    node.publish(&by_data, "first").await.unwrap();
    let staging: PathBuf = mounts_below(&storage.root()).pop().unwrap();
    // The node has to create a directory for the target on this disk.
    let pod = storage.pods().join("cold");
    Disk::mount(target_disk.device(), &pod).unwrap();
    // A driver that writes into the volume as it publishes it.
    let write = Interception::instead(|about| {
        fs::write(Path::new(&about.staging).join("published"), "yes")?;
        fs::create_dir_all(&about.path)?;
        rustix::mount::mount_bind(&about.staging, &about.path).map_err(Into::into)
    });
    storage.interceptor.always(Method::NodePublishVolume, &by_data, write);

    let frozen = [Frozen::at(&pod), Frozen::at(&staging)];
    let hung = [node.begin(&by_target, "cold/by-target"), node.begin(&by_data, "by-data")];
    wait::until("the one hangs in the driver, the other before it", async || {
        let explained = node.volumes.explain(&key(&by_data)).await.unwrap()?;
        let calls = matches!(explained.waiting, Waiting::Call { rpc: Rpc::NodePublishVolume, .. });
        (calls && node.mounts.hung_processes() == 1).then_some(())
    })
    .await;
    for round in 1..=2 {
        let publishing: Vec<_> = healthy.iter().map(|(id, name)| node.begin(id, name)).collect();
        for publish in publishing {
            tokio::time::timeout(3 * wait::SOON, publish).await.unwrap().unwrap().unwrap();
        }
        assert!(healthy.iter().all(|(_, name)| storage.is_at(name, name)), "round {round}");
        for (id, name) in &healthy {
            node.unpublish(id, name).await.unwrap();
        }
    }
    assert_eq!(node.mounts.hung_processes(), 1, "however often it was tried meanwhile");
    let targets = ["cold/by-target", "by-data"].map(|name| storage.target(name));
    assert!(targets.iter().all(|target| table().at(target).is_none()));

    drop(frozen);
    storage.mounted_at("cold/by-target", "by-target").await;
    wait::until("the volume that was frozen is there", async || {
        (fs::read_to_string(targets[1].join("published")).ok()? == "yes").then_some(())
    })
    .await;
    wait::until("no process is lost", async || (node.mounts.hung_processes() == 0).then_some(())).await;
    for hung in hung {
        // The request may have failed before the thaw.
        let _ = wait::within("what hung is answered", hung).await.unwrap();
    }
    for (id, name) in [(&by_target, "cold/by-target"), (&by_data, "by-data"), (&by_data, "first")] {
        node.unpublish_at_last(id, name).await;
    }
    node.wait_until_empty().await;
    unmount(&pod);
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}
