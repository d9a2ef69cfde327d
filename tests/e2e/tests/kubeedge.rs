//! A real KubeEdge with stock sidecars.

fn main() -> std::process::ExitCode {
    edge_csi_e2e::kubeedge()
}
