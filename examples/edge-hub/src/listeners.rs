//! The listeners of `--listen`.

use std::fs;
use std::path::Path;

use edge_transport::link::{Address, ListenOptions, Listener};
use edge_transport::tls::ServerTls;

use edge_csi_common::process::Fatal;
use edge_csi_common::uplink::DEFAULT_HUB;
use edge_csi_common::values::ListenUrl;

use super::options::HubOptions;

/// Opens the listeners of the options.
pub(super) async fn open(
    options: &HubOptions,
    files: Option<&ServerTls>,
) -> Result<Vec<Box<dyn Listener>>, Fatal> {
    // Every URL is checked before the first listener is opened.
    for url in &options.listen {
        check(url, options, files)?;
    }
    let listen = ListenOptions::default().tls(files.cloned()).insecure(options.security.insecure);
    let mut listeners = Vec::new();
    for url in &options.listen {
        if let ListenUrl::Unix(socket) = url {
            create_default_directory(socket.path());
        }
        let address: Address = url.to_string().parse().map_err(Fatal::input)?;
        listeners.push(address.listen(&listen).await.map_err(Fatal::runtime)?);
    }
    Ok(listeners)
}

/// Checks that the options authenticate the peers of a listener and authorize their calls.
fn check(url: &ListenUrl, options: &HubOptions, files: Option<&ServerTls>) -> Result<(), Fatal> {
    let insecure = options.security.insecure;
    let mut unrestricted = options.allow.iter().filter(|rule| !rule.is_restricted());
    let missing = match url {
        ListenUrl::Unix(_) => return Ok(()),
        ListenUrl::Ws(_) if insecure => return Ok(()),
        ListenUrl::Ws(_) => "ws is not encrypted; use wss with certificates, or, for tests, --insecure",
        ListenUrl::Wss(_) if files.is_none() => {
            "wss needs --tls-cert, --tls-key and --client-ca or --tokens; without certificates, for tests, use ws with --insecure"
        }
        ListenUrl::Quic(_) if files.is_none() && !insecure => {
            "quic needs --tls-cert, --tls-key and --client-ca or --tokens, or, for tests, --insecure"
        }
        _ if options.allow.is_empty() => {
            "--allow is required with wss and quic, as in --allow 'csi-proxy=edge-*:hostpath.csi.edge'"
        }
        _ => match unrestricted.next() {
            Some(rule) => {
                let text = format!(
                    "--allow {rule} names no driver, which only a unix socket allows; write {rule}:DRIVER, or {rule}:* for every driver"
                );
                return Err(Fatal::Input(format!("--listen {url}: {text}")));
            }
            None => return Ok(()),
        },
    };
    Err(Fatal::Input(format!("--listen {url}: {missing}")))
}

fn create_default_directory(path: &Path) {
    if path == Path::new(DEFAULT_HUB.trim_start_matches("unix://")) {
        // /run is empty after a boot. If the directory cannot be created, listening reports why.
        let _ = path.parent().map(fs::create_dir_all);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn refuses_other_urls_and_names_the_forms() {
        for text in
            ["", "10000", "/hub.sock", "http://1.2.3.4:5", "wss://hub:1", "ws://1.2.3.4", "quic://1:2:3"]
        {
            let error = HubOptions::try_parse_from(["edge-hub", "--listen", text]).unwrap_err().to_string();
            assert!(error.contains("--listen"), "{error}");
            assert!(error.contains("wss://IP:PORT, ws://IP:PORT or quic://IP:PORT"), "{error}");
        }
        let error = HubOptions::try_parse_from(["edge-hub", "--listen", "unix://hub.sock"]).unwrap_err();
        assert!(error.to_string().contains("unix:///absolute/path.sock"), "{error}");
    }

    /// `wss` and `quic` need certificates and rules, `ws` needs `--insecure`.
    #[test]
    fn refuses_listeners_without_authentication() {
        let refusal = |line: &str| {
            let options = HubOptions::try_parse_from(line.split(' ')).unwrap();
            options
                .listen
                .iter()
                .find_map(|url| check(url, &options, None).err())
                .map(|fatal| fatal.to_string())
        };
        for (line, expected) in [
            ("edge-hub --listen ws://127.0.0.1:0", "--insecure"),
            ("edge-hub --listen wss://127.0.0.1:0 --allow a=b:c", "--tls-cert"),
            ("edge-hub --listen wss://127.0.0.1:0 --insecure", "use ws with --insecure"),
            ("edge-hub --listen quic://127.0.0.1:0 --allow a=b:c", "--tls-cert"),
            ("edge-hub --listen quic://127.0.0.1:0 --insecure", "--allow"),
            ("edge-hub --listen quic://127.0.0.1:0 --insecure --allow a=b:c --allow a=b", "write a=b:DRIVER"),
        ] {
            let found = refusal(line).unwrap();
            assert!(found.starts_with("--listen ") && found.contains(expected), "{line}: {found}");
        }
        for line in [
            "edge-hub",
            "edge-hub --listen unix:///hub.sock --allow a=b",
            "edge-hub --insecure --listen ws://127.0.0.1:0 --listen quic://127.0.0.1:0 --allow a=b:@c",
        ] {
            assert_eq!(refusal(line), None, "{line}");
        }
    }
}
