//! Code made from `proto/` by the workspace's codegen chore. Not edited by hand.

#![allow(
    missing_docs,
    unreachable_pub,
    unnameable_types,
    clippy::exhaustive_structs,
    clippy::exhaustive_enums,
    clippy::derive_partial_eq_without_eq,
    reason = "generated"
)]
#![cfg_attr(
    not(feature = "runtime"),
    allow(dead_code, reason = "only the runtime sends the messages of a bus")
)]

#[rustfmt::skip]
pub(crate) mod call;
#[rustfmt::skip]
pub(crate) mod state;
