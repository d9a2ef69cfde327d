//! A random walk of several proxies on a few rows, with lost requests and answers.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;

const SEEDS: u64 = 15;
const STEPS: usize = 100;
const PROXIES: usize = 3;

/// What a proxy believes about the rows.
type Known = BTreeMap<Subject, (Revision, Placement)>;

/// The rows in truth.
fn truth(rows: Vec<Row>) -> Known {
    rows.into_iter().map(|row| (row.key, (row.revision, row.placement.unwrap()))).collect()
}

fn placement(rng: &mut Rng) -> Placement {
    let id = format!("vol-{}", rng.u64(..1000)).into();
    let status = match rng.u64(..4) {
        0 => Status::Pending,
        1 => Status::Created { id },
        2 => Status::Deleted { id, at: UNIX_EPOCH + Duration::from_secs(rng.u64(..1000)) },
        _ => Status::Lost { id },
    };
    let node = node(&format!("edge-{}", rng.u64(..3)));
    Placement { node, digest: Digest::from_bytes([rng.u8(..); 32]), status }
}

async fn run(seed: u64) -> Result<(usize, usize), String> {
    let mut rng = Rng::with_seed(seed);
    let api = FakeApi::default();
    let stores: Vec<KubernetesStore> = (0..PROXIES).map(|_| store(&api)).collect();
    let mut known = vec![Known::new(); PROXIES];
    let (mut conflicts, mut failures) = (0, 0);
    for step in 0..STEPS {
        let at = rng.usize(..PROXIES);
        let (proxy, known) = (&stores[at], &mut known[at]);
        let id: Box<str> = format!("n-{}", rng.u64(..2)).into();
        let key = if rng.bool() { Subject::VolumeName(id) } else { Subject::Volume(id) };
        let expected = known.get(&key).map(|(revision, _)| revision.clone());
        let new = (expected.is_none() || rng.u64(..4) > 0).then(|| placement(&mut rng));
        let method = match (&expected, &new) {
            (None, _) => Method::POST,
            (Some(_), Some(_)) => Method::PUT,
            (Some(_), None) => Method::DELETE,
        };
        let fault = match rng.u64(..6) {
            0 => Some(Fault::AnswerLost),
            1 => Some(Fault::Unsent),
            2 => Some(Fault::Refused(503)),
            _ => None,
        };
        fault.into_iter().for_each(|fault| api.fail(method.clone(), fault));
        let before = truth(proxy.list().await.map_err(|error| error.to_string())?);
        let change = Change { key: key.clone(), expected: expected.clone(), placement: new.clone() };
        let written = proxy.write(&change).await;
        api.clear_faults();
        let after = truth(proxy.list().await.map_err(|error| error.to_string())?);
        let fail = |what: &str| Err(format!("step {step}, proxy {at}: {what}: {change:?} gave {written:?}"));
        let fits = before.get(&key).map(|(revision, _)| revision) == expected.as_ref();
        let others = |rows: &Known| {
            let mut rows = rows.clone();
            rows.remove(&key);
            rows
        };
        if others(&before) != others(&after) {
            return fail("another row has changed");
        }
        match &written {
            Ok(Written::Done(revision)) => {
                let expected = new.map(|placement| (revision.clone(), placement));
                if !fits || after.get(&key) != expected.as_ref() {
                    return fail("a write of another version, or of another content");
                }
                match expected {
                    Some(row) => drop(known.insert(key, row)),
                    None => drop(known.remove(&key)),
                }
            }
            Ok(Written::Conflict(row)) => {
                let row = row.clone().map(|row| (row.revision, row.placement.unwrap()));
                if fits || before.get(&key) != row.as_ref() || before != after {
                    return fail("a conflict without cause, or with another row");
                }
                conflicts += 1;
                match row {
                    Some(row) => drop(known.insert(key, row)),
                    None => drop(known.remove(&key)),
                }
            }
            Err(_) => {
                failures += 1;
                let is_written = before != after;
                if is_written && (!fits || after.get(&key).map(|(_, placement)| placement) != new.as_ref()) {
                    return fail("a failed write of another version, or of another content");
                }
            }
        }
    }
    Ok((conflicts, failures))
}

/// A write applies only to the version that it names, whatever was lost before.
#[tokio::test]
async fn proxies_never_overwrite_each_other() {
    let seeds = match std::env::var("STORE_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..SEEDS,
    };
    let (mut conflicts, mut failures) = (0, 0);
    for seed in seeds {
        match run(seed).await {
            Ok(found) => (conflicts, failures) = (conflicts + found.0, failures + found.1),
            Err(what) => panic!(
                "{what}\nreplay with: STORE_SEED={seed} cargo test -p csi-proxy --features kubernetes,testing --lib kubernetes::tests::walk"
            ),
        }
    }
    assert!(conflicts > 0 && failures > 0, "{conflicts} conflicts, {failures} failures");
}
