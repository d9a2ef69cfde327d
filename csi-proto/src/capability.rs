//! Capabilities of plugins and their services: short accessors for messages that nest four levels deep.
//!
//! ```
//! use csi_proto::csi::v1::ControllerGetCapabilitiesResponse;
//! use csi_proto::csi::v1::controller_service_capability::rpc::Type;
//!
//! let response: ControllerGetCapabilitiesResponse = [Type::CreateDeleteVolume, Type::GetCapacity].into_iter().collect();
//! assert!(response.has(Type::GetCapacity));
//! assert!(!response.has(Type::ListVolumes));
//! ```

use crate::csi::v1::{
    ControllerGetCapabilitiesResponse, ControllerServiceCapability, GetPluginCapabilitiesResponse,
    GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability, NodeGetCapabilitiesResponse,
    NodeServiceCapability, PluginCapability, controller_service_capability,
    group_controller_service_capability, node_service_capability, plugin_capability,
};

macro_rules! service_capability {
    ($capability:ident, $module:ident, $response:ident) => {
        impl $capability {
            /// Creates the capability for one RPC type.
            #[must_use]
            pub fn rpc(rpc: $module::rpc::Type) -> Self {
                Self { r#type: Some($module::Type::Rpc($module::Rpc { r#type: rpc.into() })) }
            }

            /// The RPC type; `None` if it is absent or of a later version of the spec.
            #[must_use]
            pub fn rpc_type(&self) -> Option<$module::rpc::Type> {
                let $module::Type::Rpc(rpc) = self.r#type?;
                $module::rpc::Type::try_from(rpc.r#type).ok()
            }
        }

        impl $response {
            /// Whether the service has the capability.
            #[must_use]
            pub fn has(&self, rpc: $module::rpc::Type) -> bool {
                self.capabilities.iter().any(|capability| capability.rpc_type() == Some(rpc))
            }
        }

        impl FromIterator<$module::rpc::Type> for $response {
            fn from_iter<I: IntoIterator<Item = $module::rpc::Type>>(capabilities: I) -> Self {
                Self { capabilities: capabilities.into_iter().map($capability::rpc).collect() }
            }
        }
    };
}

service_capability!(
    ControllerServiceCapability,
    controller_service_capability,
    ControllerGetCapabilitiesResponse
);
service_capability!(NodeServiceCapability, node_service_capability, NodeGetCapabilitiesResponse);
service_capability!(
    GroupControllerServiceCapability,
    group_controller_service_capability,
    GroupControllerGetCapabilitiesResponse
);

impl PluginCapability {
    /// Creates the capability of a service, or of a property of the plugin's volumes or snapshots.
    #[must_use]
    pub fn service(service: plugin_capability::service::Type) -> Self {
        let service = plugin_capability::Service { r#type: service.into() };
        Self { r#type: Some(plugin_capability::Type::Service(service)) }
    }

    /// Creates the capability of volume expansion, online or offline.
    #[must_use]
    pub fn volume_expansion(expansion: plugin_capability::volume_expansion::Type) -> Self {
        let expansion = plugin_capability::VolumeExpansion { r#type: expansion.into() };
        Self { r#type: Some(plugin_capability::Type::VolumeExpansion(expansion)) }
    }
}

impl GetPluginCapabilitiesResponse {
    /// Whether the plugin has the service or property.
    #[must_use]
    pub fn has_service(&self, service: plugin_capability::service::Type) -> bool {
        self.capabilities.contains(&PluginCapability::service(service))
    }

    /// Whether the plugin supports this kind of volume expansion.
    #[must_use]
    pub fn has_volume_expansion(&self, expansion: plugin_capability::volume_expansion::Type) -> bool {
        self.capabilities.contains(&PluginCapability::volume_expansion(expansion))
    }
}

impl FromIterator<PluginCapability> for GetPluginCapabilitiesResponse {
    fn from_iter<I: IntoIterator<Item = PluginCapability>>(capabilities: I) -> Self {
        Self { capabilities: capabilities.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ControllerServiceCapability, GetPluginCapabilitiesResponse, NodeGetCapabilitiesResponse,
        NodeServiceCapability, PluginCapability, node_service_capability, plugin_capability,
    };
    use node_service_capability::rpc::Type;

    #[test]
    fn response_has_exactly_its_capabilities() {
        let response: NodeGetCapabilitiesResponse =
            [Type::StageUnstageVolume, Type::ExpandVolume].into_iter().collect();
        assert!(response.has(Type::StageUnstageVolume) && response.has(Type::ExpandVolume));
        assert!(!response.has(Type::Unknown) && !response.has(Type::GetVolumeStats));
    }

    #[test]
    fn absent_or_unknown_capability_is_none() {
        assert_eq!(ControllerServiceCapability::default().rpc_type(), None);
        let later = node_service_capability::Rpc { r#type: 99 };
        let later = NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(later)) };
        assert_eq!(later.rpc_type(), None);
    }

    #[test]
    fn distinguishes_service_and_expansion_types() {
        use plugin_capability::{service, volume_expansion};
        let response: GetPluginCapabilitiesResponse =
            [PluginCapability::service(service::Type::ControllerService)].into_iter().collect();
        assert!(response.has_service(service::Type::ControllerService));
        assert!(!response.has_volume_expansion(volume_expansion::Type::Online));
    }
}
