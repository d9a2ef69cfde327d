//! The errors of code generation.

use std::io;
use std::path::{Path, PathBuf};

/// An error of generating the sources or comparing them with the schema.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodegenError {
    /// The schema does not compile.
    #[error("the schema does not compile")]
    Schema(#[source] protox::Error),
    /// The code generators of prost and tonic failed.
    #[error("the message and service bindings could not be generated")]
    Bindings(#[source] io::Error),
    /// The generator has a defect.
    #[error("the generated {name} is not valid Rust")]
    Unparseable { name: String, source: syn::Error },
    /// An RPC of the schema has no row in the table of facts.
    #[error("no facts about {rpc}; add its row to xtask/src/codegen/facts.rs")]
    FactsMissing { rpc: String },
    /// A row in the table of facts belongs to no RPC of the schema.
    #[error("{rpc} is not in the schema; remove its row from xtask/src/codegen/facts.rs")]
    FactsWithoutRpc { rpc: &'static str },
    /// The table of facts names a field that the RPC's request does not have.
    #[error("the request of {rpc} has no field {field}; correct xtask/src/codegen/facts.rs")]
    FieldMissing { rpc: String, field: String },
    /// A field has a type without a size rule.
    #[error("no size rule fits {field}; add one to xtask/src/codegen/validation.rs")]
    NoSizeRule { field: String },
    /// The source of a diagram cannot be drawn.
    #[error("cannot draw {path}: {message}", path = path.display())]
    Undrawable { path: PathBuf, message: String },
    /// A committed file differs from its generated text.
    #[error("{path} differs from what is generated; run `cargo xtask codegen`", path = path.display())]
    Stale { path: PathBuf },
    /// A committed file is not generated any more.
    #[error("{path} is not generated any more; run `cargo xtask codegen`", path = path.display())]
    Orphan { path: PathBuf },
    /// A file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file could not be written.
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl CodegenError {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }
}
