//! Operations over restarts: the journal, the driver that outlives them, and what comes between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::counting::{CountingDriver, call, create, delete};
use common::driver_name;
use csi_proto::csi::v1 as csi;
use csi_proxy::operation::journal::faulty::{self, Handle};
use csi_proxy::operation::journal::memory::MemoryDisk;
use csi_proxy::operation::journal::{Change, Journal, JournalError, JournalSettings, read};
use csi_proxy::operation::{Restored, Stage};
use csi_proxy::{Call, Code, Dispatcher, Fault, Outcome, Relay as _, SocketAddress};
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// A linger that does not end within a test: what is to be written is flushed.
const LONG: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A driver that outlives whoever calls it.
struct Vendor {
    runtime: Runtime,
    _directory: tempfile::TempDir,
    driver: CountingDriver,
    address: SocketAddress,
}

impl Vendor {
    fn start() -> Self {
        let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
        let (driver, address) = {
            let _here = runtime.enter();
            CountingDriver::holding(directory.path())
        };
        Self { runtime, _directory: directory, driver, address }
    }

    fn executions(&self, what: &str) -> usize {
        self.driver.executions(what)
    }
}

/// One life of an agent.
struct Life {
    runtime: Runtime,
    dispatcher: Dispatcher,
    journal: Handle,
}

impl Life {
    fn begin(vendor: &Vendor, journal: impl Journal + 'static, linger: Duration) -> Self {
        let runtime = runtime();
        let (journal, handle) = faulty::wrap(journal);
        let dispatcher = Dispatcher::new()
            .with_journal(journal, JournalSettings::default().with_linger(linger))
            .unwrap()
            .with_driver(driver_name(), vendor.address.clone());
        Self { runtime, dispatcher, journal: handle }
    }

    fn ask(&self, call: Call) -> JoinHandle<Outcome> {
        let dispatcher = self.dispatcher.clone();
        self.runtime.spawn(async move {
            match dispatcher.relay(call).await {
                Ok(replies) => replies.collect().await.1,
                Err(error) => error.into(),
            }
        })
    }

    fn answer(&self, call: Call) -> Outcome {
        let asked = self.ask(call);
        self.runtime.block_on(common::in_time(asked)).unwrap()
    }

    /// Asks, and leaves when the driver is at it.
    fn ask_and_leave(&self, vendor: &Vendor, call: Call, what: &str) {
        let times = vendor.executions(what) + 1;
        let asked = self.ask(call);
        self.runtime.block_on(vendor.driver.was_told(what, times));
        asked.abort();
        self.until(|life| life.dispatcher.operation_counts().askers == 0);
    }

    fn until(&self, reached: impl Fn(&Self) -> bool) {
        self.runtime.block_on(common::in_time(async {
            while !reached(self) {
                tokio::task::yield_now().await;
            }
        }));
    }

    fn flush(&self) {
        self.runtime.block_on(self.dispatcher.flush_journal()).unwrap();
    }

    /// As kill -9 and a power cut: nothing more is written, and nothing is finished.
    fn kill(self) {
        self.journal.cut_after(0);
        let Self { runtime, dispatcher, .. } = self;
        drop(dispatcher);
        runtime.shutdown_timeout(Duration::from_secs(20));
    }
}

fn stages(disk: &MemoryDisk) -> Vec<Stage> {
    let contents = read(&mut disk.open(), std::time::SystemTime::now()).unwrap();
    contents.restored.into_iter().map(|Restored { stage, .. }| stage).collect()
}

const CREATE: &str = "CreateVolume pvc-1";

/// What is done before the end, and what the next life is to find.
struct Case {
    at: &'static str,
    act: fn(&Vendor, &Life),
    /// Operations whose end is not known, each with whether the driver was certainly called.
    uncertain: &'static [bool],
    /// Executions when it has been asked for again.
    executions: usize,
}

fn accepted(vendor: &Vendor, life: &Life) {
    life.ask_and_leave(vendor, create("pvc-1"), CREATE);
}

fn started(vendor: &Vendor, life: &Life) {
    accepted(vendor, life);
    life.flush();
}

fn finished(vendor: &Vendor, life: &Life) {
    started(vendor, life);
    vendor.driver.let_go(1);
    life.until(|life| life.dispatcher.operation_counts().kept == 1);
}

fn finished_and_written(vendor: &Vendor, life: &Life) {
    finished(vendor, life);
    life.flush();
}

fn handed_out(vendor: &Vendor, life: &Life) {
    finished_and_written(vendor, life);
    assert!(life.answer(create("pvc-1")).is_ok());
}

fn handed_out_and_written(vendor: &Vendor, life: &Life) {
    handed_out(vendor, life);
    life.flush();
}

