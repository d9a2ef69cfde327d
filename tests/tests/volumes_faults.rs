//! Volumes with real mounts, over drivers that lie, outside interference, and storage that dies or hangs. It
//! needs root; without, each test says so.

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
use edge_csi_tests::volumes::interceptor::Act;
use edge_csi_tests::volumes::local::{LocalNode, consumer, key};
use edge_csi_tests::volumes::namespace::{bind, mount_another, mounts_below, private, table, unmount};
use edge_csi_tests::volumes::storage::Storage;
use edge_csi_tests::wait;
use fuse::{FuseServer, Manner};
use rustix::mount::MountPropagationFlags;
use tonic::Code;
use volume_manager::ConsumerId;
use volume_manager::lifecycle::{Failure, Rpc};
use volume_manager::node::{CallFailure, ChangeKind, Changes, PublishError, Waiting, WatchEvent};

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

/// Waits until a mount was lost, and then until it is there again. Returns its owner.
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

/// No mount, two mounts and another mount are each no success, said so, and made good.
#[tokio::test]
async fn a_driver_that_says_ok_is_held_to_it() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    let twice =
        || Act::also(|about| rustix::mount::mount_bind(&about.staging, &about.path).map_err(Into::into));
    let another = || Act::instead(|about| mount_another(Path::new(&about.path)));
    for (act, said) in
        [(Act::Lie, "the path is missing"), (twice(), "2 mounts are stacked"), (another(), "found device")]
    {
        storage.interceptor.next(Method::NodePublishVolume, [act.clone()]);
        if matches!(act, Act::Instead(_)) {
            // The one that mounted it has to unmount it.
            let taken = Act::instead(|about| {
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
        node.forgets_all().await;
        storage.assert_clean();
        storage.assert_canary(&id, "volume");
    }
    storage.interceptor.assert_lawful();
}

/// An error after success is asked for again, and costs no second mount.
#[tokio::test]
async fn an_error_after_success_leaves_one_mount() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    let errors = || [Code::Internal, Code::DeadlineExceeded, Code::Unavailable].map(Act::FailAfter);
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
    node.forgets_all().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// Still mounted after OK, nothing of the volume is deleted, and nothing under it is removed.
#[tokio::test]
async fn an_ok_while_it_is_still_mounted_costs_no_byte() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    node.publish(&id, "a").await.unwrap();
    storage.interceptor.next(Method::NodeUnpublishVolume, [Act::Lie]);
    storage.interceptor.next(Method::NodeUnstageVolume, [Act::Lie]);
    // The first answer is not believed, and no second request is needed.
    node.unpublish_at_last(&id, "a").await;
    node.forgets_all().await;
    assert_eq!(storage.interceptor.count(Method::NodeUnpublishVolume), 2);
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 2);
    storage.assert_clean();
    storage.assert_canary(&id, "volume");

    // A driver that never unmounts: it is asked again and again, and the bytes stay.
    node.publish(&id, "a").await.unwrap();
    let canary = storage.target("a").join("deep/canary");
    storage.interceptor.always(Method::NodeUnpublishVolume, &id, Act::Lie);
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

/// What holds data where the target was is left, and reported.
#[tokio::test]
async fn data_that_lies_where_the_target_was_is_never_deleted() {
    let Some(directory) = private() else { return };
    let storage = Storage::start(&directory).await;
    let id = storage.create("volume").await;
    let node = LocalNode::open(&storage, PROGRAM).await;
    node.publish(&id, "a").await.unwrap();
    let left = Act::also(|about| {
        fs::create_dir_all(Path::new(&about.path).join("deep"))?;
        fs::write(Path::new(&about.path).join("deep/precious"), "precious")
    });
    storage.interceptor.next(Method::NodeUnpublishVolume, [left.clone()]);
    storage.interceptor.next(Method::NodeUnstageVolume, [left]);
    let staging = staging_of(&storage);
    node.unpublish_at_last(&id, "a").await;
    node.forgets_all().await;
    for place in [storage.target("a"), staging] {
        assert_eq!(fs::read_to_string(place.join("deep/precious")).unwrap(), "precious");
    }
    assert!(mounts_below(&storage.pods()).is_empty() && mounts_below(&storage.root()).is_empty());
    storage.assert_canary(&id, "volume");
    storage.interceptor.assert_lawful();
}

/// Staging is unmounted, or unmounted and removed, under a live publish: it is noticed, and made again.
#[tokio::test]
async fn what_is_unmounted_behind_its_back_is_made_again() {
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
    node.forgets_all().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// A volume with a foreign bind mount is not unstaged, the mount is named, and it is unstaged after that is
/// removed.
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
    // It may be used meanwhile, and given up again.
    node.publish(&id, "b").await.unwrap();
    assert!(storage.is_at("b", "volume"));
    node.unpublish(&id, "b").await.unwrap();
    assert_eq!(fs::read_to_string(foreign.join("deep/canary")).unwrap(), "volume");
    unmount(&foreign);
    node.forgets_all().await;
    assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), 1);
    storage.assert_clean();
    storage.assert_canary(&id, "volume");
    storage.interceptor.assert_lawful();
}

/// A file at the target is left alone, and the driver is not asked to mount over it.
#[tokio::test]
async fn a_file_at_the_target_is_left_and_the_driver_is_not_asked() {
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
    node.forgets_all().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// The root is a bind of another directory, so that every mount is seen twice: nothing takes that for a use.
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
        node.forgets_all().await;
        assert_eq!(storage.interceptor.count(Method::NodeUnstageVolume), round);
        storage.assert_clean();
        assert!(mounts_below(&real).is_empty());
    }
    storage.interceptor.assert_lawful();
}

type Servers = Arc<Mutex<HashMap<String, FuseServer>>>;

/// Makes a volume one that a FUSE server of its own shows at each target.
fn serve_by_fuse(storage: &Storage, id: &str, manner: Manner) -> Servers {
    let servers = Servers::default();
    let (coming, going) = (Arc::clone(&servers), Arc::clone(&servers));
    let interceptor = &storage.interceptor;
    interceptor.always(Method::NodeStageVolume, id, Act::Lie);
    interceptor.always(Method::NodeUnstageVolume, id, Act::Lie);
    let publish = Act::instead(move |about| {
        let path = Path::new(&about.path);
        if table().at(path).is_none() {
            fs::create_dir_all(path)?;
            coming.lock().unwrap().insert(about.path.clone(), FuseServer::start(path, manner));
        }
        Ok(())
    });
    let unpublish = Act::instead(move |about| {
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

/// One volume's target does not answer and another's driver call never ends; 50 others are mounted and unmounted
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_that_does_not_answer_delays_no_other_volume() {
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
    let hold = Act::also(move |_| {
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
        // What came of it is not the matter here.
        let _ = wait::within("what hung ends", hung).await.unwrap();
    }
    for (id, name) in [(&silent, "silent"), (&stuck, "stuck")] {
        node.unpublish_at_last(id, name).await;
    }
    node.forgets_all().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}

/// The server of a mount is killed under a live consumer: it is noticed and healed, or said while it cannot be.
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
        Act::instead(|_| Err(std::io::Error::other("the server does not start"))),
    );
    kill();
    wait::until("it is reported", async || {
        node.explain(&id).await.contains("the server does not start").then_some(())
    })
    .await;
    assert!(table().at(&target).is_none(), "a dead mount is not left at the target");
    node.unpublish_at_last(&id, "a").await;
    node.forgets_all().await;
    storage.assert_clean();
    storage.interceptor.assert_lawful();
}
