//! What an orchestrator owes a driver, by name.

use std::fmt;

use csi_proto::Method;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// A duty of the orchestrator.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $name),*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name, in snake case, for logs and metric labels.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text),*
                }
            }
        }
    };
}

rules! {
    /// A field that the method requires is set.
    RequiredField = "required_field",
    /// A call that depends on a capability is made only if the driver has said that it has it.
    OfferedCall = "offered_call",
    /// A volume has one call in flight at a time, of each part of the orchestrator that makes calls on its own: on the node, and for
    /// attachments, sizes, snapshots and volumes. The spec asks the orchestrator as a whole to aim at one, allows it to fail in that where
    /// it does not know its own state, and has drivers answer `ABORTED`; parts that are processes of their own, as the sidecars of
    /// Kubernetes, do not know each other's. The same call once more is not held against anybody.
    OneCallPerVolume = "one_call_per_volume",
    /// A volume that was attached by a call, and detached, is attached again before it is staged or published.
    AttachBeforeUse = "attach_before_use",
    /// A volume of a driver that stages is staged, with success, before it is published or expanded.
    StageBeforeUse = "stage_before_use",
    /// All of a volume's targets are unpublished, with success, before it is unstaged.
    UnstageWhilePublished = "unstage_while_published",
    /// A volume is unpublished and unstaged, with success, before it is detached.
    DetachWhileInUse = "detach_while_in_use",
    /// A volume is given up on the node before it is deleted.
    DeleteWhileInUse = "delete_while_in_use",
    /// What was begun downward is brought to its end, with success, before the same is done upward again.
    DownwardFirst = "downward_first",
    /// What was done, or may have been, is repeated with the arguments that it had. Secrets may change.
    SameArguments = "same_arguments",
    /// A volume has one staging path on a node.
    OneStagingPath = "one_staging_path",
    /// A path belongs to one volume at a time.
    PathOfAnotherVolume = "path_of_another_volume",
}

impl Rule {
    /// The section of the spec that has the rule.
    #[must_use]
    pub const fn section(self) -> &'static str {
        match self {
            Self::RequiredField => "Required vs. Optional Fields",
            Self::OfferedCall => "NodeGetCapabilities",
            Self::OneCallPerVolume => "Concurrency",
            Self::AttachBeforeUse => "ControllerPublishVolume",
            Self::StageBeforeUse | Self::OneStagingPath => "NodeStageVolume",
            Self::UnstageWhilePublished => "NodeUnstageVolume",
            Self::DetachWhileInUse => "ControllerUnpublishVolume",
            Self::DeleteWhileInUse => "DeleteVolume",
            Self::DownwardFirst => "NodeUnpublishVolume",
            Self::SameArguments | Self::PathOfAnotherVolume => "NodePublishVolume",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that should not have been made, or not then.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The rule that it breaks.
    pub rule: Rule,
    /// The method that was called.
    pub method: Method,
    /// The volume; empty if the request names none.
    pub volume: String,
    /// What the rule asks for here.
    pub expected: String,
    /// What was found. Holds ids and paths, and no secret.
    pub found: String,
}
