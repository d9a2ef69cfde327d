//! The schema as descriptors, custom options included.

use std::path::Path;

use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor, MethodDescriptor, Value,
};
use prost_types::FileDescriptorSet;

use super::error::CodegenError;

const FILES: [&str; 2] = ["csi/v1/csi.proto", "pluginregistration/v1/api.proto"];
const CSI_PACKAGE: &str = "csi.v1";

/// Fields without option 1059 that the spec's text declares sensitive.
const SENSITIVE_BY_TEXT: [&str; 1] = ["csi.v1.VolumeCapability.MountVolume.mount_flags"];

/// The compiled schema.
pub(crate) struct Schema {
    /// Plain descriptors, the input of the code generators of prost and tonic.
    pub(crate) files: FileDescriptorSet,
    pool: DescriptorPool,
}

impl Schema {
    pub(crate) fn compile(folder: &Path) -> Result<Self, CodegenError> {
        let mut compiler = protox::Compiler::new([folder]).map_err(CodegenError::Schema)?;
        compiler.include_source_info(true).include_imports(true);
        compiler.open_files(FILES).map_err(CodegenError::Schema)?;
        Ok(Self { files: compiler.file_descriptor_set(), pool: compiler.descriptor_pool() })
    }

    /// Returns the messages of the CSI package in file order, nested ones after their parent, without map entries.
    pub(crate) fn messages(&self) -> Vec<MessageDescriptor> {
        fn collect(message: MessageDescriptor, into: &mut Vec<MessageDescriptor>) {
            if message.is_map_entry() {
                return;
            }
            let nested: Vec<_> = message.child_messages().collect();
            into.push(message);
            for child in nested {
                collect(child, into);
            }
        }
        let mut all = Vec::new();
        for file in self.pool.files().filter(|file| file.package_name() == CSI_PACKAGE) {
            for message in file.messages() {
                collect(message, &mut all);
            }
        }
        all
    }

    /// Returns the RPCs of the CSI package in file order.
    pub(crate) fn methods(&self) -> Vec<MethodDescriptor> {
        let services = self.pool.services().filter(|service| service.package_name() == CSI_PACKAGE);
        services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
    }

    /// Returns true if the field carries option 1059, `csi_secret`.
    pub(crate) fn is_secret(&self, field: &FieldDescriptor) -> bool {
        self.is_set("csi_secret", &field.options())
    }

    /// Returns true if the RPC or its service carries option 1060, which marks alpha.
    pub(crate) fn is_alpha(&self, method: &MethodDescriptor) -> bool {
        self.is_set("alpha_method", &method.options())
            || self.is_set("alpha_service", &method.parent_service().options())
    }

    /// Returns true if the field's value must never be printed: a secret, or a field that the spec's text declares sensitive.
    pub(crate) fn is_sensitive(&self, field: &FieldDescriptor) -> bool {
        self.is_secret(field) || SENSITIVE_BY_TEXT.contains(&field.full_name())
    }

    /// Returns true if the message itself has a sensitive field. The `Debug` of a nested message handles its own fields.
    pub(crate) fn has_sensitive_field(&self, message: &MessageDescriptor) -> bool {
        message.fields().any(|field| self.is_sensitive(&field))
    }

    fn is_set(&self, option: &str, options: &DynamicMessage) -> bool {
        let name = format!("{CSI_PACKAGE}.{option}");
        let option = self.pool.all_extensions().find(|extension| extension.full_name() == name);
        option.is_some_and(|option| matches!(options.get_extension(&option).as_ref(), Value::Bool(true)))
    }
}
