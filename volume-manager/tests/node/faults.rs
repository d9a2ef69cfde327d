//! Drivers that are slow, fail, stack mounts or forget volumes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::sync::watch;
use tokio::time::Instant;

use super::driver::{Act, facts};
use super::world::*;
use volume_manager::advanced::driver::{
    CallError, CallOutcome, ConnectError, Connection, DriverConnector, Operation,
};
use volume_manager::driver::{DriverFacts, DriverPolicy, VolumeSpec};
use volume_manager::node::VolumeSettings;
use volume_manager::registry::DriverEndpoint;

/// Hanging volumes occupy at most the driver's maximum number of calls, in FIFO order, and no volume waits behind one
/// in back-off.
#[tokio::test(start_paused = true)]
async fn one_drivers_calls_are_capped_and_served_in_order() {
    let mut world = World::new();
    world.settings = VolumeSettings::new(ROOT).calls_per_driver(4);
    let volumes = world.start().await;
    world.driver.act(Method::NodeStageVolume, [Act::Slow(Duration::from_secs(60)); 4]);
    let names: Vec<String> = (0..12).map(|n| format!("n{n:02}")).collect();
    let publishes: Vec<_> = names
        .iter()
        .map(|name| {
            let (volumes, name) = (volumes.clone(), name.clone());
            tokio::spawn(async move { publish(&volumes, &unattached(&name), &name).await })
        })
        .collect();
    for publish in publishes {
        publish.await.unwrap().unwrap();
    }
    assert_eq!(world.driver.most_in_flight(), 4);
    let first = |method| {
        let calls = world.driver.calls().into_iter().filter(move |seen| seen.method == method);
        calls.map(|seen| seen.volume).collect::<Vec<_>>()
    };
    assert_eq!(first(Method::NodeStageVolume), names, "in the order in which they came");
    world.driver.assert_lawful("fairness");
}

/// A driver that stacks a mount on each call is not called for existing mounts.
#[tokio::test(start_paused = true)]
async fn a_hundred_restarts_leave_the_mounts_as_they_are() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let (calls, mounts) = (world.driver.calls().len(), world.mounted("/"));
    drop(volumes);
    for _ in 0..100 {
        world.kill().await;
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
    }
    assert_eq!(world.driver.calls().len(), calls);
    assert_eq!(world.mounted("/"), mounts);
}

/// A failed republish for fresh secrets leaves the mount and the record unchanged.
#[tokio::test(start_paused = true)]
async fn a_republish_that_fails_leaves_the_volume_published() {
    let mut world = World::new();
    world.driver.policy.requires_republish = true;
    world.settings = VolumeSettings::new(ROOT).republish_interval(Duration::from_secs(10));
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.driver.act(Method::NodePublishVolume, [Act::Fail(16), Act::Fail(7)]);
    tokio::time::sleep(Duration::from_secs(35)).await;
    let made = world.driver.count(Method::NodePublishVolume);
    assert!((3..=5).contains(&made), "{made}");
    assert_eq!(world.driver.count(Method::NodeUnpublishVolume), 0);
    assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
    assert_eq!(world.records(), 1);
    world.driver.assert_lawful("republish");
}

/// After a crash between the two phases of an expansion, the second phase follows without a request.
#[tokio::test(start_paused = true)]
async fn an_expansion_goes_on_after_a_crash_between_its_halves() {
    for reboot in [false, true] {
        let mut world = World::new();
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        world.driver.act(Method::NodeExpandVolume, [Act::Hang]);
        tokio::spawn({
            let volumes = volumes.clone();
            async move { volumes.expand(&key("v"), 1 << 30).await }
        });
        while world.driver.count(Method::NodeExpandVolume) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(volumes);
        world.kill().await;
        if reboot {
            world.reboot();
        }
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        let mut changes = volumes.watch();
        while world.driver.count(Method::NodeExpandVolume) < 2 {
            next(&mut changes).await;
        }
        assert_eq!(volumes.expand(&key("v"), 1 << 30).await, Ok(1 << 30));
        assert_eq!(world.driver.count(Method::ControllerExpandVolume), 1);
        world.driver.assert_lawful("expansion");
    }
}

