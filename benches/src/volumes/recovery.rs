//! Recovers a node with many volumes after its process ended: the records are on disk, some of them damaged, and the mounts
//! exist.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redb::{Database, ReadableDatabase, TableDefinition};
use serde::{Deserialize, Serialize};
use volume_manager::advanced::node::Record;
use volume_manager::advanced::store::envelope;
use volume_manager::driver::{Attach, DriverPolicy, NoSecrets};
use volume_manager::mounts::{MemoryMounts, MountIdentity};
use volume_manager::node::{DesiredVolume, Parts, VolumeSettings, VolumeState, Volumes};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::memory::MemoryDisk;
use volume_manager::store::redb as store;
use volume_manager::store::{Change, RecordKey};

use super::status::reset_peak_memory;
use super::{DRIVER, Fixture, Manager, Measured, MountBackend, VolumeClient, consumer, peak_memory, spec};

/// The result of opening many records.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovered {
    /// Volumes that are published.
    pub recovered: usize,
    /// Records that cannot be read.
    pub quarantined: usize,
    /// Calls to the driver. A few query its identity; none is for a volume.
    pub calls: u64,
    /// Consumers that the desired set changed: zero, since the desired set equals the records.
    pub changed: usize,
    /// Time until the records are read.
    pub opened: Duration,
    /// Total time until all volumes are compared with the mount table, with a connected driver.
    pub checked: Duration,
    /// Total time until the desired set is accepted.
    pub reconciled: Duration,
    /// Bytes of the store's file.
    pub file_bytes: u64,
    /// Resident bytes before the records are opened, including the driver and the mounts in memory.
    pub before_bytes: u64,
    /// Peak of the resident bytes until the desired set is accepted.
    pub peak_bytes: u64,
}

/// The table with the records in the store's file. Rows are damaged through redb, so that the checksums of pages stay
/// valid.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// Opens `count` recorded and mounted volumes with `damaged` unreadable records, and sets the same volumes as the desired set.
///
/// # Errors
/// Returns an error if the volumes cannot be opened.
pub async fn recover(count: usize, damaged: usize) -> Measured<Recovered> {
    let fixture = Fixture::start(false).await?;
    let file = fixture.path("volumes.redb");
    let (changes, mounts) = records(&fixture, count).await?;
    store::open(&file)?.commit(&changes)?;
    let step = count.checked_div(damaged).unwrap_or(count).max(1);
    damage_rows(&file, changes.iter().step_by(step).take(damaged).map(Change::key))?;
    drop(changes);
    let desired: Vec<_> = (0..count)
        .filter(|number| !(number % step == 0 && number / step < damaged))
        .map(|number| {
            let consumers = vec![consumer(fixture.root(), number)?];
            Ok(DesiredVolume { spec: spec(number, Attach::NotRequired)?, consumers })
        })
        .collect::<Measured<_>>()?;
    let calls_before = fixture.driver().calls();
    let before_bytes = reset_peak_memory()?;

    let began = Instant::now();
    let parts = Parts::new(store::open(&file)?, mounts, NoSecrets);
    let (volumes, run) = Volumes::open(parts, VolumeSettings::new(fixture.root().join("volumes"))).await?;
    let run = tokio::spawn(run);
    let opened = began.elapsed();
    let endpoint = DriverEndpoint::from_path(fixture.socket())?;
    volumes.driver_registered(DRIVER.parse()?, endpoint, DriverPolicy::default()).await?;
    // All volumes of a driver are compared with the mount table in one step, when the driver is connected.
    while volumes.counts().await?.dormant > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let checked = began.elapsed();
    let answer = volumes.reconcile(desired).await?;
    let reconciled = began.elapsed();

    let counts = volumes.counts().await?;
    run.abort();
    Ok(Recovered {
        recovered: counts.states.get(&VolumeState::Published).copied().unwrap_or_default(),
        quarantined: counts.quarantined,
        calls: fixture.driver().calls() - calls_before,
        changed: answer.wanted + answer.released + answer.refused.len(),
        opened,
        checked,
        reconciled,
        file_bytes: std::fs::metadata(&file)?.len(),
        before_bytes,
        peak_bytes: peak_memory()?,
    })
}

/// The result of salvaging a damaged file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Salvage {
    /// Intact records that were found.
    pub salvaged: usize,
    /// Time to detect the damage, to search the file, and to copy the records to a new file.
    pub elapsed: Duration,
}

