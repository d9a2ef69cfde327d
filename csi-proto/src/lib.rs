#![doc = include_str!("../README.md")]
#![cfg_attr(edge_csi_docs, doc = "\n# Features\n\n", doc = document_features::document_features!())]
#![cfg_attr(edge_csi_docs, feature(doc_cfg))]

mod access;
mod capability;
mod code;
mod delivery;
pub mod fields;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod method;
pub mod name;
pub mod secrets;
pub mod shape;
mod topology;
pub mod validate;

pub use code::Code;
pub use delivery::Delivery;
pub use method::Method;
pub use name::{DriverName, VolumeId};
pub use validate::Validate;

/// Package `csi`.
pub mod csi {
    /// The Container Storage Interface, version 1.13.0 of the spec.
    #[allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        elided_lifetimes_in_paths,
        reason = "generated"
    )]
    #[allow(
        missing_debug_implementations,
        clippy::all,
        clippy::pedantic,
        clippy::restriction,
        reason = "generated"
    )]
    pub mod v1 {
        include!("generated/csi.v1.rs");
    }
}

/// Package `pluginregistration`.
pub mod pluginregistration {
    /// The kubelet's plugin registration, version 1.
    #[allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        elided_lifetimes_in_paths,
        reason = "generated"
    )]
    #[allow(
        missing_debug_implementations,
        clippy::all,
        clippy::pedantic,
        clippy::restriction,
        reason = "generated"
    )]
    pub mod v1 {
        include!("generated/pluginregistration.rs");
    }
}
