//! A real Kubernetes with stock sidecars and a kubelet.

fn main() -> std::process::ExitCode {
    edge_csi_e2e::kubernetes()
}
