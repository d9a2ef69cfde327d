//! The parts that the crate itself is made of. **No stability promise:** any release may change or remove them.
//!
//! They are public for the simulation, the fuzz targets, the benchmarks and the reference programs of this project. A program
//! that keeps volumes published needs none of them.
//!
//! | Module | What |
//! |---|---|
//! | [`lifecycle`] | one volume with its consumers: selects the next call. One pure function, model-checked |
//! | [`node`] | all volumes of a node as a state machine without clock, sockets and tasks, and the records on disk |
//! | [`message`] | the desired volumes of a node, as messages over a session |
//! | [`driver`] | calls to a driver without the volumes, and a connector of your own |
//! | [`registry`] | the plugin registration as a state machine |
//! | [`mounts`] | the comparison of the mount table with the expected mounts |
//! | [`store`] | the envelopes of records, salvaging, and files of several tables |

/// The lifecycle of one volume with all its consumers: a state machine with one transition function, [`Volume::step`].
///
/// [`Volume::step`]: lifecycle::Volume::step
pub mod lifecycle {
    pub use crate::lifecycle::{
        Base, Call, Completed, Direction, DriverCapabilities, Effect, Event, Expansion, ExpansionPhase,
        FailedCall, LostMount, Outcome, Policy, RejectReason, Snapshot, Target, TargetState, Volume,
        WaitReason, Waiter, outcome_of,
    };
}

/// The state machine of all volumes of a node: requests and events in, actions out; and the durable records.
pub mod node {
    pub use crate::node::core::{
        Action, Answer, CallOrder, CheckError, CheckResult, CommitFailure, Epoch, Event, Inspect, Node,
        Observation, PathCheck, Query, Reply, ReplyTo, Request, Slot,
    };
    pub use crate::node::record::{Record, RecordError, RecordedConsumer, SCHEMA};
}

/// The messages between the controller of the desired volumes and the node.
///
/// The schema is `proto/edge_csi/volumes/v1/volumes.proto` of this crate, which documents the fields.
pub mod message {
    pub use crate::message::{
        Answer, ConsumerReport, DesiredSet, InvalidConsumer, InvalidDesired, InvalidMessage,
        MAX_ANSWER_BYTES, MAX_CONSUMERS, MAX_POLICIES, MAX_POLICY_BYTES, MAX_REQUEST_BYTES,
        MAX_TOKEN_REQUESTS, MAX_VOLUME_BYTES, MAX_VOLUMES, Quarantined, Reconciled, Refusal, Refused,
        Request, SERVICE, VolumeReport, VolumeReports, answer, consumer_bytes, policy_bytes, query, refusal,
        volume_bytes,
    };
}

/// The calls to one driver.
///
/// `Driver` dials the driver's socket and queries the driver's name and capabilities once
/// ([`DriverFacts`](crate::driver::DriverFacts)). The result is a `DriverConnection`. A request is built from an [`Operation`]
/// and the specs, according to the capabilities of the driver. A failed call is a [`CallError`], with the driver's code, if the
/// driver answered, and whether the call was sent at all.
///
/// [`Operation`]: driver::Operation
/// [`CallError`]: driver::CallError
pub mod driver {
    pub use crate::driver::call_error::{CallError, RequestError};
    pub use crate::driver::operation::Operation;
    pub use crate::driver::outcome::CallOutcome;
    #[cfg(feature = "runtime")]
    pub use crate::driver::{
        connect::{ConnectError, Driver},
        connection::DriverConnection,
    };
    #[cfg(feature = "runtime")]
    pub use crate::node::connector::{Connection, DriverConnector};
}

/// The registration sockets of a directory as a state machine.
pub mod registry {
    pub use crate::registry::core::{
        Action, Attempt, Event, Registry, SocketFile, SocketIdentity, SocketName,
    };
    pub use crate::registry::plugin::RejectReason;
}

/// Compares the mount table and a path with what should be there.
pub mod mounts {
    pub use crate::mounts::check::{Expectation, Expected, MountCheck, check_mount, check_unused};
}

/// The parts of the store on disk.
pub mod store {
    #[cfg(feature = "redb")]
    pub use crate::store::redb::{
        salvage::{MAX_SALVAGED_BYTES, Salvage, Salvaged, salvage},
        several::{OpenedTables, open_intact_tables, open_tables},
        tables::{LAYOUT, ReplacedTable, Table},
    };
    pub use crate::store::salvaged::{SalvageReleased, release_salvaged};

    /// The on-disk format of a record, with a checksum.
    pub mod envelope {
        pub use crate::store::envelope::{HEADER_BYTES, MAGIC, Opened, VERSION, open, open_first, seal};
    }
}
