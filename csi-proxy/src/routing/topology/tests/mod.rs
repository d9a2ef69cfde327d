//! Routing by topology against nodes in this process.

mod presence;
mod storm;
