//! The fields of an encoded message.

#![cfg_attr(not(feature = "runtime"), allow(unused_imports, reason = "the core reads, the runtime adds"))]

pub(super) use crate::protobuf::{count, text, texts, with, without};