/// An infeasible size is abandoned and reported.
#[tokio::test(start_paused = true)]
async fn infeasible_size_is_reported_and_not_retried() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.driver.act(Method::ControllerExpandVolume, [Act::Fail(11)]);
    let refused = volumes.expand(&key("v"), 1 << 40).await.unwrap_err().to_string();
    assert!(refused.contains("OUT_OF_RANGE"), "{refused}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.driver.count(Method::ControllerExpandVolume), 1);
    assert_eq!(volumes.expand(&key("v"), 1 << 30).await, Ok(1 << 30));
}

/// A driver that is killed during a call gets the call again after it reconnects.
#[tokio::test(start_paused = true)]
async fn call_is_retried_after_the_driver_was_killed() {
    for method in [Method::NodeStageVolume, Method::NodePublishVolume] {
        let mut world = World::new();
        let volumes = world.start().await;
        world.driver.act(method, [Act::Hang]);
        let publish = tokio::spawn({
            let volumes = volumes.clone();
            async move { publish(&volumes, &volume("v"), "a").await }
        });
        while world.driver.count(method) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
        assert!(said.contains(&format!(", {} ", method.name())), "{said}");
        world.driver.redeploy();
        publish.await.unwrap().unwrap();
        assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
        world.driver.assert_lawful("a killed driver");
    }
}

/// Back-off delays stay bounded over a day's outage, and the first retry follows within the longest delay.
#[tokio::test(start_paused = true)]
async fn a_day_of_outage_is_neither_a_storm_of_calls_nor_forgotten() {
    let mut world = World::new();
    let volumes = world.start().await;
    world.driver.act(Method::NodeStageVolume, vec![Act::Fail(14); 100_000]);
    let publish = tokio::spawn({
        let volumes = volumes.clone();
        async move { publish_at_last(&volumes, &volume("v"), "a").await }
    });
    tokio::time::sleep(Duration::from_secs(24 * 3600 - 200)).await;
    let calls = world.driver.count(Method::NodeStageVolume);
    // Delays are between one and two minutes after the back-off has grown.
    assert!((700..1_600).contains(&calls), "{calls}");
    world.driver.behave();
    tokio::time::timeout(Duration::from_secs(121), publish).await.expect("within the longest wait").unwrap();
}

/// A driver that reports its identity and then closes the connection.
#[derive(Clone)]
struct HangsUp {
    facts: DriverFacts,
    /// The delay before the connection is closed.
    after: Arc<watch::Sender<Duration>>,
    dialled: Arc<watch::Sender<Vec<Instant>>>,
}

#[async_trait]
impl DriverConnector for HangsUp {
    async fn connect(
        &self,
        _: &DriverName,
        _: &DriverEndpoint,
        _: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError> {
        self.dialled.send_modify(|dialled| dialled.push(Instant::now()));
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Connection for HangsUp {
    fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    fn earlier_processes_ended(&self) -> bool {
        false
    }

    async fn closed(&self) {
        let after = *self.after.borrow();
        tokio::time::sleep(after).await;
    }

    async fn call(&self, _: &VolumeSpec, _: &Operation) -> Result<CallOutcome, CallError> {
        unreachable!("nothing is wanted")
    }
}

#[tokio::test(start_paused = true)]
async fn reconnect_backs_off_and_resets_after_a_lasting_connection() {
    const DIALS: usize = 20;
    const HOUR: Duration = Duration::from_secs(3600);
    let mut world = World::new();
    let facts = facts(&world.driver.name, false, false);
    let driver = HangsUp { facts, after: Arc::default(), dialled: Arc::default() };
    let volumes = world.start_without_driver(world.parts().drivers(driver.clone())).await;
    world.register(&volumes).await;
    let mut dialled = driver.dialled.subscribe();
    let times = dialled.wait_for(|times| times.len() >= DIALS).await.unwrap().clone();
    assert!(times[DIALS - 1] - times[0] > Duration::from_secs(60), "{times:?}");
    // The pending connection lasts, and so does the next one.
    driver.after.send_replace(HOUR);
    let times = dialled.wait_for(|times| times.len() >= DIALS + 2).await.unwrap().clone();
    let pause = times[DIALS + 1] - times[DIALS] - HOUR;
    assert!(pause < Duration::from_millis(50), "{pause:?}");
}
