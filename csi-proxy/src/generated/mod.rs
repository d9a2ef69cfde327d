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

#[rustfmt::skip]
pub(crate) mod call;
#[rustfmt::skip]
pub(crate) mod state;