/// Flips bits in `damaged` of `count` records in the file itself, and salvages the others.
///
/// # Errors
/// Returns an error if nothing can be salvaged.
pub async fn salvage(count: usize, damaged: usize) -> Measured<Salvage> {
    let fixture = Fixture::start(false).await?;
    let file = fixture.path("volumes.redb");
    let (changes, _) = records(&fixture, count).await?;
    store::open(&file)?.commit(&changes)?;
    let mut bytes = std::fs::read(&file)?;
    let starts: Vec<usize> = bytes
        .windows(envelope::MAGIC.len())
        .enumerate()
        .filter(|(_, window)| *window == envelope::MAGIC)
        .map(|(at, _)| at)
        .collect();
    let step = starts.len().checked_div(damaged).unwrap_or(1).max(1);
    for at in starts.into_iter().step_by(step).take(damaged) {
        if let Some(byte) = bytes.get_mut(at + envelope::HEADER_BYTES + 60) {
            *byte ^= 0x10;
        }
    }
    std::fs::write(&file, bytes)?;
    let began = Instant::now();
    let (_, recreated) = store::open_or_recreate(&file)?;
    let salvaged = recreated.ok_or("the damaged file was opened without a salvage")?.salvaged;
    Ok(Salvage { salvaged, elapsed: began.elapsed() })
}

/// Returns records and mounts as if each volume had been published. One real record is the template of all.
pub(super) async fn records(fixture: &Fixture, count: usize) -> Measured<(Vec<Change>, MemoryMounts)> {
    let MountBackend::Memory { mounts, .. } = fixture.driver().backend() else {
        return Err("the driver mounts on Linux; expected a driver that mounts in memory".into());
    };
    let (disk, root) = (MemoryDisk::default(), fixture.root());
    let manager =
        Manager::start(fixture.driver(), mounts.clone(), &fixture.socket(), root, disk.open()).await?;
    manager.mount(count).await?;
    let loaded = disk.open().load()?;
    let (key, template) =
        loaded.records.into_iter().next().ok_or("the store has no record of a mounted volume")?;
    let template = Record::decode(&template)?;
    manager.unmount(count).await?;
    let mut changes = Vec::with_capacity(count);
    for number in 0..count {
        let mut record = template.clone();
        record.spec = spec(number, Attach::NotRequired)?;
        record.directory = format!("{number:032x}");
        let staging = root.join("volumes").join(DRIVER).join(&record.directory).join("staging");
        let consumer = consumer(root, number)?;
        let target = consumer.target_path().as_path();
        let file_system = mounts.file_system("ext4", "/dev/volume", false);
        mounts.make_directory(&staging)?;
        mounts.mount(file_system, &staging, false)?;
        mounts.make_directory(target)?;
        mounts.bind_over(&staging, target, false)?;
        let device = file_system.device();
        let identity = MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/volume".into());
        record.staged = Some(identity.clone());
        let (_, mut holder) = record.consumers.pop_first().ok_or("the template record has no consumer")?;
        let (_, state) = record.snapshot.targets.pop_first().ok_or("the template record has no target")?;
        holder.mounted = Some(identity);
        holder.spec = Arc::clone(&consumer);
        record.consumers.insert(consumer.id().clone(), holder);
        record.snapshot.targets.insert(consumer.id().clone(), state);
        let name = format!("{DRIVER}/{}", record.directory);
        changes.push(Change::Put(RecordKey::new(key.kind(), name)?, record.encode()));
    }
    Ok((changes, mounts.clone()))
}

/// Flips a bit in the middle of each of these records.
fn damage_rows<'k>(file: &Path, keys: impl Iterator<Item = &'k RecordKey>) -> Measured<()> {
    let database = Database::open(file)?;
    let read = database.begin_read()?.open_table(RECORDS)?;
    let write = database.begin_write()?;
    let mut table = write.open_table(RECORDS)?;
    for key in keys {
        let mut row = read.get(key.as_row())?.ok_or("the table has no record to damage")?.value().to_vec();
        let middle = row.len() / 2;
        if let Some(byte) = row.get_mut(middle) {
            *byte ^= 0x10;
        }
        table.insert(key.as_row(), &row[..])?;
    }
    drop(table);
    write.commit()?;
    Ok(())
}
