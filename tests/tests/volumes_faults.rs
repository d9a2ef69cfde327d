//! Volumes with real mounts, under false answers of drivers, outside interference, and storage that dies or hangs. The
//! tests need root; without it, each test logs that it did not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

#[allow(dead_code, reason = "one manner of the server is for other tests")]
#[path = "../../volume-manager/tests/mounts_linux/fuse.rs"]
mod fuse;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use csi_proto::Method;
use edge_csi_tests::volumes::interceptor::Interception;
use edge_csi_tests::volumes::local::{LocalNode, consumer, key};
use edge_csi_tests::volumes::namespace::{bind, mount_another, mounts_below, private, table, unmount};
use edge_csi_tests::volumes::storage::Storage;
use edge_csi_tests::wait;
use fuse::{FuseServer, Manner};
use rustix::mount::MountPropagationFlags;
use tonic::Code;
use volume_manager::ConsumerId;
use volume_manager::node::{
    CallFailure, ChangeKind, Changes, Failure, PublishError, Rpc, Waiting, WatchEvent,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_volume-node");

#[test]
#[ignore = "a process that the other tests start"]
fn fuse_server() {
    fuse::serve_if_asked();
}

fn contradicted(outcome: Result<(), PublishError>) -> CallFailure {
    match outcome {
        Err(PublishError::Failed { error, .. }) if matches!(error.class, Failure::Contradicted(_)) => error,
        other => panic!("{other:?}"),
    }
}

/// Waits until a mount was lost, and then until it is restored. Returns its owner.
async fn healed(changes: &mut Changes) -> Option<ConsumerId> {
    let healing = async {
        let mut lost = None;
        loop {
            match changes.next().await.unwrap() {
                WatchEvent::Change(change) => match change.kind {
                    ChangeKind::MountLost(owner) => lost = Some(owner),
                    ChangeKind::Published(_) if lost.is_some() => return lost.unwrap(),
                    _ => {}
                },
                other => panic!("{other:?}"),
            }
        }
    };
    wait::within("a lost mount is healed", healing).await
}

fn staging_of(storage: &Storage) -> PathBuf {
    mounts_below(&storage.root()).pop().unwrap()
}

/// A missing mount, two mounts and another mount after an OK are each reported and repaired.
#[tokio::test]
async fn an_ok_of_the_driver_is_verified() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    let twice = || {
        Interception::after(|about| {
            rustix::mount::mount_bind(&about.staging, &about.path).map_err(Into::into)
        })
    };
    let another = || Interception::instead(|about| mount_another(Path::new(&about.path)));
    for (act, said) in [
        (Interception::FalseOk, "the path is missing"),
        (twice(), "2 mounts are stacked"),
        (another(), "found device"),
    ] {
        storage.interceptor.next(Method::NodePublishVolume, [act.clone()]);
        if matches!(act, Interception::Instead(_)) {
            // The interceptor mounted it, so the interceptor has to unmount it.
            let taken = Interception::instead(|about| {
                unmount(Path::new(&about.path));
                fs::remove_dir(&about.path)
            });
            storage.interceptor.next(Method::NodeUnpublishVolume, [taken]);
        }
        let error = contradicted(node.publish(&id, "a").await);
        assert!(error.message.contains(said), "{error}");
        node.publish_at_last(&id, "a").await;
        assert!(storage.is_at("a", "volume"));
        assert_eq!(mounts_below(&directory).len(), 2, "{:?}", mounts_below(&directory));
        node.unpublish_at_last(&id, "a").await;
        node.wait_until_empty().await;
        storage.assert_clean();
        storage.assert_canary(&id, "volume");
    }
    storage.interceptor.assert_lawful();
}

