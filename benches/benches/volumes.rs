//! Mounting and unmounting one volume, and a hundred concurrently, with volume-manager, as kubelet and as Mesos; and opening a
//! thousand records. All run in one process on one thread, with one driver that mounts in memory.
//!
//! The figures that have a bound are printed by `cargo run --release -p edge-csi-benches --bin volumes`.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::expect_used, reason = "a bench without its parts has nothing to measure")]

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use edge_csi_benches::volumes::{self, Fixture, VolumeClient};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn cycles(criterion: &mut Criterion) {
    let runtime = runtime();
    for attaches in [false, true] {
        let name = if attaches { "attach_mount_unmount_detach" } else { "mount_unmount" };
        let mut group = criterion.benchmark_group(name);
        group.measurement_time(Duration::from_secs(3)).sample_size(10);
        let fixture = runtime.block_on(Fixture::start(attaches)).expect("a fixture");
        let manager = runtime.block_on(fixture.manager()).expect("volumes");
        for in_flight in [1, 100] {
            group.throughput(Throughput::Elements(in_flight as u64));
            let manager_id = BenchmarkId::new("volume-manager", in_flight);
            group.bench_function(manager_id, |bencher| {
                bencher.to_async(&runtime).iter(|| cycle(&manager, in_flight));
            });
            if attaches {
                let mesos = runtime.block_on(fixture.mesos()).expect("a connection");
                group.bench_function(BenchmarkId::new("mesos", in_flight), |bencher| {
                    bencher.to_async(&runtime).iter(|| cycle(&mesos, in_flight));
                });
            } else {
                let kubelet = fixture.kubelet().expect("a directory");
                group.bench_function(BenchmarkId::new("kubelet", in_flight), |bencher| {
                    bencher.to_async(&runtime).iter(|| cycle(&kubelet, in_flight));
                });
            }
        }
        group.finish();
        let _runtime = runtime.enter();
        drop((manager, fixture));
    }
}

async fn cycle(client: &impl VolumeClient, in_flight: usize) {
    volumes::mount_all(client, in_flight, in_flight).await.expect("mounted");
    volumes::unmount_all(client, in_flight, in_flight).await.expect("unmounted");
}

fn recovery(criterion: &mut Criterion) {
    let runtime = runtime();
    let mut group = criterion.benchmark_group("recovery");
    group.throughput(Throughput::Elements(1000)).sample_size(10);
    group.bench_function("1000", |bencher| {
        bencher.to_async(&runtime).iter_custom(|times| async move {
            let mut elapsed = Duration::ZERO;
            for _ in 0..times {
                elapsed += volumes::recover(1000, 10).await.expect("volumes").reconciled;
            }
            elapsed
        });
    });
    group.finish();
}

criterion_group!(benches, cycles, recovery);
criterion_main!(benches);
