//! Requests and their results without faults.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use volume_manager::advanced::driver::{ConnectError, Connection, DriverConnector};
use volume_manager::driver::{AccessMode, Attach, DriverPolicy, OwnershipChange, VolumeSpec};
use volume_manager::node::{ChangeKind, DesiredVolume, ExpandError, PublishError, VolumeSettings};
use volume_manager::registry::DriverEndpoint;

use super::world::*;

/// A connected driver gets one stage call and one publish call, and no others.
#[tokio::test(start_paused = true)]
async fn a_mount_takes_two_calls() {
    let mut world = World::new();
    let volumes = world.start().await;
    let published = publish(&volumes, &unattached("v"), "a").await.unwrap();
    assert_eq!(published.target_path.as_str(), "/pods/a/mount");
    let methods: Vec<_> = world.driver.calls().iter().map(|seen| seen.method).collect();
    assert_eq!(methods, [Method::NodeStageVolume, Method::NodePublishVolume]);
    publish(&volumes, &unattached("v"), "a").await.unwrap();
    publish(&volumes, &unattached("v"), "b").await.unwrap();
    assert_eq!(world.driver.calls().len(), 3);
    world.driver.assert_lawful("two calls");
}

#[tokio::test(start_paused = true)]
async fn the_last_consumer_takes_everything_down() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    publish(&volumes, &volume("v"), "b").await.unwrap();
    unpublish_at_last(&volumes, "v", "a").await;
    assert_eq!(world.mounted("/pods"), ["/pods/b/mount"]);
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 0);
    unpublish_at_last(&volumes, "v", "b").await;
    removed(&volumes).await;
    let down = [Method::NodeUnstageVolume, Method::ControllerUnpublishVolume];
    assert!(down.into_iter().all(|method| world.driver.count(method) == 1));
    world.assert_clean("the end").await;
    world.driver.assert_lawful("the end");
    let nothing = volumes.unpublish(&key("v"), &id("b")).await;
    assert_eq!(nothing, Ok(()), "what is not there is no error");
}

#[tokio::test(start_paused = true)]
async fn externally_attached_volume_expands_on_the_node_only() {
    let mut world = World::new();
    let volumes = world.start().await;
    for (name, spec, controller_halves) in [("v", unattached("v"), 0), ("w", volume("w"), 1)] {
        publish(&volumes, &spec, name).await.unwrap();
        assert_eq!(volumes.expand(&key(name), 1 << 30).await, Ok(1 << 30));
        assert_eq!(world.driver.count(Method::ControllerExpandVolume), controller_halves);
    }
    assert_eq!(world.driver.count(Method::NodeExpandVolume), 2);
    world.driver.assert_lawful("growth");
}

#[tokio::test(start_paused = true)]
async fn reports_drivers_with_facts_while_registered() {
    let mut world = World::new();
    let volumes = world.start_without_driver(world.parts()).await;
    assert_eq!(volumes.drivers().await, Ok(Vec::new()));
    world.register(&volumes).await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let [driver] = &volumes.drivers().await.unwrap()[..] else { panic!("one driver") };
    assert_eq!((&driver.name, driver.connected), (&key("v").driver, true));
    assert!(driver.facts.as_ref().unwrap().capabilities.node.stage_unstage);
    volumes.driver_deregistered(key("v").driver).await.unwrap();
    assert_eq!(volumes.drivers().await, Ok(Vec::new()), "its volumes are there still");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_waits_for_a_driver_that_comes_later() {
    let mut world = World::new();
    let volumes = world.start_without_driver(world.parts()).await;
    let waiting = tokio::spawn({
        let volumes = volumes.clone();
        async move { publish(&volumes, &volume("v"), "a").await }
    });
    while volumes.list().await.unwrap().is_empty() {}
    let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
    assert!(said.contains("waiting for its driver") && said.contains("consumers: a"), "{said}");
    world.register(&volumes).await;
    waiting.await.unwrap().unwrap();
    let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
    assert!(said.contains("PUBLISHED") && said.contains("as desired"), "{said}");
}

/// A publish with a bound says what the volume waits for. The volume stays wanted.
#[tokio::test(start_paused = true)]
async fn a_publish_with_a_bound_ends_with_the_reason() {
    let mut world = World::new();
    let volumes = world.start_without_driver(world.parts().drivers(Unhealthy)).await;
    let publish = async || volumes.publish_within(volume("v"), consumer("a"), Duration::from_secs(3)).await;
    let error = publish().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not published for a within 3s; csi.example.org/v is CREATED for 3s, \
         waiting for its driver to be registered; consumers: a."
    );
    world.register(&volumes).await;
    let error = publish().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not published for a within 3s; csi.example.org/v is CREATED for 6s, waiting for its driver to connect \
         (last attempt: the driver reports that it is unhealthy: no disk); consumers: a."
    );
    drop(volumes);
    world.kill().await;
    let volumes = world.start().await;
    let published = volumes.publish_within(volume("v"), consumer("a"), Duration::from_secs(3)).await.unwrap();
    assert_eq!(published.target_path.as_str(), "/pods/a/mount");
}

