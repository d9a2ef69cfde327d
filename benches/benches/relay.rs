//! One `CreateVolume` of about 600 bytes in and 300 out: direct, and through the relay over every road, all in one process on one
//! thread. Figures for parts that are processes of their own come from `cargo xtask perf relay`.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::expect_used, reason = "a bench whose chain does not stand has nothing to measure")]

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use edge_csi_benches::load;
use edge_csi_benches::roads::{Chain, Road};
use futures_util::StreamExt;

fn relay(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("relay");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(20);
    for road in Road::ALL {
        let chain = runtime.block_on(Chain::start(road)).expect("a chain");
        let channel = runtime.block_on(load::connect(chain.endpoint())).expect("a connection");
        for in_flight in [1, 16, 256] {
            group.bench_function(BenchmarkId::new(road.name(), in_flight), |bencher| {
                bencher.to_async(&runtime).iter_custom(|calls| {
                    let channel = channel.clone();
                    async move {
                        let started = Instant::now();
                        futures_util::stream::iter(0..calls)
                            .map(|number| load::create_volume(&channel, number))
                            .buffer_unordered(in_flight)
                            .for_each(|answered| async { answered.expect("an answer") })
                            .await;
                        started.elapsed()
                    }
                });
            });
        }
        let _runtime = runtime.enter();
        drop(chain);
    }
    group.finish();
}

criterion_group!(benches, relay);
criterion_main!(benches);
