//! Crashes at every effect, and at random with faults.

use std::sync::Arc;

use csi_proto::Method;
use fastrand::Rng;

use super::driver::Act;
use super::world::*;
use volume_manager::driver::VolumeSpec;
use volume_manager::node::Volumes;

#[derive(Debug, Clone, Copy)]
enum Op {
    Publish(&'static str),
    Unpublish(&'static str),
}

const CYCLE: [Op; 4] = [Op::Publish("a"), Op::Publish("b"), Op::Unpublish("a"), Op::Unpublish("b")];

async fn apply(volumes: &Volumes, spec: &Arc<VolumeSpec>, op: Op) {
    match op {
        Op::Publish(name) => drop(publish_at_last(volumes, spec, name).await),
        Op::Unpublish(name) => unpublish_at_last(volumes, spec.key().id.as_str(), name).await,
    }
}

/// Performs the operation unless the node crashes during it. Returns whether it crashed.
async fn crashes(world: &World, volumes: &Volumes, spec: &Arc<VolumeSpec>, op: Option<Op>) -> bool {
    let mut crashed = world.driver.crashed.subscribe();
    let work = async {
        match op {
            Some(op) => apply(volumes, spec, op).await,
            None => removed(volumes).await,
        }
    };
    tokio::select! {
        biased;
        _ = crashed.wait_for(|crashed| *crashed) => true,
        () = work => false,
    }
}

/// Crashes before and after every effect of a whole cycle, with and without a reboot. The cycle continues, the rules
/// hold, and nothing remains.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_effect_loses_and_leaks_nothing() {
    let spec = volume("v");
    let mut points = 0;
    for reboot in [false, true] {
        for at in 1.. {
            let about = format!("crash at effect {at}, reboot {reboot}");
            let mut world = World::new();
            let mut volumes = world.start().await;
            world.driver.crash_at(Some(at));
            let mut crashed = false;
            let steps = CYCLE.map(Some).into_iter().chain([None]);
            for op in steps {
                while crashes(&world, &volumes, &spec, op).await {
                    crashed = true;
                    world.kill().await;
                    if reboot {
                        world.reboot();
                    }
                    volumes = world.start().await;
                }
                if let Some(Op::Publish(name)) = op {
                    assert!(world.mounted("/pods").contains(&format!("/pods/{name}/mount")), "{about}");
                }
            }
            world.assert_clean(&about).await;
            world.driver.assert_lawful(&about);
            if !crashed {
                break;
            }
            points += 1;
        }
    }
    println!("{points} crash points");
    assert!(points > 60, "{points}");
}

const METHODS: [Method; 6] = [
    Method::ControllerPublishVolume,
    Method::ControllerUnpublishVolume,
    Method::NodeStageVolume,
    Method::NodeUnstageVolume,
    Method::NodePublishVolume,
    Method::NodeUnpublishVolume,
];

async fn storm(seed: u64) {
    let about = format!("replay with EDGE_CSI_SEED={seed} cargo test -p volume-manager --test node storm");
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new();
    let mut volumes = world.start().await;
    let specs = [volume("v"), unattached("w")];
    let names = [["a", "b"], ["c", "d"]];
    let mut wanted = [[false; 2]; 2];
    for _ in 0..12 {
        for method in METHODS {
            let acts = [
                Act::Good,
                Act::Fail(13),
                Act::FailAfter(13),
                Act::Break,
                Act::FalseOk,
                Act::Fail(14),
                Act::Fail(5),
            ];
            for _ in 0..rng.u8(..3) {
                let act = acts[rng.usize(..acts.len())];
                // No rule can protect against a driver that forgets an existing volume.
                let lies_down = act == Act::Fail(5) && method != Method::NodeUnpublishVolume;
                if !lies_down {
                    world.driver.act(method, [act]);
                }
            }
        }
        let (v, c) = (rng.usize(..2), rng.usize(..2));
        wanted[v][c] = rng.bool();
        let (volume, name) = (specs[v].key().clone(), names[v][c]);
        if wanted[v][c] {
            tokio::spawn({
                let (volumes, spec) = (volumes.clone(), specs[v].clone());
                async move { drop(publish(&volumes, &spec, name).await) }
            });
        } else {
            tokio::spawn({
                let volumes = volumes.clone();
                async move { drop(volumes.unpublish(&volume, &id(name)).await) }
            });
        }
        tokio::time::sleep(std::time::Duration::from_millis(rng.u64(..3000))).await;
        match rng.u8(..6) {
            0 => {
                world.kill().await;
                if rng.bool() {
                    world.reboot();
                }
                volumes = world.start().await;
            }
            1 => world.driver.redeploy(),
            _ => {}
        }
    }
    world.driver.behave();
    for (v, spec) in specs.iter().enumerate() {
        for (c, name) in names[v].into_iter().enumerate() {
            let op = if wanted[v][c] { Op::Publish(name) } else { Op::Unpublish(name) };
            apply(&volumes, spec, op).await;
        }
    }
    let mut expected = Vec::new();
    for (wanted, names) in wanted.iter().flatten().zip(names.as_flattened()) {
        if *wanted {
            expected.push(format!("/pods/{names}/mount"));
        }
    }
    assert_eq!(world.mounted("/pods"), expected, "{about}");
    for (spec, names) in specs.iter().zip(names) {
        for name in names {
            apply(&volumes, spec, Op::Unpublish(name)).await;
        }
    }
    removed(&volumes).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    world.assert_clean(&about).await;
    world.driver.assert_lawful(&about);
    world.kill().await;
}

/// Every volume reaches its desired state after the faults stop, and the rules hold all the time.
#[tokio::test(start_paused = true)]
async fn converges_after_random_faults_crashes_and_reboots() {
    if let Ok(seed) = std::env::var("EDGE_CSI_SEED") {
        return storm(seed.parse().unwrap()).await;
    }
    for seed in 0..120 {
        println!("seed {seed}");
        storm(seed).await;
    }
}
