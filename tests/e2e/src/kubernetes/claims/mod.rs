//! Many claims at once through the stock provisioner: with a driver beside it, and with an equal driver behind our relay.
//!
//! All claims exist before the provisioner starts, so that it makes all its calls as fast as it can; its limits are raised. The
//! driver needs 200 ms for each call. A round prints the seconds since the start of the provisioner, and the processor time until
//! all claims are bound. The other sidecars of the cluster do not run meanwhile. The test compares no times.
//!
//! `EDGE_CSI_CLAIMS=1000` makes a round larger, and `EDGE_CSI_ROUNDS=3` repeats each way, in turn. The binaries of a test are not
//! optimised; `EDGE_CSI_PROGRAMS=DIR` names a folder with the optimised ones of the relay.

mod figures;
mod path;
mod round;

use std::time::Duration;

use serde_json::json;

use self::figures::{Figures, HEAD, ratios};
use self::path::{Path, Way};
use super::cluster::{Cluster, Findings};
use super::kills::number;
use super::objects::{self, CLASSES, class_of};
use crate::error::E2eError;
use crate::setup::Setup;
use crate::table;

/// The variables, and their defaults.
const CLAIMS: (&str, u64) = ("EDGE_CSI_CLAIMS", 100);
const ROUNDS: (&str, u64) = ("EDGE_CSI_ROUNDS", 1);
const PROGRAMS: &str = "EDGE_CSI_PROGRAMS";

/// How long the driver works on each call.
const WORK: Duration = Duration::from_millis(200);

/// Time limit for each step of a round.
const STEP: Duration = Duration::from_secs(300);

/// Runs the rounds of each way in turn, and notes the ratios of their medians.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    cluster.edge.kill_sidecars();
    let outcome = rounds(setup, cluster, findings);
    cluster.edge.restart_sidecars(setup)?;
    outcome.and_then(|()| cluster.clear(findings))
}

fn rounds(setup: &Setup<'_>, cluster: &Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let (claims, rounds) = (number(CLAIMS.0, CLAIMS.1)?, number(ROUNDS.0, ROUNDS.1)?);
    let claims = usize::try_from(claims).unwrap_or(usize::MAX);
    table::say(&format!(
        "{}={claims} {}={rounds} cargo test -p edge-csi-e2e --test kubernetes -- --ignored kubernetes-claims",
        CLAIMS.0, ROUNDS.0
    ));
    // The working directory of a test is its package.
    let programs = std::env::var_os(PROGRAMS).map(|folder| setup.components.root().join(folder));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|cause| E2eError::Runtime { cause })?;
    let _guard = runtime.enter();
    for way in Way::ALL {
        let mut class = objects::class(&class_of(way.driver()), way.driver(), &json!({}), "Delete");
        class["volumeBindingMode"] = json!("Immediate");
        cluster.api.create(CLASSES, &class)?;
    }
    table::say(HEAD);
    let mut done = Vec::new();
    for number in 0..rounds {
        for way in Way::ALL {
            let path = Path::start(setup, way, programs.as_deref(), number)?;
            let figures = round::run(setup, cluster, findings, path, (claims, number))?;
            table::say(&figures.line(&way.to_string()));
            done.push((way, figures));
        }
    }
    for way in Way::ALL {
        cluster.api.delete(&format!("{CLASSES}/{}", class_of(way.driver())))?;
    }
    let of = |wanted: Way| -> Vec<&Figures> {
        done.iter().filter(|(way, _)| *way == wanted).map(|(_, figures)| figures).collect()
    };
    for way in [Way::Relayed, Way::Placed] {
        findings.note(true, format!("{way:<9} {}", ratios(&of(way), &of(Way::Direct))));
    }
    Ok(())
}
