//! A store that fails.

use std::time::Duration;

use super::world::*;
use volume_manager::node::PublishError;
use volume_manager::store::{DiskErrorKind, faulty};

/// While the store rejects commits no call is made and no request completes; work continues when space is available.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_takes_no_intents_and_no_call_is_made() {
    for kind in
        [DiskErrorKind::NoSpace, DiskErrorKind::ReadOnly, DiskErrorKind::Device, DiskErrorKind::TooManyFiles]
    {
        let mut world = World::new();
        let (store, faults) = faulty::wrap(world.disk.open(), faulty::Plan::new(1));
        let volumes = world.start_without_driver(world.parts_with(store)).await;
        world.register(&volumes).await;
        publish(&volumes, &volume("before"), "a").await.unwrap();
        let calls = world.driver.calls().len();
        faults.fail_commits(kind);
        let failed = publish(&volumes, &volume("v"), "b").await;
        assert!(matches!(failed, Err(PublishError::NotYetRecorded(_))), "{kind:?}: {failed:?}");
        let refused = publish(&volumes, &volume("w"), "c").await;
        assert!(matches!(refused, Err(PublishError::Store(_))), "{kind:?}: {refused:?}");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.driver.calls().len(), calls, "{kind:?}");
        let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
        assert!(said.contains("waiting for the store"), "{said}");
        faults.heal();
        tokio::time::sleep(Duration::from_secs(120)).await;
        publish(&volumes, &volume("v"), "b").await.unwrap();
        publish(&volumes, &volume("w"), "c").await.unwrap();
        world.driver.assert_lawful("a store that fails");
        world.kill().await;
    }
}

/// A commit that is durable despite its reported failure only delays the work.
#[tokio::test(start_paused = true)]
async fn stores_that_fail_at_random_delay_and_never_break_a_rule() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut world = World::new();
        let plan = faulty::Plan::new(seed).with_refused(200).with_written(200);
        let (store, _faults) = faulty::wrap(world.disk.open(), plan);
        let volumes = world.start_without_driver(world.parts_with(store)).await;
        world.register(&volumes).await;
        for name in ["a", "b"] {
            while publish(&volumes, &volume("v"), name).await.is_err() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        assert_eq!(world.mounted("/pods").len(), 2);
        for name in ["a", "b"] {
            while volumes.unpublish(&key("v"), &id(name)).await.is_err() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        removed(&volumes).await;
        world.assert_clean("a store that fails at random").await;
        world.driver.assert_lawful("a store that fails at random");
        world.kill().await;
    }
}
