//! Lost mounts.

use super::*;

/// A mount table that is older than a publish does not trigger a teardown.
#[test]
fn ignores_a_mount_table_older_than_a_publish() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let before = harness.node.epoch();
    let request = harness.publish("d", "v", SECOND);
    while !harness.is_published(request) {
        let order = harness.calls.remove(0);
        harness.end(&order, Ok(CallOutcome::Done), SECOND);
    }
    // Simulates an observed mount.
    let slot = *harness.node.by_key.values().next().unwrap();
    let entry = harness.node.volumes.get_mut(&slot).unwrap();
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let identity = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(identity.clone()));
    harness.step(Event::MountsSeen { table: Arc::default(), since: before }, SECOND);
    assert!(harness.calls.is_empty());
    assert_eq!(harness.reads, 1, "a newer one is requested");
    let since = harness.node.epoch();
    harness.step(Event::Tick, SECOND);
    harness.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnpublish { .. }), "the mount is lost");
}

#[test]
fn rereads_an_inconclusive_mount_table_after_the_call() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let identity = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    let entry = harness.entry("v");
    entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(identity.clone()));
    let facts = harness.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    harness.ask(Ask::Stats(spec("d", "v").key().clone()), SECOND);
    let question = harness.calls.remove(0);
    let since = harness.node.epoch();
    harness.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(harness.calls.is_empty());
    harness.end(&question, Ok(CallOutcome::Stats(crate::driver::VolumeStats::default())), SECOND);
    assert_eq!(harness.reads, 1);
    let since = harness.node.epoch();
    harness.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    // The call ended in the step of the read, so the table is read once more.
    assert_eq!(harness.reads, 2);
    let since = harness.node.epoch();
    harness.step(Event::MountsSeen { table: Arc::default(), since }, SECOND);
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnpublish { .. }), "{:?}", harness.calls);
}

#[test]
fn remounts_repeatedly_lost_mounts_with_back_off() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let identity = crate::mounts::MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/sda1".into());
    let mut unmount_all = |now: Duration| {
        let entry = harness.entry("v");
        entry.record.consumers.values_mut().for_each(|consumer| consumer.mounted = Some(identity.clone()));
        harness.step(Event::Tick, now);
        let since = harness.node.epoch();
        harness.step(Event::Tick, now);
        harness.step(Event::MountsSeen { table: Arc::default(), since }, now);
        let mut calls = 0;
        while !harness.calls.is_empty() {
            let order = harness.calls.remove(0);
            harness.end(&order, Ok(CallOutcome::Done), now);
            calls += 1;
        }
        (calls, harness.node.next_deadline())
    };
    assert_eq!(unmount_all(SECOND).0, 2, "unpublished and published");
    let mut now = SECOND;
    for _ in 0..5 {
        let (calls, deadline) = unmount_all(now);
        assert_eq!(calls, 0);
        now = deadline.unwrap();
        assert_eq!(unmount_all(now).0, 2);
    }
    assert!(now > 5 * SECOND, "{now:?}");
}
