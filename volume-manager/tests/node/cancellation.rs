//! Futures that are dropped at every await point.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::world::*;
use volume_manager::node::Volumes;
use volume_manager::registry::DriverEndpoint;

/// Polls a future a limited number of times.
struct Polls<F> {
    inner: Option<Pin<Box<F>>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        if let Poll::Ready(output) = inner.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if self.left == 0 {
            // The future is dropped at its current await point.
            self.inner = None;
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Pending
    }
}

fn polls<F: Future>(future: F, left: usize) -> Polls<F> {
    Polls { inner: Some(Box::pin(future)), left }
}

/// Registers the driver like [`World`], but ignores the error if the volumes are not running.
async fn register(world: &World, volumes: &Volumes) {
    let endpoint = DriverEndpoint::from_path("/csi/csi.sock").unwrap();
    let (name, policy) = (world.driver.name.clone(), world.driver.policy.clone());
    let _ = volumes.driver_registered(name, endpoint, policy).await;
}

async fn cycle(volumes: &Volumes) -> bool {
    let publish = volumes.publish(volume("v"), consumer("a")).await.is_ok();
    let unpublish = volumes.unpublish(&key("v"), &id("a")).await.is_ok();
    publish && unpublish
}

/// Drops the run after this number of polls. Returns whether the run had ended before.
async fn survives_a_drop_after(left: usize) -> bool {
    let about = format!("dropped after {left} polls");
    let mut world = World::new();
    let parts = world.parts();
    let (volumes, run) = Volumes::open(parts, world.settings.clone()).await.unwrap();
    let run = tokio::spawn(polls(run, left));
    let work = async {
        register(&world, &volumes).await;
        cycle(&volumes).await
    };
    // Waiters get an error after the shutdown: no wake-up is lost.
    let finished = tokio::time::timeout(LONG, work)
        .await
        .unwrap_or_else(|_| panic!("{about}: a waiter was not notified"));
    drop(volumes);
    let ended = run.await.unwrap();
    world.kill().await;
    let volumes = world.start().await;
    publish_at_last(&volumes, &volume("v"), "a").await;
    assert_eq!(world.mounted("/pods"), ["/pods/a/mount"], "{about}");
    unpublish_at_last(&volumes, "v", "a").await;
    removed(&volumes).await;
    world.assert_clean(&about).await;
    world.driver.assert_lawful(&about);
    finished && ended.is_some()
}

/// The future that runs the volumes is dropped at every await point. The state on disk is valid and continues, and no
/// success is reported without a mount.
#[tokio::test(start_paused = true)]
async fn the_run_can_be_dropped_at_every_await() {
    // How many polls a run takes depends on the threads of the store: one sweep has 10 to 17 points.
    let mut points = 0;
    for _ in 0..2 {
        for left in 0.. {
            points += 1;
            if survives_a_drop_after(left).await {
                break;
            }
        }
    }
    println!("{points} points");
    assert!(points > 15, "{points}");
}

/// Dropping the future of a publish only stops waiting; the volume is desired until it is unpublished.
#[tokio::test(start_paused = true)]
async fn publish_is_cancel_safe_at_every_await() {
    for left in 0..8 {
        let mut world = World::new();
        let volumes = world.start().await;
        let asked = polls(volumes.publish(volume("v"), consumer("a")), left).await;
        assert!(asked.as_ref().is_none_or(Result::is_ok));
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        let known = volumes.explain(&key("v")).await.unwrap();
        let mounted = world.mounted("/pods");
        assert_eq!(known.is_some(), mounted == ["/pods/a/mount"], "{left}: {known:?}");
        unpublish_at_last(&volumes, "v", "a").await;
        removed(&volumes).await;
        world.assert_clean("a dropped publish").await;
        world.driver.assert_lawful("a dropped publish");
        world.kill().await;
    }
}
