//! Drivers behind the relay, with csi-sanity and the sidecars as clients.

fn main() -> std::process::ExitCode {
    edge_csi_e2e::drivers()
}
