//! A node: calls that arrive from the hub go to the socket of a driver. The highest term of each driver's proxy is on disk,
//! so that a replaced proxy stays refused after a restart of this program.
//!
//! `cargo run -p embed --bin agent -- wss://hub:10000 edge-1 vendor.csi=unix:///plugins/vendor/csi.sock STATE CERT KEY CA`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi_proxy::{Dispatcher, DriverName, ServeCsi as _, Term, TermStore, TermStoreError};
use edge_transport::tls::ClientTls;
use edge_transport::{Peer, PeerId};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [hub, node, driver, state, certificate, key, authorities] = &arguments[..] else {
        println!("usage: agent HUB-URL NODE DRIVER=SOCKET STATE-DIRECTORY CERTIFICATE KEY AUTHORITIES");
        return Ok(ExitCode::FAILURE);
    };
    let (driver, socket) = driver.split_once('=').ok_or("the driver must be NAME=SOCKET")?;
    fs::create_dir_all(state)?;

    // ANCHOR: embed
    let terms = TermDirectory(Arc::new(Mutex::new(state.into())));
    let drivers = Dispatcher::new().with_terms(terms).with_driver(driver.parse()?, socket.parse()?);

    let tls = ClientTls::from_files(certificate, key, authorities)?;
    let builder = Peer::builder(PeerId::new(node)?).dial(hub.parse()?, &tls)?;
    let peer = builder.serve_csi(drivers.clone()).start()?;
    // ANCHOR_END: embed

    peer.connected().await?;
    println!("{node} is connected, for driver {driver}");
    tokio::signal::ctrl_c().await?;
    // The driver finishes what it has begun, and the answers still travel.
    drivers.drain(Duration::from_secs(30)).await;
    peer.close().await;
    Ok(ExitCode::SUCCESS)
}

/// The highest term of each driver, in a file of its name. One writer at a time.
#[derive(Debug, Clone)]
struct TermDirectory(Arc<Mutex<PathBuf>>);

impl TermDirectory {
    /// Runs blocking work on the directory. The work completes even if the future is dropped.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, TermStoreError> {
        let directory = Arc::clone(&self.0);
        let locked = move || work(&directory.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(locked).await.map_err(TermStoreError::new)?.map_err(TermStoreError::new)
    }
}

fn read(file: &Path) -> io::Result<Option<Term>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} has no term", file.display()));
    match fs::read_to_string(file) {
        Ok(text) => text.parse().ok().and_then(Term::new).ok_or_else(damaged).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[async_trait::async_trait]
impl TermStore for TermDirectory {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        let driver = driver.to_string();
        self.run(move |directory| read(&directory.join(driver))).await
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        let driver = driver.to_string();
        let raise = move |directory: &Path| {
            let (file, new) = (directory.join(&driver), directory.join(format!("{driver}~")));
            if read(&file)?.is_some_and(|known| known >= term) {
                return Ok(());
            }
            let mut written = File::create(&new)?;
            write!(written, "{}", term.get())?;
            written.sync_all()?;
            fs::rename(&new, &file)?;
            File::open(directory)?.sync_all()
        };
        self.run(raise).await
    }

    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        let driver = driver.to_string();
        let forget = move |directory: &Path| match fs::remove_file(directory.join(driver)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(directory)?.sync_all(),
        };
        self.run(forget).await
    }
}
