//! Tests other than csi-sanity: third-party drivers and plugins with volumes and the registry.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use edge_csi_tests::volumes::node::{Ended, NodeOptions, NodeProcess, log_of};
use edge_csi_tests::wait;

use super::component::{Components, Part};
use super::driver::{DriverUnderTest, MOCK, REGISTRATION};
use super::error::E2eError;
use super::sanity;
use super::setup::Setup;
use super::table::Fact;
use super::{offline, on_runtime, sidecars, trace};

/// Time limit for anything that should happen immediately.
const SOON: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A volume of the mock driver is published. The mock reports the mount without making it.
    LyingDriver,
    /// Kubelet's example plugin registers with the agent, is called, and exits.
    ExamplePlugin,
    /// One random trace of volume operations runs on several drivers.
    Trace,
    /// A driver returns every status code to the sidecars' code.
    Codes,
    /// Every fault of the relay is injected under the sidecars' code.
    Faults,
    /// The sidecars run while the edge is offline, and work when it connects.
    Offline,
}

impl Scenario {
    pub(crate) const ALL: [Self; 6] =
        [Self::LyingDriver, Self::ExamplePlugin, Self::Trace, Self::Codes, Self::Faults, Self::Offline];

    /// Returns true if the scenario mounts.
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::Trace)
    }

    /// Builds the programs that the scenario needs.
    pub(crate) fn build(self, components: &Components) -> Result<(), E2eError> {
        match self {
            Self::LyingDriver | Self::Trace => components.build(Part::MockDriver),
            Self::ExamplePlugin => {
                components.build(Part::CsiSanity)?;
                components.build(Part::ExamplePlugin)
            }
            Self::Codes | Self::Faults | Self::Offline => components.build(Part::Sidecars),
        }
    }

    /// Runs the scenario, and returns its facts.
    pub(crate) fn run(self, setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
        match self {
            Self::Trace => trace::run(setup),
            Self::Codes => sidecars::compare_codes(setup),
            Self::Offline => offline::run(setup),
            Self::Faults => sidecars::inject_faults(setup),
            Self::LyingDriver => {
                let driver = DriverUnderTest::mock(setup)?;
                let facts = on_runtime(lie(setup, &driver));
                let stopped = driver.stop();
                facts.and_then(|facts| stopped.map(|()| facts))
            }
            Self::ExamplePlugin => {
                let registry = setup.scratch.join("registry");
                let driver = DriverUnderTest::registered(setup, &registry)?;
                let facts = register(setup, &driver, &registry);
                let stopped = driver.stop();
                facts.and_then(|facts| stopped.map(|()| facts))
            }
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LyingDriver => "volumes-mock",
            Self::ExamplePlugin => "registry-plugin",
            Self::Trace => "volumes-trace",
            Self::Codes => "sidecars-codes",
            Self::Faults => "sidecars-faults",
            Self::Offline => "sidecars-offline",
        })
    }
}

fn fact(right: bool, words: impl Into<String>) -> Fact {
    Fact { words: words.into(), right }
}

async fn lie(setup: Setup<'_>, driver: &DriverUnderTest) -> Result<Vec<Fact>, E2eError> {
    const CONTRADICTED: &str = "NodePublishVolume: OK, but";
    let mut options = NodeOptions::new(&setup.components.volume_node, setup.scratch, MOCK, &driver.node);
    options.log = setup.logs.join("node.log");
    let ended = |Ended| E2eError::NodeEnded { tail: log_of(&options.log) };
    let mut node = NodeProcess::start(&options).await.map_err(ended)?;
    let created = node.ask(&format!("create {} lie", driver.node.display())).await.map_err(ended)?;
    let id = created.unwrap_or_default();
    let published = node.ask(&format!("publish {MOCK} {id} a pods/a/mount rw")).await.map_err(ended)?;
    let mut facts = vec![match published {
        Ok(target) => fact(false, format!("publish succeeded at {target}, although the mock mounts nothing")),
        Err(said) => fact(said.contains(CONTRADICTED), format!("publish: {said}")),
    }];
    // While a call runs, the explanation describes that call.
    let explained = wait::until(&format!("the explanation says {CONTRADICTED:?}"), async || {
        let said = node.ask(&format!("explain {MOCK} {id}")).await.ok()?.ok()?;
        said.contains(CONTRADICTED).then_some(said)
    })
    .await;
    facts.push(fact(true, format!("explain: {explained}")));
    let unpublished = node.ask(&format!("unpublish {MOCK} {id} a")).await.map_err(ended)?;
    facts.push(match unpublished {
        Ok(_) => fact(true, "unpublish: OK"),
        Err(said) => fact(false, format!("unpublish: {said}")),
    });
    node.wait_until_empty().await.map_err(ended)?;
    facts.push(fact(true, "no volume is managed any more"));
    let places = ["v", "pods"].map(|place| entries(&setup.scratch.join(place)));
    let left: Vec<String> = places.into_iter().flatten().collect();
    facts.push(fact(left.is_empty(), format!("left at targets and staging paths: {left:?}")));
    // The mock itself does not report its calls.
    let log = fs::read_to_string(&options.log).unwrap_or_default();
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"] {
        facts.push(fact(log.contains(&format!("after {method}")), format!("the mock was called: {method}")));
    }
    Ok(facts)
}

/// Lists the entries of all folders in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let entries = inner.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path().display().to_string()).collect()
}

fn register(setup: Setup<'_>, driver: &DriverUnderTest, registry: &Path) -> Result<Vec<Fact>, E2eError> {
    let logged = |process: &str, text: &str| {
        let path = setup.logs.join(format!("{process}.log"));
        wait::poll(SOON, || fs::read_to_string(&path).ok()?.contains(text).then_some(())).is_some()
    };
    let mut facts = vec![
        fact(logged("plugin", "notified: registered"), "the plugin is notified that it is registered"),
        fact(logged("agent", "driver registered"), "the agent has registered the driver"),
    ];
    if let Some(controller) = driver.controller.as_deref() {
        let outcomes = sanity::identity(controller, setup)?;
        let said = format!(
            "{} of {} identity cases through the relay",
            outcomes.run() - outcomes.failed(),
            outcomes.run()
        );
        facts.push(fact(outcomes.failed() == 0, said));
    }
    let socket = registry.join(REGISTRATION);
    fs::remove_file(&socket).map_err(|cause| E2eError::File { path: socket, cause })?;
    facts.push(fact(
        logged("agent", "driver deregistered"),
        "the driver is deregistered when its socket is removed",
    ));
    Ok(facts)
}
