//! The overlay `two-proxies` in place of `topology`: the active pod is lost, then both are replaced.

use std::time::Instant;

use super::Pods;
use crate::error::E2eError;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/edge-csi/leases/edge-csi-csi-hostpath";

const DEPLOYMENT: &str = "deployment/edge-csi-controller";

/// The claims, each with a pod of its name.
const CLAIMS: [&str; 3] = ["moved", "after-fail-over", "after-roll-out"];

impl Pods<'_> {
    /// Moves the installation to the overlay, as the guide says, and checks that claims are bound after each step.
    pub(super) fn two_proxies(&mut self) -> Result<(), E2eError> {
        let [moved, after_fail_over, after_roll_out] = CLAIMS;
        // Ends with the pod: two proxies with two stores must not run at once.
        self.kubectl("delete statefulset edge-csi-controller --namespace edge-csi --cascade=foreground")?;
        self.kubectl("apply -k overlays/two-proxies")?;
        self.rolled_out("both proxies are rolled out", DEPLOYMENT, "edge-csi")?;
        self.claimed(moved)?;

        let lease = self.cluster.plane.api.read(LEASE)?.unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let active = holder.rsplit_once('_').map_or("", |(pod, _)| pod);
        self.kubectl(&format!("delete pod {active} --namespace edge-csi --grace-period=0 --force"))?;
        let begun = Instant::now();
        self.claimed(after_fail_over)?;
        let words = format!(
            "the active pod {active} was deleted by force; the pod of a claim is ready {:.1?} later",
            begun.elapsed()
        );
        self.cluster.note(!active.is_empty(), words);

        self.kubectl(&format!("rollout restart {DEPLOYMENT} --namespace edge-csi"))?;
        self.rolled_out("both proxies are rolled out", DEPLOYMENT, "edge-csi")?;
        self.claimed(after_roll_out)?;
        self.kubectl(&format!("delete pod,pvc {}", CLAIMS.join(" ")))
    }
}
