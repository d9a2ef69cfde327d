//! Messages, clients and servers: what prost and tonic generate.

use std::path::PathBuf;
use std::{env, fs, io, process};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format};

/// The packages that become sources; those of Google come from prost-types.
const PACKAGES: [&str; 2] = ["csi.v1", "pluginregistration"];

pub(crate) fn generate(schema: &Schema) -> Result<Vec<Source>, CodegenError> {
    let folder = Scratch::new("csi").map_err(CodegenError::Bindings)?;
    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .out_dir(&folder.path);
    for package in PACKAGES {
        builder = builder
            .client_mod_attribute(package, "#[cfg(feature = \"client\")]")
            .server_mod_attribute(package, "#[cfg(feature = \"server\")]");
    }
    for message in schema.messages().iter().filter(|message| schema.holds_sensitive(message)) {
        builder = builder.skip_debug([message.full_name()]);
    }
    builder.compile_fds(schema.files.clone()).map_err(CodegenError::Bindings)?;

    let mut sources = Vec::new();
    for package in PACKAGES {
        let name = format!("{package}.rs");
        let path = folder.path.join(&name);
        let text = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
        sources.push(format(&name, &text)?);
    }
    Ok(sources)
}

/// A folder of this process, removed when done: the generators only write to one.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
}

impl Scratch {
    pub(super) fn new(of: &str) -> io::Result<Self> {
        let path = env::temp_dir().join(format!("edge-csi-codegen-{of}-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind at worst: a folder in the system's place for temporary ones.
        let _ = fs::remove_dir_all(&self.path);
    }
}
