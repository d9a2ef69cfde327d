//! What a driver says of itself when it registers: a socket's path, versions, a name.

use csi_proto::DriverName;
use volume_manager::registry::core::SocketName;
use volume_manager::registry::{DriverEndpoint, PluginVersion};

/// Reads as each of them; what could be read comes back from its text.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(endpoint) = text.parse::<DriverEndpoint>() {
        assert_eq!(endpoint.to_string().parse::<DriverEndpoint>().as_ref(), Ok(&endpoint));
        assert!(endpoint.path().is_absolute());
    }
    if let Ok(version) = text.parse::<PluginVersion>() {
        assert_eq!(version.to_string().parse::<PluginVersion>().as_ref(), Ok(&version));
    }
    if let Ok(name) = DriverName::new(&*text) {
        assert!(DriverName::new(name.as_str()).is_ok());
    }
    if let Some(name) = SocketName::new(text.into_owned()) {
        let path: &std::path::Path = name.as_ref();
        assert_eq!(path.components().count(), 1);
    }
}
