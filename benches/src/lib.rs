//! What the benches share: the payload of a real `CreateVolume`, a driver that answers it at once, and a closed-loop load;
//! and, in [`volumes`], ways to mount a volume.
//!
//! Both ends of the relay's chains are tonic with a codec that passes bytes, so that a figure holds the cost of gRPC and of
//! what lies between the ends, and not of encoding messages.

pub mod bytes_codec;
pub mod driver;
pub mod load;
pub mod payload;
pub mod roads;
pub mod volumes;
