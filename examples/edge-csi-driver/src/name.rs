//! The proxy's name at the hub.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_proto::DriverName;
use edge_transport::PeerId;
use edge_transport::tls::{ClientFiles, Identity};

use edge_csi_common::process::Fatal;

/// Returns a name that no other process has, since the hub refuses the later of two proxies with one name. With a
/// certificate the name begins with the certificate's name, below which the hub allows any name. Without one, for
/// example with a token, the name begins with `proxy/` and the driver's name.
pub(super) fn unique_name(driver: &DriverName, files: Option<&ClientFiles>) -> Result<PeerId, Fatal> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let process = process_name(&host, std::process::id(), started);
    let identity = files.map(ClientFiles::identity).filter(Identity::has_certificate);
    let name = match identity.map(|identity| identity.names().into_iter().next()) {
        None => format!("proxy/{driver}/{process}"),
        Some(Some(certified)) => format!("{certified}/{process}"),
        Some(None) => {
            let cause = "the certificate has no name; it needs a DNS or URI name, or a common name";
            return Err(Fatal::Input(format!("--tls-cert: {cause}")));
        }
    };
    PeerId::new(name).map_err(Fatal::input)
}

/// The host and the process id distinguish processes of one host; the start time in microseconds distinguishes
/// containers that share a host name.
fn process_name(host: &str, process: u32, started: u128) -> String {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let host: String = host.trim().chars().filter(allowed).take(63).collect();
    format!("{host}-{process}-{started}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_fits_whatever_the_host_is_called() {
        let driver = "d".repeat(63);
        for host in ["", "node-1\n", "host name/with\u{e9}", &"h".repeat(300)] {
            let name = format!("proxy/{driver}/{}", process_name(host, u32::MAX, u128::from(u64::MAX)));
            assert!(PeerId::new(&name).is_ok(), "{name}");
        }
        assert_ne!(process_name("h", 1, 1), process_name("h", 1, 2));
    }
}