/// A call that succeeded and returned an error is repeated, and leaves no second mount.
#[tokio::test]
async fn an_error_after_success_leaves_one_mount() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    let errors = || [Code::Internal, Code::DeadlineExceeded, Code::Unavailable].map(Interception::FailAfter);
    for method in [Method::ControllerPublishVolume, Method::NodeStageVolume, Method::NodePublishVolume] {
        storage.interceptor.next(method, errors());
    }
    node.publish_at_last(&id, "a").await;
    assert!(storage.is_at("a", "volume"));
    assert_eq!(mounts_below(&directory).len(), 2);
    for method in [Method::NodeUnpublishVolume, Method::NodeUnstageVolume, Method::ControllerUnpublishVolume]
    {
        storage.interceptor.next(method, errors());
    }
    node.unpublish_at_last(&id, "a").await;
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// If the volume is still mounted after an OK, none of its data is deleted, and its staging is not removed.
#[tokio::test]
async fn a_false_ok_of_an_unmount_loses_no_data() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    node.publish(&id, "a").await.unwrap();
    storage.interceptor.next(Method::NodeUnpublishVolume, [Interception::FalseOk]);
    storage.interceptor.next(Method::NodeUnstageVolume, [Interception::FalseOk]);
    // The node repeats the call by itself, without a second request.
    node.unpublish_at_last(&id, "a").await;
    node.wait_until_empty().await;
    assert_eq!(storage.interceptor.count(Method::NodeUnpublishVolume), 2);
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 2);
    storage.assert_clean();
    storage.assert_canary(&id, "volume");

    // A driver that never unmounts is called repeatedly, and the data stays.
    node.publish(&id, "a").await.unwrap();
    let canary = storage.target("a").join("deep/canary");
    storage.interceptor.always(Method::NodeUnpublishVolume, &id, Interception::FalseOk);
    let before = storage.interceptor.count(Method::NodeUnpublishVolume);
    let unpublishing = tokio::spawn({
        let volumes = node.volumes.clone();
        let key = key(&id);
        async move { volumes.unpublish(&key, &consumer("a")).await }
    });
    wait::until("it is asked ten times", async || {
        (storage.interceptor.count(Method::NodeUnpublishVolume) >= before + 10).then_some(())
    })
    .await;
    assert_eq!(fs::read_to_string(&canary).unwrap(), "volume");
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 2, "nothing under it is unstaged");
    wait::until("it is reported", async || {
        node.explain(&id)
            .await
            .contains("NodeUnpublishVolume: OK, but the path is still mounted")
            .then_some(())
    })
    .await;
    unpublishing.abort();
    storage.interceptor.assert_lawful();
}

/// Data at the path of a target is left, and reported.
#[tokio::test]
async fn data_left_at_a_target_is_never_deleted() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    node.publish(&id, "a").await.unwrap();
    let left = Interception::after(|about| {
        fs::create_dir_all(Path::new(&about.path).join("deep"))?;
        fs::write(Path::new(&about.path).join("deep/precious"), "precious")
    });
    storage.interceptor.next(Method::NodeUnpublishVolume, [left.clone()]);
    storage.interceptor.next(Method::NodeUnstageVolume, [left]);
    let staging = staging_of(&storage);
    node.unpublish_at_last(&id, "a").await;
    node.wait_until_empty().await;
    for place in [storage.target("a"), staging] {
        assert_eq!(fs::read_to_string(place.join("deep/precious")).unwrap(), "precious");
    }
    assert!(mounts_below(&storage.pods()).is_empty() && mounts_below(&storage.root()).is_empty());
    storage.assert_canary(&id, "volume");
    storage.interceptor.assert_lawful();
}

