//! Code generated from `proto/` by `cargo xtask codegen`.

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
pub(crate) mod groups;
