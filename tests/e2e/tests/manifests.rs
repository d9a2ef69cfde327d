//! The manifests of `deploy/` and the guide's commands.

fn main() -> std::process::ExitCode {
    edge_csi_e2e::manifests()
}