/// A driver that never becomes healthy.
struct Unhealthy;

#[async_trait]
impl DriverConnector for Unhealthy {
    async fn connect(
        &self,
        _: &DriverName,
        _: &DriverEndpoint,
        _: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError> {
        Err(ConnectError::Unhealthy { message: "no disk".to_owned() })
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_had_is_refused_with_the_reason() {
    let mut world = World::new();
    world.driver.facts.lock().unwrap().max_volumes = Some(2);
    world.driver.policy.ephemeral = true;
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let taken = volumes.publish(volume("w"), at("b", "/pods/a/mount")).await;
    assert!(matches!(taken, Err(PublishError::TargetTaken { .. })), "{taken:?}");
    let moved = volumes.publish(volume("v"), at("a", "/pods/b/mount")).await;
    assert!(matches!(moved, Err(PublishError::ConsumerDiffers { field: "target_path", .. })), "{moved:?}");
    let other = builder("v").read_only(true).build().unwrap();
    let differs = volumes.publish(other, consumer("b")).await;
    assert!(matches!(differs, Err(PublishError::SpecDiffers { field: "read_only", .. })), "{differs:?}");
    let access = volume_manager::driver::Access::filesystem();
    let exclusive =
        VolumeSpec::builder(key("x"), access, AccessMode::SingleNodeSingleWriter).build().unwrap();
    volumes.publish(exclusive.clone(), consumer("b")).await.unwrap();
    let second = volumes.publish(exclusive, consumer("c")).await;
    assert!(matches!(second, Err(PublishError::Exclusive { .. })), "{second:?}");
    let limit = volumes.publish(volume("y"), consumer("c")).await;
    assert!(matches!(limit, Err(PublishError::AttachLimit { found: 2, limit: 2, .. })), "{limit:?}");
    world.driver.assert_lawful("refusals");
}

#[tokio::test(start_paused = true)]
async fn ephemeral_volume_is_only_published_and_unpublished() {
    let mut world = World::new();
    world.driver.policy.ephemeral = true;
    let volumes = world.start().await;
    let inline = Arc::new(builder("inline").ephemeral().build().unwrap());
    publish(&volumes, &inline, "a").await.unwrap();
    unpublish_at_last(&volumes, "inline", "a").await;
    removed(&volumes).await;
    let methods: Vec<_> = world.driver.calls().iter().map(|seen| seen.method).collect();
    assert_eq!(methods, [Method::NodePublishVolume, Method::NodeUnpublishVolume]);
    assert_eq!(world.records(), 0);
    world.driver.assert_lawful("ephemeral");
}

#[tokio::test(start_paused = true)]
async fn ephemeral_volume_needs_a_driver_that_supports_it() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let inline = builder("inline").ephemeral().build().unwrap();
    let refused = volumes.publish(inline, consumer("b")).await;
    assert!(matches!(refused, Err(PublishError::LifecycleMode { mode: "Ephemeral", .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn external_attach_is_awaited_and_its_end_tears_down() {
    let mut world = World::new();
    let volumes = world.start().await;
    let awaited = Arc::new(builder("v").attach(Attach::Awaited).build().unwrap());
    let waiting = tokio::spawn({
        let (volumes, awaited) = (volumes.clone(), awaited.clone());
        async move { publish(&volumes, &awaited, "a").await }
    });
    while !volumes
        .explain(&key("v"))
        .await
        .unwrap()
        .is_some_and(|said| said.to_string().contains("waiting for the external attach"))
    {
        tokio::task::yield_now().await;
    }
    assert!(world.driver.calls().is_empty());
    assert!(volumes.attached(&key("v"), [("device".into(), "/dev/x".into())].into()).await.unwrap());
    waiting.await.unwrap().unwrap();
    let mut changes = volumes.watch();
    assert!(volumes.detached(&key("v")).await.unwrap());
    loop {
        let change = next(&mut changes).await;
        if matches!(change.kind, ChangeKind::State { to, .. } if to.to_string() == "CREATED") {
            break;
        }
    }
    assert_eq!(world.mounted("/pods"), Vec::<String>::new());
    assert_eq!(world.driver.count(Method::ControllerPublishVolume), 0);
    world.driver.assert_lawful("awaited");
}

#[tokio::test(start_paused = true)]
async fn a_desired_set_takes_down_what_is_not_in_it() {
    let mut world = World::new();
    let volumes = world.start().await;
    let desired = |names: &[&str]| {
        let wanted = |name: &&str| DesiredVolume { spec: volume(name), consumers: vec![consumer(name)] };
        names.iter().map(wanted).collect::<Vec<_>>()
    };
    let first = volumes.reconcile(desired(&["a", "b"])).await.unwrap();
    assert_eq!((first.wanted, first.released, first.refused), (2, 0, vec![]));
    assert_eq!(world.records(), 2, "what is wanted is on disk when it is answered");
    for name in ["a", "b"] {
        publish(&volumes, &volume(name), name).await.unwrap();
    }
    let calls = world.driver.calls().len();
    let again = volumes.reconcile(desired(&["a", "b"])).await.unwrap();
    assert_eq!((again.wanted, again.released), (0, 0));
    assert_eq!(world.driver.calls().len(), calls, "what is as it should be costs no call");
    let mut changes = volumes.watch();
    let second = volumes.reconcile(desired(&["b"])).await.unwrap();
    assert_eq!((second.wanted, second.released), (0, 1));
    while volumes.list().await.unwrap().len() > 1 {
        next(&mut changes).await;
    }
    assert_eq!(world.mounted("/pods"), ["/pods/b/mount"]);
    world.driver.assert_lawful("desired");
}

#[tokio::test(start_paused = true)]
async fn a_volume_grows_and_never_shrinks_and_says_how_full_it_is() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    assert_eq!(volumes.expand(&key("v"), 1 << 30).await, Ok(1 << 30));
    let shrink = volumes.expand(&key("v"), 1 << 20).await;
    assert!(matches!(shrink, Err(ExpandError::Shrink { .. })), "{shrink:?}");
    let unknown = volumes.expand(&key("w"), 1).await;
    assert_eq!(unknown, Err(ExpandError::Unknown { key: key("w") }));
    assert!(volumes.stats(&key("v")).await.is_ok());
    assert!(volumes.health(&key("v")).await.is_err(), "the driver has no such call");
    world.driver.assert_lawful("growth");
}

#[tokio::test(start_paused = true)]
async fn unapplied_fs_group_is_reported() {
    let mut world = World::new();
    world.driver.policy.fs_group_policy = volume_manager::driver::FsGroupPolicy::File;
    let volumes = world.start().await;
    let grouped = Arc::new(builder("v").fs_group(7).build().unwrap());
    let published = publish(&volumes, &grouped, "a").await.unwrap();
    assert_eq!(published.group, OwnershipChange::Caller { group: 7 });
    let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
    assert!(said.contains("fsGroup 7 is not applied"), "{said}");
    // A caller that applies fsGroup declares it in the settings, and sees it in the result only.
    let mut other = World::new();
    other.driver.policy.fs_group_policy = volume_manager::driver::FsGroupPolicy::File;
    other.settings = VolumeSettings::new(ROOT).caller_applies_fs_group(true);
    let volumes = other.start().await;
    let published = publish(&volumes, &grouped, "a").await.unwrap();
    assert_eq!(published.group, OwnershipChange::Caller { group: 7 });
    assert_eq!(volumes.explain(&key("v")).await.unwrap().unwrap().unapplied, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_staging_path_fits_the_length_that_every_driver_takes() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume(&"long/../".repeat(500)), "a").await.unwrap();
    let staged = world.mounted(ROOT);
    assert!(staged.len() == 1 && staged[0].len() <= 128, "{staged:?}");
}
