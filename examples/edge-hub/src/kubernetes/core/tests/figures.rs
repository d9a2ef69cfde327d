//! What a large cluster costs.

use super::*;

/// Resident memory of this process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Prints what 1,000 nodes with 10,000 pods, claims, volumes and attachments need; run alone, with `--ignored --nocapture`.
#[test]
#[ignore = "prints figures, and asserts nothing about them"]
fn figures_of_a_thousand_nodes() {
    let before = resident();
    let mut core = synced(Bounds::default());
    apply(&mut core, driver("csi"));
    let started = std::time::Instant::now();
    for number in 0..10_000 {
        let (of, name) =
            (format!("edge-{}", number % 1000), format!("pvc-6d1a3a1c-9b7e-4a39-8f5e-{number:012}"));
        apply(&mut core, volume(&name, &format!("uid-{name}"), Some("csi")));
        apply(&mut core, claim(&name, &name));
        apply(&mut core, pod(&name, &of, &[&name]));
        apply(&mut core, attachment(&name, &of, true));
    }
    let (stored, took) = (resident(), started.elapsed());
    println!("objects: {} KiB, {took:?}", stored - before);
    let started = std::time::Instant::now();
    let mut subscriptions: Vec<_> =
        (0..1000).map(|number| core.subscribe(node(&format!("edge-{number}")), &Watch::default())).collect();
    let (mut objects, mut bytes) = (0, 0);
    for subscription in &mut subscriptions {
        let Next::Change(parts) = core.next(subscription) else { panic!() };
        objects += parts.iter().map(|part| part.changed.len()).sum::<usize>();
        bytes += parts.iter().map(prost::Message::encoded_len).sum::<usize>();
    }
    println!(
        "1000 nodes: {} KiB more, {:?}, {objects} objects and {bytes} bytes sent",
        resident() - stored,
        started.elapsed()
    );
    let started = std::time::Instant::now();
    for number in 0..10_000 {
        let name = format!("pvc-6d1a3a1c-9b7e-4a39-8f5e-{number:012}");
        apply(&mut core, attachment(&name, &format!("edge-{}", number % 1000), false));
        assert!(matches!(core.next(&mut subscriptions[number % 1000]), Next::Change(_)));
    }
    println!("one change, sent: {:?}", started.elapsed() / 10_000);
    core.on(Event::ListStarted(Kind::Pod));
}
