//! The store on disks that fail.

mod disk;
mod failing;
mod power;
mod tables;