const CASES: [Case; 7] = [
    Case { at: "nothing yet", act: |_, _| {}, uncertain: &[], executions: 1 },
    Case { at: "accepted", act: accepted, uncertain: &[false], executions: 2 },
    Case { at: "started", act: started, uncertain: &[true], executions: 2 },
    Case { at: "finished, not written", act: finished, uncertain: &[true], executions: 2 },
    Case { at: "finished", act: finished_and_written, uncertain: &[], executions: 1 },
    // Its volume was not touched since, so that it is right, and that it was handed out is not known.
    Case { at: "handed out, not written", act: handed_out, uncertain: &[], executions: 1 },
    Case { at: "handed out", act: handed_out_and_written, uncertain: &[], executions: 2 },
];

/// Ends a life at each step of the journal, and sees what the next one makes of it.
fn die_at_each_step<J: Journal + 'static>(mut journal: impl FnMut(&Vendor) -> Box<dyn Fn() -> J>) {
    for Case { at, act, uncertain, executions } in CASES {
        let vendor = Vendor::start();
        let open = journal(&vendor);
        let life = Life::begin(&vendor, open(), Duration::ZERO);
        act(&vendor, &life);
        life.kill();
        vendor.driver.let_go(100);

        let life = Life::begin(&vendor, open(), Duration::ZERO);
        let found: Vec<_> = life.dispatcher.uncertain_operations().iter().map(|u| u.started).collect();
        assert_eq!(found, uncertain, "{at}");
        assert!(life.answer(create("pvc-1")).is_ok(), "{at}");
        assert_eq!(vendor.executions(CREATE), executions, "{at}");
        assert_eq!(life.dispatcher.operation_counts(), Default::default(), "{at}");
        assert!(life.answer(create("pvc-1")).is_ok(), "{at}");
        assert_eq!(vendor.executions(CREATE), executions + 1, "{at}: an answer is handed out once");
        life.flush();
        life.kill();
        let mut rows = 0;
        open().load(&mut |_, _| rows += 1).unwrap();
        assert_eq!(rows, 0, "{at}: nothing is left behind");
    }
}

/// Anchors (f) 7, the agent's part: killed at each step of the journal. The retry has the operation done again once, or gets the
/// answer that was there.
#[test]
fn killed_at_each_step_of_the_journal_an_operation_is_done_again_once_or_its_answer_handed_out() {
    die_at_each_step(|_| {
        let disk = MemoryDisk::default();
        Box::new(move || disk.open())
    });
}

/// Anchors (f) 7, the agent's part, with the journal on a disk.
#[cfg(feature = "redb")]
#[test]
fn killed_at_each_step_with_a_journal_on_disk_it_is_the_same() {
    use csi_proxy::operation::journal::redb::RedbJournal;
    die_at_each_step(|vendor| {
        let path = vendor.address.path().with_file_name("operations.redb");
        Box::new(move || RedbJournal::open(&path).unwrap())
    });
}

#[test]
fn a_void_answer_is_off_the_disk_before_the_driver_is_called() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    finished_and_written(&vendor, &life);
    assert!(matches!(&stages(&disk)[..], [Stage::Finished(_)]));
    let deleting = life.ask(delete("vol-pvc-1"));
    life.runtime.block_on(vendor.driver.was_told("DeleteVolume vol-pvc-1", 1));
    assert!(!stages(&disk).iter().any(|stage| matches!(stage, Stage::Finished(_))), "{:?}", stages(&disk));
    drop(deleting);
    life.kill();
    vendor.driver.let_go(100);
    let life = Life::begin(&vendor, disk.open(), LONG);
    assert!(life.answer(create("pvc-1")).is_ok());
    assert_eq!(vendor.executions(CREATE), 2, "the volume is gone: it is made again");
}

#[test]
fn an_answer_that_was_handed_out_is_off_the_disk_before_its_volume_is_touched() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    handed_out(&vendor, &life);
    assert!(matches!(&stages(&disk)[..], [Stage::Finished(_)]), "the removal waits for others");
    let _deleting = life.ask(delete("vol-pvc-1"));
    life.runtime.block_on(vendor.driver.was_told("DeleteVolume vol-pvc-1", 1));
    assert!(!stages(&disk).iter().any(|stage| matches!(stage, Stage::Finished(_))), "{:?}", stages(&disk));
}

#[test]
fn without_linger_an_operation_is_on_the_disk_before_the_driver_is_called() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), Duration::ZERO);
    let _asked = life.ask(create("pvc-1"));
    life.runtime.block_on(vendor.driver.was_told(CREATE, 1));
    assert_eq!(stages(&disk).len(), 1);
}

#[test]
fn what_is_over_within_the_linger_leaves_no_trace() {
    let vendor = Vendor::start();
    vendor.driver.let_go(1000);
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    for number in 0..50 {
        assert!(life.answer(create(&format!("pvc-{number}"))).is_ok());
    }
    life.flush();
    assert_eq!(disk.commits(), 0);
}

#[test]
fn a_life_that_ends_well_leaves_its_kept_answers_on_the_disk() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    finished(&vendor, &life);
    drop(life);
    assert!(matches!(&stages(&disk)[..], [Stage::Finished(_)]));
}

