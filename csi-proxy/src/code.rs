//! gRPC status codes, which csi-proto has.

pub use csi_proto::Code;