/// The staging path of a published volume is unmounted, or unmounted and removed. The node notices it, and stages
/// again.
#[tokio::test]
async fn a_lost_mount_is_restored() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    for consumer in ["a", "b"] {
        node.publish(&id, consumer).await.unwrap();
    }
    let staging = staging_of(&storage);
    for what in ["staging", "staging and its directory", "a target"] {
        let mut changes = node.volumes.watch();
        match what {
            "a target" => unmount(&storage.target("a")),
            "staging" => unmount(&staging),
            _ => {
                unmount(&staging);
                fs::remove_dir(&staging).unwrap();
            }
        }
        let owner = healed(&mut changes).await;
        assert_eq!(owner, (what == "a target").then(|| consumer("a")), "{what}");
        for consumer in ["a", "b"] {
            storage.mounted_at(consumer, "volume").await;
        }
        assert_eq!(mounts_below(&directory).len(), 3, "{what}: {:?}", mounts_below(&directory));
        storage.assert_canary(&id, "volume");
    }
    for consumer in ["a", "b"] {
        node.unpublish_at_last(&id, consumer).await;
    }
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// A volume with a foreign bind mount is not unstaged, and the mount is reported. After its removal the volume is
/// unstaged.
#[tokio::test]
async fn a_foreign_bind_keeps_the_staging_and_is_named() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    node.publish(&id, "a").await.unwrap();
    let foreign = directory.join("foreign");
    bind(&staging_of(&storage), &foreign);
    node.unpublish(&id, "a").await.unwrap();
    wait::until("the bind is named", async || {
        let explained = node.volumes.explain(&key(&id)).await.unwrap()?;
        let named = explained.to_string().contains(foreign.to_str().unwrap());
        (matches!(explained.waiting, Waiting::ForeignMount { .. }) && named).then_some(())
    })
    .await;
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 0);
    // The volume may be published and unpublished meanwhile.
    node.publish(&id, "b").await.unwrap();
    assert!(storage.is_at("b", "volume"));
    node.unpublish(&id, "b").await.unwrap();
    assert_eq!(fs::read_to_string(foreign.join("deep/canary")).unwrap(), "volume");
    unmount(&foreign);
    node.wait_until_empty().await;
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 1);
    storage.assert_clean();
    storage.assert_canary(&id, "volume");
    storage.interceptor.assert_lawful();
}