#[test]
fn a_failed_journal_refuses_nothing_but_what_would_make_an_answer_on_the_disk_wrong() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    finished_and_written(&vendor, &life);
    vendor.driver.let_go(1000);
    life.journal.fail(faulty::Fault::Refused);
    life.journal.refuse_reopening(true);
    for volume in ["vol-pvc-1", "vol-pvc-1"] {
        let refused = life.answer(delete(volume));
        assert!(matches!(refused.fault(), Some(Fault::JournalFailed { .. })), "{refused:?}");
        assert_eq!(refused.code, Code::UNAVAILABLE);
        assert!(life.dispatcher.journal_failure().is_some());
    }
    assert!(life.answer(delete("another")).is_ok());
    assert!(life.answer(create("another")).is_ok());
    assert_eq!(vendor.executions("DeleteVolume vol-pvc-1"), 0);
    assert!(life.runtime.block_on(life.dispatcher.reopen_journal()).is_err());
    assert!(life.dispatcher.journal_failure().is_some());

    life.journal.refuse_reopening(false);
    life.runtime.block_on(life.dispatcher.reopen_journal()).unwrap();
    assert_eq!(life.dispatcher.journal_failure(), None);
    assert_eq!(stages(&disk), []);
    assert!(life.answer(delete("vol-pvc-1")).is_ok());
    drop(life.runtime.block_on(life.dispatcher.relay(create("later"))).unwrap());
    life.flush();
    assert!(matches!(&stages(&disk)[..], [Stage::Finished(_)]), "it is written again");
}

/// A journal whose code is wrong.
struct Broken;

impl Journal for Broken {
    fn load(&mut self, _: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError> {
        Ok(())
    }
    fn commit(&mut self, _: &[Change]) -> Result<(), JournalError> {
        panic!("on purpose")
    }
    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        Ok(Vec::new())
    }
    fn reopen(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        0
    }
}

#[test]
fn a_journal_that_panics_counts_as_failed_and_holds_up_nobody() {
    let vendor = Vendor::start();
    vendor.driver.let_go(10);
    let life = Life::begin(&vendor, Broken, Duration::ZERO);
    for _ in 0..3 {
        assert!(life.answer(create("pvc-1")).is_ok());
    }
    assert!(life.dispatcher.journal_failure().unwrap().contains("panicked"));
    assert!(life.runtime.block_on(life.dispatcher.flush_journal()).is_err());
    assert!(life.runtime.block_on(life.dispatcher.reopen_journal()).is_err());
}

#[test]
fn what_cannot_be_read_is_set_aside_and_the_rest_is_used() {
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    finished_and_written(&vendor, &life);
    life.kill();
    disk.overwrite(77, b"junk");
    let life = Life::begin(&vendor, disk.open(), LONG);
    assert_eq!(life.dispatcher.operation_counts().kept, 1);
    assert_eq!(disk.open().aside().unwrap(), [(77, b"junk".to_vec())]);
    assert!(life.answer(create("pvc-1")).is_ok());
    assert_eq!(vendor.executions(CREATE), 1);
}

/// Anchors (f) 13, the journal's part: no secret, no parameter and no word of a failure is on the disk.
#[test]
fn the_journal_holds_no_request_and_no_word_of_a_failure() {
    const CANARY: &str = "canary-6c1b";
    let map = || [("key".to_owned(), CANARY.to_owned())].into();
    let request = |name: &str| csi::CreateVolumeRequest {
        name: name.to_owned(),
        parameters: map(),
        secrets: map(),
        mutable_parameters: map(),
        ..Default::default()
    };
    let vendor = Vendor::start();
    let disk = MemoryDisk::default();
    let life = Life::begin(&vendor, disk.open(), LONG);
    let seen = || {
        life.flush();
        let rows = disk.rows();
        let found =
            rows.iter().any(|(_, row)| row.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()));
        assert!(!found, "{rows:?}");
        rows.len()
    };
    life.ask_and_leave(&vendor, call("CreateVolume", &request("good")), "CreateVolume good");
    assert_eq!(seen(), 1);
    vendor.driver.let_go(1);
    life.until(|life| life.dispatcher.operation_counts().kept == 1);
    assert_eq!(seen(), 1);
    vendor.driver.fail_next(tonic::Status::internal(CANARY));
    life.ask_and_leave(&vendor, call("CreateVolume", &request("bad")), "CreateVolume bad");
    assert_eq!(seen(), 2);
    vendor.driver.let_go(1);
    life.until(|life| life.dispatcher.operation_counts().kept == 2);
    assert_eq!(seen(), 1, "the failure is in memory alone");
    let outcome = life.answer(call("CreateVolume", &request("bad")));
    assert_eq!((outcome.code, &*outcome.message), (Code::INTERNAL, CANARY));
    let decoded = csi::CreateVolumeRequest::decode(&*request("x").encode_to_vec()).unwrap();
    assert_eq!(decoded.secrets["key"], CANARY, "it was sent");
    drop(vendor.runtime);
}
