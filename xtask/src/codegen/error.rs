//! What can go wrong while generating.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why the generated sources could not be made, or are not what the schema says.
#[derive(Debug)]
pub(crate) enum CodegenError {
    /// The schema does not compile.
    Schema(protox::Error),
    /// The code generators of prost and tonic failed.
    Bindings(io::Error),
    /// A generated source is not Rust: a defect of the generator.
    Unparseable { name: String, cause: syn::Error },
    /// An RPC of the schema has no row in the table of facts.
    FactsMissing { rpc: String },
    /// A row in the table of facts belongs to no RPC of the schema.
    FactsWithoutRpc { rpc: &'static str },
    /// The table of facts names a field that the RPC's request does not have.
    FieldMissing { rpc: String, field: String },
    /// A field of a kind that the size rules do not cover yet.
    Unmeasured { field: String },
    /// A committed file differs from what the schema gives.
    Stale { path: PathBuf },
    /// A committed file which nothing generates.
    Orphan { path: PathBuf },
    /// A file could not be read.
    Read { path: PathBuf, cause: io::Error },
    /// A file could not be written.
    Write { path: PathBuf, cause: io::Error },
}

impl CodegenError {
    pub(crate) fn read(path: &Path, cause: io::Error) -> Self {
        Self::Read { path: path.to_owned(), cause }
    }

    pub(crate) fn write(path: &Path, cause: io::Error) -> Self {
        Self::Write { path: path.to_owned(), cause }
    }
}

impl fmt::Display for CodegenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schema(_) => write!(f, "the schema does not compile"),
            Self::Bindings(_) => write!(f, "the message and service bindings could not be generated"),
            Self::Unparseable { name, .. } => write!(f, "the generated {name} is not valid Rust"),
            Self::FactsMissing { rpc } => {
                write!(f, "no facts about {rpc}; add its row to xtask/src/codegen/facts.rs")
            }
            Self::FactsWithoutRpc { rpc } => {
                write!(f, "{rpc} is not in the schema; remove its row from xtask/src/codegen/facts.rs")
            }
            Self::FieldMissing { rpc, field } => {
                write!(f, "the request of {rpc} has no field {field}; correct xtask/src/codegen/facts.rs")
            }
            Self::Unmeasured { field } => {
                write!(f, "no size rule fits {field}; add one to xtask/src/codegen/validation.rs")
            }
            Self::Stale { path } => {
                write!(f, "{} differs from the schema; run `cargo xtask codegen`", path.display())
            }
            Self::Orphan { path } => {
                write!(f, "{} is not generated any more; run `cargo xtask codegen`", path.display())
            }
            Self::Read { path, .. } => write!(f, "cannot read {}", path.display()),
            Self::Write { path, .. } => write!(f, "cannot write {}", path.display()),
        }
    }
}

impl Error for CodegenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Schema(cause) => Some(cause),
            Self::Bindings(cause) | Self::Read { cause, .. } | Self::Write { cause, .. } => Some(cause),
            Self::Unparseable { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
