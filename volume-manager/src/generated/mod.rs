//! Code made from `proto/` by the workspace's codegen chore. Not edited by hand.

#![allow(
    missing_docs,
    unreachable_pub,
    unnameable_types,
    dead_code,
    clippy::exhaustive_structs,
    clippy::exhaustive_enums,
    reason = "generated"
)]

#[rustfmt::skip]
pub(crate) mod record;
#[rustfmt::skip]
pub(crate) mod volumes;
