//! The crate's own schema, compiled from its text.

use prost_reflect::{DescriptorPool, MessageDescriptor};

/// The descriptors of `csi.v1`.
pub(crate) fn compile() -> DescriptorPool {
    let mut compiler =
        protox::Compiler::new([concat!(env!("CARGO_MANIFEST_DIR"), "/proto")]).expect("the folder exists");
    compiler.include_imports(true);
    compiler.open_file("csi/v1/csi.proto").expect("the schema compiles");
    compiler.descriptor_pool()
}

/// Every message of `csi.v1`, nested ones too.
pub(crate) fn messages(pool: &DescriptorPool) -> Vec<MessageDescriptor> {
    pool.all_messages()
        .filter(|message| message.package_name() == "csi.v1" && !message.is_map_entry())
        .collect()
}
