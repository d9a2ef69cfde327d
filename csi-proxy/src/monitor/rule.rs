//! The rules for orchestrators.

use std::fmt;

use csi_proto::Method;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// A rule for the orchestrator.
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
    /// A call that needs a capability is made only if the driver has reported it.
    OfferedCall = "offered_call",
    /// A volume has one call in flight at a time, per independent component of the orchestrator: on the node, and
    /// for attachments, sizes, snapshots and volumes. The spec recommends one for the whole orchestrator, permits
    /// more after a loss of its state, and lets drivers answer `ABORTED`; separate processes, such as the sidecars
    /// of Kubernetes, do not observe each other's calls. A repeated equal call is not a violation.
    OneCallPerVolume = "one_call_per_volume",
    /// A volume that was attached and detached is attached again before it is staged or published.
    AttachBeforeUse = "attach_before_use",
    /// A volume of a driver with staging is staged successfully before it is published or expanded.
    StageBeforeUse = "stage_before_use",
    /// The target of a pod of Kubernetes stays published until the pod has ended: it is not published again after it was
    /// unpublished.
    UnpublishWhileInUse = "unpublish_while_in_use",
    /// All targets of a volume are unpublished successfully before it is unstaged.
    UnstageWhilePublished = "unstage_while_published",
    /// A volume is unpublished and unstaged successfully before it is detached.
    DetachWhileInUse = "detach_while_in_use",
    /// A volume is unpublished and unstaged on the node before it is deleted.
    DeleteWhileInUse = "delete_while_in_use",
    /// A volume in use whose controller expansion asked for one on the node is expanded there.
    ExpandOnNode = "expand_on_node",
    /// A begun teardown is completed successfully before the same object is set up again.
    FinishTeardown = "finish_teardown",
    /// A call that was or may have been executed is repeated with the same arguments. Secrets may change.
    SameArguments = "same_arguments",
    /// A volume has one staging path on a node.
    OneStagingPath = "one_staging_path",
    /// A path belongs to one volume at a time.
    PathOfAnotherVolume = "path_of_another_volume",
}

impl Rule {
    /// The section of the spec with the rule.
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
            Self::FinishTeardown | Self::UnpublishWhileInUse => "NodeUnpublishVolume",
            Self::ExpandOnNode => "ControllerExpandVolume",
            Self::SameArguments | Self::PathOfAnotherVolume => "NodePublishVolume",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The method that was called.
    pub method: Method,
    /// The volume; empty if the request names none.
    pub volume: String,
    /// The requirement of the rule.
    pub expected: String,
    /// What was found. Contains ids and paths, and no secret.
    pub found: String,
}
