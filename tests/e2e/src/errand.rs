//! Legs that are no run of csi-sanity: what other people's drivers and plugins meet in volumes and in the registry.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use edge_csi_tests::volumes::node::{Ended, NodeOptions, NodeProcess, log_of};
use edge_csi_tests::wait;

use super::component::{Components, Part};
use super::error::RealError;
use super::sanity;
use super::setup::Setup;
use super::stack::{MOCK, REGISTRATION, Stack};
use super::table::Fact;
use super::{offline, sidecars, trace};

/// Time for what should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    /// A volume of the mock driver is published, which the mock says it does, and does not.
    LyingDriver,
    /// Kubelet's example plugin registers with the agent, is called, and goes.
    ExamplePlugin,
    /// One random trace of orders to volumes is put to several drivers.
    Trace,
    /// A driver answers with every code there is, to the code of the sidecars.
    Codes,
    /// Everything that can go wrong on our way does, under the code of the sidecars.
    Faults,
    /// The sidecars run with the edge off, and go to work when it comes.
    Offline,
}

impl Errand {
    pub(crate) const ALL: [Self; 6] =
        [Self::LyingDriver, Self::ExamplePlugin, Self::Trace, Self::Codes, Self::Faults, Self::Offline];

    /// Whether it mounts.
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::Trace)
    }

    /// Builds what it needs.
    pub(crate) fn build(self, components: &Components) -> Result<(), RealError> {
        match self {
            Self::LyingDriver | Self::Trace => components.build(Part::MockDriver),
            Self::ExamplePlugin => {
                components.build(Part::CsiSanity)?;
                components.build(Part::ExamplePlugin)
            }
            Self::Codes | Self::Faults | Self::Offline => components.build(Part::Sidecars),
        }
    }

    /// Does it, and answers what was found.
    pub(crate) fn run(self, setup: Setup<'_>) -> Result<Vec<Fact>, RealError> {
        match self {
            Self::Trace => trace::run(setup),
            Self::Codes => sidecars::compare_codes(setup),
            Self::Offline => offline::run(setup),
            Self::Faults => sidecars::make_trouble(setup),
            Self::LyingDriver => {
                let stack = Stack::mock(setup)?;
                let facts = on_runtime(lie(setup, &stack));
                let stopped = stack.stop();
                facts.and_then(|facts| stopped.map(|()| facts))
            }
            Self::ExamplePlugin => {
                let registry = setup.scratch.join("registry");
                let stack = Stack::registered(setup, &registry)?;
                let facts = register(setup, &stack, &registry);
                let stopped = stack.stop();
                facts.and_then(|facts| stopped.map(|()| facts))
            }
        }
    }
}

impl fmt::Display for Errand {
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

async fn lie(setup: Setup<'_>, stack: &Stack) -> Result<Vec<Fact>, RealError> {
    const CONTRADICTED: &str = "NodePublishVolume: OK, but";
    let mut options = NodeOptions::new(&setup.components.volume_node, setup.scratch, MOCK, &stack.node);
    options.log = setup.logs.join("node.log");
    let ended = |Ended| RealError::NodeEnded { tail: log_of(&options.log) };
    let mut node = NodeProcess::start(&options).await.map_err(ended)?;
    let created = node.ask(&format!("create {} lie", stack.node.display())).await.map_err(ended)?;
    let id = created.unwrap_or_default();
    let published = node.ask(&format!("publish {MOCK} {id} a pods/a/mount rw")).await.map_err(ended)?;
    let mut facts = vec![match published {
        Ok(target) => fact(false, format!("publish is believed, at {target}")),
        Err(said) => fact(said.contains(CONTRADICTED), format!("publish: {said}")),
    }];
    // While a call runs, the explanation is of that.
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
    node.forgets_all().await.map_err(ended)?;
    facts.push(fact(true, "nothing is looked after any more"));
    let places = ["v", "pods"].map(|place| entries(&setup.scratch.join(place)));
    let left: Vec<String> = places.into_iter().flatten().collect();
    facts.push(fact(left.is_empty(), format!("left at targets and staging paths: {left:?}")));
    // The mock itself does not tell what it was asked.
    let log = fs::read_to_string(&options.log).unwrap_or_default();
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"] {
        facts.push(fact(log.contains(&format!("after {method}")), format!("the mock was called: {method}")));
    }
    Ok(facts)
}

/// The tests have no runtime.
fn on_runtime<T>(work: impl Future<Output = Result<T, RealError>>) -> Result<T, RealError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|cause| RealError::Runtime { cause })?.block_on(work)
}

/// What is in the folders that are in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let entries = inner.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path().display().to_string()).collect()
}

fn register(setup: Setup<'_>, stack: &Stack, registry: &Path) -> Result<Vec<Fact>, RealError> {
    let logged = |process: &str, text: &str| {
        let path = setup.logs.join(format!("{process}.log"));
        wait::poll(SOON, || fs::read_to_string(&path).ok()?.contains(text).then_some(())).is_some()
    };
    let mut facts = vec![
        fact(logged("plugin", "told: registered"), "the plugin is told that it is registered"),
        fact(logged("agent", "driver registered"), "the agent has the driver"),
    ];
    if let Some(controller) = stack.controller.as_deref() {
        let outcomes = sanity::identity(controller, setup)?;
        let said = format!(
            "{} of {} identity cases through the relay",
            outcomes.run() - outcomes.failed(),
            outcomes.run()
        );
        facts.push(fact(outcomes.failed() == 0, said));
    }
    let socket = registry.join(REGISTRATION);
    fs::remove_file(&socket).map_err(|cause| RealError::File { path: socket, cause })?;
    facts.push(fact(logged("agent", "driver deregistered"), "it is gone with its socket"));
    Ok(facts)
}
