//! Code made from `proto/` by the workspace's codegen chore. Not edited by hand.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::exhaustive_structs,
    clippy::exhaustive_enums,
    clippy::large_enum_variant,
    reason = "generated"
)]

#[rustfmt::skip]
pub(crate) mod certificates;
#[rustfmt::skip]
pub(crate) mod kubernetes;
