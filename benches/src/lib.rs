//! Common parts of the benchmarks: the payload of a real `CreateVolume`, a driver that answers it immediately, a closed-loop
//! load, and, in [`volumes`], clients that mount a volume.
//!
//! Both ends of the relay's chains are tonic with a codec that passes bytes, so that a figure contains the cost of gRPC and of
//! the parts between the ends, but not the encoding of messages.

pub mod authority;
pub mod bytes_codec;
pub mod chain;
pub mod driver;
pub mod load;
pub mod payload;
pub mod volumes;
