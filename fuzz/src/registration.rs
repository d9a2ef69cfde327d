//! The registration data of a driver: a socket's path, versions, a name.

use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::pluginregistration::v1::PluginInfo;
use volume_manager::advanced::registry::{Action, Event, Registry, SocketFile, SocketIdentity, SocketName};
use volume_manager::registry::DriverEndpoint;

/// Parses the bytes as each kind of registration data; a parsed value must parse again from its text.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(endpoint) = text.parse::<DriverEndpoint>() {
        assert_eq!(endpoint.to_string().parse::<DriverEndpoint>().as_ref(), Ok(&endpoint));
        assert!(endpoint.path().is_absolute());
    }
    if let Some(name) = SocketName::new("a-reg.sock") {
        let mut registry = Registry::new("/registry");
        let identity = SocketIdentity { inode: 1, modified_nanos: 0 };
        let listed = Event::Listed(vec![SocketFile { name, identity }]);
        if let [Action::Inspect { attempt, .. }] = registry.step(listed, Duration::ZERO)[..] {
            let (name, supported_versions) = ("a".to_owned(), vec![text.to_string()]);
            let info = PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name,
                supported_versions,
                ..PluginInfo::default()
            };
            let actions = registry.step(Event::Inspected { attempt, info: Some(info) }, Duration::ZERO);
            assert!(matches!(actions[..], [.., Action::Notify { .. }]));
        }
    }
    if let Ok(name) = DriverName::new(&*text) {
        assert!(DriverName::new(name.as_str()).is_ok());
    }
    if let Some(name) = SocketName::new(text.into_owned()) {
        let path: &std::path::Path = name.as_ref();
        assert_eq!(path.components().count(), 1);
    }
}