/// A file at the target is kept, and the driver is not called to mount over it.
#[tokio::test]
async fn a_file_at_the_target_is_kept_and_not_mounted_over() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    fs::create_dir_all(storage.target("a").parent().unwrap()).unwrap();
    fs::write(storage.target("a"), "precious").unwrap();
    match node.publish(&id, "a").await {
        Err(PublishError::Failed { error, .. }) if error.class == Failure::NotSent => {
            assert!(error.message.contains("a file of 8 bytes"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(storage.interceptor.count(Method::NodePublishVolume), 0);
    assert_eq!(fs::read_to_string(storage.target("a")).unwrap(), "precious");
    fs::remove_file(storage.target("a")).unwrap();
    node.publish_at_last(&id, "a").await;
    assert!(storage.is_at("a", "volume"));
    node.unpublish_at_last(&id, "a").await;
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// The root is a bind mount of another directory, so that every mount appears twice. The second one is not a foreign
/// use.
#[tokio::test]
async fn a_root_that_is_a_bind_mount_is_no_foreign_use() {
    let Some(directory) = private() else { return };
    bind(&directory, &directory);
    rustix::mount::mount_change(&directory, MountPropagationFlags::SHARED).unwrap();
    let real = directory.join("real");
    fs::create_dir(&real).unwrap();
    bind(&real, &directory.join("v"));
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    for round in 1..=2 {
        node.publish(&id, "a").await.unwrap();
        assert_eq!(
            (mounts_below(&storage.root()).len(), mounts_below(&real).len()),
            (1, 1),
            "it is seen twice"
        );
        assert!(storage.is_at("a", "volume"));
        node.unpublish(&id, "a").await.unwrap();
        node.wait_until_empty().await;
        assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), round);
        storage.assert_clean();
        assert!(mounts_below(&real).is_empty());
    }
    storage.interceptor.assert_lawful();
}

type Servers = Arc<Mutex<HashMap<String, FuseServer>>>;

/// Makes the interceptor publish a volume by a separate FUSE server at each target.
fn serve_by_fuse(storage: &Storage, id: &str, manner: Manner) -> Servers {
    let servers = Servers::default();
    let (coming, going) = (Arc::clone(&servers), Arc::clone(&servers));
    let interceptor = &storage.interceptor;
    interceptor.always(Method::NodeStageVolume, id, Interception::FalseOk);
    interceptor.always(Method::NodeUnstageVolume, id, Interception::FalseOk);
    let publish = Interception::instead(move |about| {
        let path = Path::new(&about.path);
        if table().at(path).is_none() {
            fs::create_dir_all(path)?;
            coming.lock().unwrap().insert(about.path.clone(), FuseServer::start(path, manner));
        }
        Ok(())
    });
    let unpublish = Interception::instead(move |about| {
        let path = Path::new(&about.path);
        drop(going.lock().unwrap().remove(&about.path));
        if table().at(path).is_some() {
            unmount(path);
        }
        fs::remove_dir(path).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    });
    interceptor.always(Method::NodePublishVolume, id, publish);
    interceptor.always(Method::NodeUnpublishVolume, id, unpublish);
    servers
}

/// The target of one volume hangs, and a driver call of another never ends. 50 others are mounted and unmounted
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_storage_delays_no_other_volume() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let (silent, stuck) = (storage.create("silent").await, storage.create("stuck").await);
    let mut healthy = Vec::new();
    for number in 0..50 {
        let name = format!("healthy-{number}");
        healthy.push((storage.create(&name).await, name));
    }
    let node = LocalNode::open(&storage, PROGRAM).await;
    let pod = storage.pods().join("silent");
    fs::create_dir_all(&pod).unwrap();
    let server = tokio::task::block_in_place(|| FuseServer::start(&pod, Manner::Unresponsive));
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let hold = Interception::after(move |_| {
        let _ = held.lock().unwrap().recv();
        Ok(())
    });
    storage.interceptor.always(Method::NodePublishVolume, &stuck, hold);

    let hung = [node.begin(&silent, "silent"), node.begin(&stuck, "stuck")];
    wait::until("both hang", async || {
        let explained = node.volumes.explain(&key(&silent)).await.unwrap()?;
        let reported = matches!(explained.waiting, Waiting::Call { rpc: Rpc::NodePublishVolume, .. });
        let calls = storage.interceptor.history(|history| {
            history.calls().iter().any(|call| {
                call.method == Method::NodePublishVolume
                    && call.subject.volume == stuck
                    && call.code.is_none()
            })
        });
        (reported && calls).then_some(())
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
    assert!(hung.iter().all(|hung| !hung.is_finished()), "those that hang have waited all the while");
    assert!(node.mounts.hung_processes() <= 1);

    release.send(()).unwrap();
    drop(release);
    drop(server);
    unmount(&pod);
    for hung in hung {
        // The result does not matter here.
        let _ = wait::within("what hung ends", hung).await.unwrap();
    }
    for (id, name) in [(&silent, "silent"), (&stuck, "stuck")] {
        node.unpublish_at_last(id, name).await;
    }
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// The server of a mount is killed while a consumer holds the volume. The mount is healed, or reported while it cannot
/// be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_of_a_dead_server_is_healed_or_reported() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("served").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    let servers = serve_by_fuse(&storage, &id, Manner::Answers);
    node.publish(&id, "a").await.unwrap();
    let target = storage.target("a");
    let mut changes = node.volumes.watch();
    let kill = || servers.lock().unwrap().remove(target.to_str().unwrap()).unwrap().kill();
    kill();
    assert_eq!(fs::metadata(&target).unwrap_err().raw_os_error(), Some(107), "ENOTCONN");
    assert_eq!(healed(&mut changes).await, Some(consumer("a")));
    assert!(fs::metadata(&target).unwrap().is_dir());
    assert_eq!(table().stack(&target).len(), 1);

    storage.interceptor.always(
        Method::NodePublishVolume,
        &id,
        Interception::instead(|_| Err(std::io::Error::other("the server does not start"))),
    );
    kill();
    wait::until("it is reported", async || {
        node.explain(&id).await.contains("the server does not start").then_some(())
    })
    .await;
    assert!(table().at(&target).is_none(), "a dead mount is not left at the target");
    node.unpublish_at_last(&id, "a").await;
    node.wait_until_empty().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}
