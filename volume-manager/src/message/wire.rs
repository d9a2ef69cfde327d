//! The messages as they travel: by hand what `proto/edge_csi/volumes/v1/volumes.proto` says. A test compares the two.

use std::collections::BTreeMap;
use std::fmt;

use prost::{Enumeration, Message, Oneof};

use crate::driver::AccessMode;

/// A request, as who sends one puts it together. Who takes one reads it piece by piece, see [`decode`](super::decode).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(oneof = "request::Request", tags = "1, 2")]
    pub(super) request: Option<request::Request>,
}

pub(super) mod request {
    use super::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub(in super::super) enum Request {
        #[prost(message, tag = "1")]
        Desired(super::DesiredVolumes),
        #[prost(message, tag = "2")]
        Query(super::VolumesQuery),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DesiredVolumes {
    #[prost(uint64, tag = "1")]
    pub(super) revision: u64,
    #[prost(message, repeated, tag = "2")]
    pub(super) volumes: Vec<DesiredVolume>,
    #[prost(message, repeated, tag = "3")]
    pub(super) drivers: Vec<DriverPolicy>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DesiredVolume {
    #[prost(string, tag = "1")]
    pub(super) driver: String,
    #[prost(string, tag = "2")]
    pub(super) volume_id: String,
    #[prost(oneof = "desired_volume::Access", tags = "3, 4")]
    pub(super) access: Option<desired_volume::Access>,
    #[prost(enumeration = "AccessMode", tag = "5")]
    pub(super) access_mode: i32,
    #[prost(bool, tag = "6")]
    pub(super) read_only: bool,
    #[prost(bool, tag = "7")]
    pub(super) ephemeral: bool,
    #[prost(enumeration = "Attach", tag = "9")]
    pub(super) attach: i32,
    #[prost(btree_map = "string, string", tag = "10")]
    pub(super) volume_context: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(super) publish_context: BTreeMap<String, String>,
    #[prost(message, optional, tag = "12")]
    pub(super) secrets: Option<SecretReferences>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) fs_group: Option<u32>,
    #[prost(string, optional, tag = "14")]
    pub(super) selinux_label: Option<String>,
    #[prost(message, repeated, tag = "15")]
    pub(super) consumers: Vec<Consumer>,
    #[prost(bool, tag = "16")]
    pub(super) attached: bool,
}

pub(super) mod desired_volume {
    use super::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub(in super::super) enum Access {
        #[prost(message, tag = "3")]
        Filesystem(super::Filesystem),
        #[prost(message, tag = "4")]
        Block(super::Block),
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct Filesystem {
    #[prost(string, tag = "1")]
    pub(super) fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) mount_flags: Vec<String>,
}

impl fmt::Debug for Filesystem {
    // Mount options may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.mount_flags.len();
        write!(f, "Filesystem({:?}, {flags} flags stripped)", self.fs_type)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Block {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum Attach {
    Here = 0,
    Awaited = 1,
    NotRequired = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretReferences {
    #[prost(message, optional, tag = "1")]
    pub(super) controller_publish: Option<SecretReference>,
    #[prost(message, optional, tag = "2")]
    pub(super) node_stage: Option<SecretReference>,
    #[prost(message, optional, tag = "3")]
    pub(super) node_publish: Option<SecretReference>,
    #[prost(message, optional, tag = "4")]
    pub(super) controller_expand: Option<SecretReference>,
    #[prost(message, optional, tag = "5")]
    pub(super) node_expand: Option<SecretReference>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretReference {
    #[prost(string, tag = "1")]
    pub(super) namespace: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Consumer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) target_path: String,
    #[prost(bool, tag = "3")]
    pub(super) read_only: bool,
    #[prost(uint32, optional, tag = "4")]
    pub(super) fs_group: Option<u32>,
    #[prost(message, optional, tag = "5")]
    pub(super) pod: Option<PodInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) uid: String,
    #[prost(string, tag = "4")]
    pub(super) service_account: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DriverPolicy {
    #[prost(string, tag = "1")]
    pub(super) driver: String,
    #[prost(bool, optional, tag = "2")]
    pub(super) attach_required: Option<bool>,
    #[prost(bool, tag = "3")]
    pub(super) pod_info_on_mount: bool,
    #[prost(enumeration = "LifecycleMode", repeated, tag = "4")]
    pub(super) lifecycle_modes: Vec<i32>,
    #[prost(enumeration = "FsGroupPolicy", tag = "5")]
    pub(super) fs_group_policy: i32,
    #[prost(bool, tag = "6")]
    pub(super) requires_republish: bool,
    #[prost(bool, tag = "7")]
    pub(super) selinux_mount: bool,
    #[prost(message, repeated, tag = "8")]
    pub(super) token_requests: Vec<TokenRequest>,
    #[prost(bool, tag = "9")]
    pub(super) token_in_secrets: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum LifecycleMode {
    Persistent = 0,
    Ephemeral = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum FsGroupPolicy {
    ReadWriteOnceWithFsType = 0,
    File = 1,
    None = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TokenRequest {
    #[prost(string, tag = "1")]
    pub(super) audience: String,
    #[prost(uint64, optional, tag = "2")]
    pub(super) expiration_seconds: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VolumesQuery {}
