//! One `CreateVolume` of about 600 bytes in and 300 out: direct, and through the relay over every transport, all in one process
//! on one thread. `cargo xtask perf relay` measures the parts as separate processes.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::expect_used, reason = "a bench without its chain has nothing to measure")]

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use edge_csi_benches::chain::{Chain, ChainKind};
use edge_csi_benches::load;
use futures_util::StreamExt;

fn relay(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("relay");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(20);
    for kind in ChainKind::ALL {
        let chain = runtime.block_on(Chain::start(kind)).expect("a chain");
        let channel = runtime.block_on(load::connect(chain.endpoint())).expect("a connection");
        for in_flight in [1, 16, 256] {
            group.bench_function(BenchmarkId::new(kind.name(), in_flight), |bencher| {
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
