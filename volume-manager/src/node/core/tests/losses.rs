//! Mounts that go behind everybody's back.

use super::*;

/// Anchors (c) 11, 18: half a table that is older than a publish is no reason to take it down.
#[test]
fn a_mount_table_from_before_a_publish_loses_nothing() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let before = bench.node.epoch();
    let request = bench.publish("d", "v", SECOND);
    while !bench.is_published(request) {
        let order = bench.calls.remove(0);
        bench.end(&order, Ok(CallOutcome::Done), SECOND);
    }
    // As if it had been seen mounted.
    let slot = *bench.node.by_key.values().next().unwrap();
    let entry = bench.node.volumes.get_mut(&slot).unwrap();
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let seen = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(seen.clone()));
    bench.step(Event::MountsSeen { table: Arc::default(), since: before }, SECOND);
    assert!(bench.calls.is_empty());
    assert_eq!(bench.reads, 1, "a newer one is asked for");
    let since = bench.node.epoch();
    bench.step(Event::Tick, SECOND);
    bench.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnpublish { .. }), "the mount is lost");
}

#[test]
fn a_loss_in_a_table_from_before_a_call_is_sought_again_when_the_call_has_ended() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let seen = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    let entry = bench.entry("v");
    entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(seen.clone()));
    let facts = bench.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    bench.ask(Ask::Stats(spec("d", "v").key().clone()), SECOND);
    let question = bench.calls.remove(0);
    let since = bench.node.epoch();
    bench.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(bench.calls.is_empty());
    bench.end(&question, Ok(CallOutcome::Stats(crate::driver::VolumeStats::default())), SECOND);
    assert_eq!(bench.reads, 1);
    let since = bench.node.epoch();
    bench.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    // It ended in the very step of the reading, so that is done once more.
    assert_eq!(bench.reads, 2);
    let since = bench.node.epoch();
    bench.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnpublish { .. }), "{:?}", bench.calls);
}

#[test]
fn a_mount_that_is_lost_again_and_again_is_made_again_after_growing_waits() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let seen = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    let mut lose = |now: Duration| {
        let entry = bench.entry("v");
        entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(seen.clone()));
        bench.step(Event::Tick, now);
        let since = bench.node.epoch();
        bench.step(Event::Tick, now);
        bench.step(Event::MountsSeen { table: Arc::default(), since }, now);
        let mut calls = 0;
        while !bench.calls.is_empty() {
            let order = bench.calls.remove(0);
            bench.end(&order, Ok(CallOutcome::Done), now);
            calls += 1;
        }
        (calls, bench.node.next_deadline())
    };
    assert_eq!(lose(SECOND).0, 2, "unpublished and published");
    let mut now = SECOND;
    for _ in 0..5 {
        let (calls, deadline) = lose(now);
        assert_eq!(calls, 0);
        now = deadline.unwrap();
        assert_eq!(lose(now).0, 2);
    }
    assert!(now > 5 * SECOND, "{now:?}");
}
