//! Secrets of your own: a file for each value, `DIR/NAMESPACE/NAME/KEY`, read for each call that needs it.
//!
//! `cargo run -p embed --bin own_secrets -- DIR NAMESPACE NAME` resolves one secret as a call would. A node program passes the
//! provider to its volumes: `Parts::new(store, mounts, FileSecrets { directory })`.
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use volume_manager::driver::{SecretError, SecretReference, SecretValues, Secrets};

/// Secrets in files below a directory.
struct FileSecrets {
    directory: PathBuf,
}

#[async_trait]
impl Secrets for FileSecrets {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        // A reference comes from a volume's spec: it must not lead out of the directory.
        let parts = [reference.namespace(), reference.name()];
        if parts.iter().any(|part| part.is_empty() || part.starts_with('.') || part.contains('/')) {
            return Err(SecretError::NotFound { reference: reference.clone() });
        }
        let directory = self.directory.join(parts[0]).join(parts[1]);
        // Reading files blocks, and `Secrets` must not. A call has 30 s.
        let read = tokio::task::spawn_blocking(move || read(&directory)).await;
        match read.map_err(io::Error::from).flatten() {
            Ok(values) => Ok(values),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(SecretError::NotFound { reference: reference.clone() })
            }
            // The reason is logged, so it has no value. The call is repeated later.
            Err(error) => {
                Err(SecretError::Unavailable { reference: reference.clone(), reason: error.to_string() })
            }
        }
    }
}

fn read(directory: &Path) -> io::Result<SecretValues> {
    let mut values = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let key = entry.file_name().into_string().map_err(|_| io::Error::other("a key is not UTF-8"))?;
        values.push((key, fs::read_to_string(entry.path())?));
    }
    Ok(values.into_iter().collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, namespace, name] = &arguments[..] else {
        return Err("usage: own_secrets DIR NAMESPACE NAME".into());
    };
    let secrets = FileSecrets { directory: directory.into() };
    match secrets.secret(&SecretReference::new(namespace, name)?).await {
        // The values are never printed.
        Ok(values) => println!("{namespace}/{name}: {values:?}"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
