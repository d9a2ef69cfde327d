//! Which states of rest a volume has, and which call leads from one to the next.

use super::snapshot::Base;
use super::state::Rpc;

/// What a driver can do, as far as the lifecycle depends on it. What it cannot do is skipped on
/// the way up. On the way down what was made, or may have been, is taken down whether it still can or not.
#[allow(clippy::exhaustive_structs, reason = "the capabilities that the spec's lifecycle depends on")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME` of the controller service: there are NODE_READY and the two calls around it.
    pub publish_unpublish: bool,
    /// `STAGE_UNSTAGE_VOLUME` of the node service: there are VOL_READY and the two calls around it.
    pub stage_unstage: bool,
    /// `EXPAND_VOLUME` of the controller service, if that call is made from here.
    pub controller_expand: bool,
    /// `EXPAND_VOLUME` of the node service.
    pub node_expand: bool,
}

/// Who attaches a volume to this node, and so where it begins and ends.
#[allow(clippy::exhaustive_enums, reason = "this side, another, or nobody")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attach {
    /// This side, by ControllerPublishVolume, if the driver has it (figures 5 and 6). Volumes that somebody else provisioned
    /// (figure 7) begin at CREATED as well if this side attaches them: the figure's nameless ends are CREATED.
    Here,
    /// Another, such as the attacher in the cloud; its publish context is handed in. Nothing is staged or published
    /// before [`Event::Attached`](super::Event::Attached). No controller call is made to attach or detach.
    Awaited,
    /// Nobody: no attach is needed, or it is made elsewhere and is done. The volume begins at NODE_READY, and no
    /// controller call is made to attach or detach.
    NotRequired,
}

/// The states of rest that one volume has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ladder {
    pub(super) attach: Attach,
    pub(super) capabilities: DriverCapabilities,
    /// Whether an awaited attach stands.
    pub(super) attached: bool,
    /// Whether an attach of our own stands, or may.
    pub(super) attached_here: bool,
}

impl Ladder {
    fn attaches(self) -> bool {
        self.attach == Attach::Here && self.capabilities.publish_unpublish
    }

    pub(super) fn stages(self) -> bool {
        self.capabilities.stage_unstage
    }

    /// Where a volume is that is neither staged nor attached by us.
    pub(super) fn floor(self) -> Base {
        match self.attach {
            Attach::Here => Base::Created,
            Attach::Awaited if !self.attached => Base::Created,
            Attach::Awaited | Attach::NotRequired => Base::NodeReady,
        }
    }

    /// Where targets can be published; `None` while an attach is awaited.
    pub(super) fn top(self) -> Option<Base> {
        match self.attach {
            Attach::Awaited if !self.attached && !self.attached_here => None,
            _ if self.stages() => Some(Base::VolReady),
            Attach::Here if !self.attaches() && !self.attached_here => Some(Base::Created),
            _ => Some(Base::NodeReady),
        }
    }

    /// Whether the attach that a staging needs was made before it; it was not if the driver came to attach since.
    pub(super) fn is_founded(self) -> bool {
        self.attached_here || !self.attaches()
    }

    /// Where an unstage leads.
    pub(super) fn unstaged(self) -> Base {
        if self.attached_here { Base::NodeReady } else { self.floor() }
    }

    /// A base as this volume can have it: without what others do. What we did, or may have done, is never left out.
    pub(super) fn fit(self, base: Base) -> Base {
        match base {
            Base::Created | Base::NodeReady => self.unstaged(),
            base => base,
        }
    }

    /// The call that leads up from a state of rest, or again up from a state on the way up.
    pub(super) fn up(self, base: Base) -> Option<Rpc> {
        match base {
            Base::Created | Base::ControllerPublish if self.attaches() => Some(Rpc::ControllerPublishVolume),
            Base::Created | Base::NodeReady if self.top() == Some(Base::VolReady) => {
                Some(Rpc::NodeStageVolume)
            }
            Base::NodeStage if self.top() == Some(Base::VolReady) && self.is_founded() => {
                Some(Rpc::NodeStageVolume)
            }
            _ => None,
        }
    }

    /// The call that leads down.
    pub(super) fn down(self, base: Base) -> Option<Rpc> {
        match base {
            Base::VolReady | Base::NodeStage | Base::NodeUnstage => Some(Rpc::NodeUnstageVolume),
            Base::NodeReady if !self.attached_here => None,
            Base::NodeReady | Base::ControllerPublish | Base::ControllerUnpublish => {
                Some(Rpc::ControllerUnpublishVolume)
            }
            Base::Created => None,
        }
    }
}
