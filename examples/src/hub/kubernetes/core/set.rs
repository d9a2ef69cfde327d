//! What a node is told.

use std::sync::Arc;

use crate::kubernetes::message::{Attachment, Claim, Driver, Object, PersistentVolume, Pod, object};

/// An object of a node's set; large ones are shared with the store, and between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Told {
    Pod(Arc<Pod>),
    Claim(Claim),
    PersistentVolume(Arc<PersistentVolume>),
    Attachment(Arc<Attachment>),
    Driver(Arc<Driver>),
}

impl Told {
    /// The object of a message.
    pub(super) fn object(self) -> Object {
        let kind = match self {
            Self::Pod(pod) => object::Kind::Pod(Arc::unwrap_or_clone(pod)),
            Self::Claim(claim) => object::Kind::Claim(claim),
            Self::PersistentVolume(volume) => object::Kind::PersistentVolume(Arc::unwrap_or_clone(volume)),
            Self::Attachment(attachment) => object::Kind::Attachment(Arc::unwrap_or_clone(attachment)),
            Self::Driver(driver) => object::Kind::Driver(Arc::unwrap_or_clone(driver)),
        };
        Object { object: Some(kind) }
    }
}
