//! Tests of the store with failing disks.

mod disk;
mod failing;
mod power;
mod tables;
