//! The cloud side of KubeEdge: its definitions, and cloudcore.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use serde_json::json;

use super::network::ADDRESS;
use crate::deploy::inner_entries;
use crate::error::E2eError;
use crate::kubernetes::image;
use crate::kubernetes::part::{Part, Ready};
use crate::kubernetes::plane::{Plane, write};
use crate::setup::Setup;

/// The port for websockets of edgecore.
pub(super) const PORT: u16 = 10000;

/// The port where edgecore gets its certificate.
pub(super) const CERTIFICATES: u16 = 10002;

/// The port where the router receives POSTs for nodes. It listens once a rule exists.
pub(super) const ROUTER: u16 = 9443;

/// Time for which the router waits for the answer of a node, in seconds. The default is 60.
pub(super) const REST_TIMEOUT: u64 = 12;

/// Time limit for the start: cloudcore waits a random time of up to 9 s on purpose.
const START: Duration = Duration::from_secs(60);

/// cloudcore. Killed when dropped.
#[derive(Debug)]
pub(super) struct CloudCore {
    part: Part,
}

impl CloudCore {
    /// Starts cloudcore, and waits until nodes can connect. Its certificates and the token of the nodes are in Secrets that it
    /// creates itself.
    pub(super) fn start(setup: &Setup<'_>, plane: &Plane) -> Result<Self, E2eError> {
        let folder = setup.folder("cloudcore")?;
        let config = folder.join("cloudcore.yaml");
        // The default folder is that of edgecore too, whose authority without a key ends cloudcore when it starts again.
        let file = |name: &str| folder.join(name);
        let text = json!({
            "apiVersion": "cloudcore.config.kubeedge.io/v1alpha2",
            "kind": "CloudCore",
            "kubeAPIConfig": {"kubeConfig": plane.kubeconfig},
            "modules": {
                "cloudHub": {
                    "advertiseAddress": [ADDRESS],
                    "dnsNames": ["cloudcore"],
                    "tlsCAFile": file("ca.crt"),
                    "tlsCAKeyFile": file("ca.key"),
                    "tlsCertFile": file("cloudcore.crt"),
                    "tlsPrivateKeyFile": file("cloudcore.key"),
                },
                "iptablesManager": {"enable": false},
                // Without TLS and password.
                "router": {"enable": true, "address": "127.0.0.1", "port": ROUTER, "restTimeout": REST_TIMEOUT},
            },
        });
        write(&config, &text.to_string())?;
        let arguments = Arguments::new().pair("--config", &config);
        let program = &setup.components.cloudcore;
        let part = Part::start(setup, "cloudcore".to_owned(), program, arguments, Ready::AtOnce)?;
        let mut started = Self { part };
        started.ready()?;
        Ok(started)
    }

    /// Kills cloudcore: all nodes lose their connection.
    pub(super) fn kill(&mut self) {
        self.part.kill();
    }

    /// Restarts cloudcore, and waits until nodes can connect.
    pub(super) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.part.restart(setup)?;
        self.ready()
    }

    fn ready(&mut self) -> Result<(), E2eError> {
        self.part.ready_within(START, "its ports", || {
            [PORT, CERTIFICATES].iter().all(|port| TcpStream::connect((ADDRESS, *port)).is_ok())
        })
    }
}

/// Creates the definitions of KubeEdge from its module, and waits until the API server serves them. Returns their number.
pub(super) fn define(setup: &Setup<'_>, plane: &Plane) -> Result<usize, E2eError> {
    let files = inner_entries(&setup.components.kubeedge_definitions()?);
    for path in &files {
        let text =
            std::fs::read_to_string(path).map_err(|cause| E2eError::File { path: path.clone(), cause })?;
        plane.define(path.clone(), name_in(&text, path)?)?;
    }
    Ok(files.len())
}

/// Returns the name of the object in a manifest: the first one below `metadata`.
fn name_in<'a>(text: &'a str, path: &Path) -> Result<&'a str, E2eError> {
    let name = text.lines().find_map(|line| line.strip_prefix("  name: "));
    let cause = || std::io::ErrorKind::InvalidData.into();
    name.ok_or_else(|| E2eError::File { path: path.to_owned(), cause: cause() })
}

/// Returns the token with which edgecore gets its first certificate.
pub(super) fn token(setup: &Setup<'_>, plane: &Plane) -> Result<String, E2eError> {
    let path = "/api/v1/namespaces/kubeedge/secrets/tokensecret";
    plane
        .api
        .until(path, "with a token", START, |secret| secret["data"]["tokendata"].is_string().then_some(()))?;
    let mut kubectl = plane.client(setup, "kubectl");
    kubectl.args(["--namespace", "kubeedge", "get", "secret", "tokensecret", "--output"]);
    image::run(kubectl.arg("go-template={{.data.tokendata | base64decode}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_one_of_the_object() {
        let text = "---\nkind: X\nmetadata:\n  name: rules.kubeedge.io\nspec:\n  versions:\n  - name: v1\n";
        assert_eq!(name_in(text, Path::new("x")).ok(), Some("rules.kubeedge.io"));
        assert!(name_in("kind: X\n", Path::new("x")).is_err());
    }
}
