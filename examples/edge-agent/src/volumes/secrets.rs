//! Secrets from files `DIR/NAMESPACE/NAME/KEY`, each readable by its owner only, with a fallback.
//!
//! Files have priority: they are available offline.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_proto::DriverName;
use rustix::fs::OFlags;
use volume_manager::driver::{
    PodInfo, SecretError, SecretReference, SecretValues, Secrets, ServiceAccountToken, TokenRequest,
};

/// The maximum number of keys of one secret.
const MAX_KEYS: usize = 256;

/// The secrets of a node: its files, then the fallback.
pub(super) struct NodeSecrets {
    pub(super) directory: Option<PathBuf>,
    pub(super) fallback: Option<Arc<dyn Secrets>>,
}

#[async_trait]
impl Secrets for NodeSecrets {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        let mut found = Err(unavailable(reference, "the agent has no --secrets-dir"));
        let mut is_missing = true;
        if let Some(directory) = self.directory.clone() {
            let requested = reference.clone();
            let reading = tokio::task::spawn_blocking(move || read(&directory, &requested)).await;
            found = reading.unwrap_or_else(|error| Err(unavailable(reference, error)));
            is_missing = matches!(found, Err(SecretError::NotFound { .. }));
        }
        match &self.fallback {
            Some(fallback) if is_missing => fallback.secret(reference).await,
            _ => found,
        }
    }

    async fn service_account_tokens(
        &self,
        driver: &DriverName,
        pod: &PodInfo,
        requests: &[TokenRequest],
    ) -> Result<Vec<ServiceAccountToken>, SecretError> {
        match &self.fallback {
            Some(fallback) => fallback.service_account_tokens(driver, pod, requests).await,
            None => Err(SecretError::NoTokens),
        }
    }
}

fn unavailable(reference: &SecretReference, reason: impl ToString) -> SecretError {
    SecretError::Unavailable { reference: reference.clone(), reason: reason.to_string() }
}

fn read(directory: &Path, reference: &SecretReference) -> Result<SecretValues, SecretError> {
    let unavailable = |reason: String| unavailable(reference, reason);
    for part in [reference.namespace(), reference.name()] {
        let mut components = Path::new(part).components();
        if !matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)) {
            return Err(unavailable(
                "its namespace and name must each be the name of a directory".to_owned(),
            ));
        }
    }
    let folder = directory.join(reference.namespace()).join(reference.name());
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SecretError::NotFound { reference: reference.clone() });
        }
        Err(error) => return Err(unavailable(format!("{}: {error}", folder.display()))),
    };
    let mut values = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let path = entry.map_err(|error| unavailable(error.to_string()))?.path();
        let Some(key) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // Kubernetes' hidden directories and the drafts of editors are not keys.
        if key.starts_with('.') {
            continue;
        }
        let value = read_value(&path).map_err(|error| unavailable(format!("{}: {error}", path.display())))?;
        bytes += key.len() + value.len();
        if bytes > SecretReference::MAX_VALUE_BYTES {
            return Err(SecretError::TooLarge { reference: reference.clone(), found: bytes });
        }
        values.push((key.to_owned(), value));
        if values.len() > MAX_KEYS {
            return Err(unavailable(format!("it has too many keys; expected at most {MAX_KEYS}")));
        }
    }
    Ok(values.into_iter().collect())
}

fn read_value(path: &Path) -> Result<String, String> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let file =
        File::options().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("its mode is {mode:04o}, which gives others access; set it to 0600"));
    }
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(format!("its owner is user {owner}; expected the agent's user or root"));
    }
    let max = SecretReference::MAX_VALUE_BYTES;
    let mut value = String::new();
    let read = file.take(u64::try_from(max).unwrap_or(u64::MAX) + 1).read_to_string(&mut value);
    match read {
        Ok(found) if found > max => Err(format!("it is too large; expected at most {max} bytes")),
        Ok(_) => Ok(value),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, value: &str, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[tokio::test]
    async fn falls_back_for_missing_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let reference = |name: &str| SecretReference::new("default", name).unwrap();
        write(&directory.path().join("default/file/from"), "file", 0o600);
        write(&directory.path().join("default/open/from"), "file", 0o644);
        let from = |from: &str| -> SecretValues { [("from", from)].into_iter().collect() };
        let mut fallback = volume_manager::driver::MemorySecrets::default();
        for name in ["file", "open", "other"] {
            fallback = fallback.with(reference(name), from("fallback"));
        }
        let fallback: Arc<dyn Secrets> = Arc::new(fallback);
        let mut secrets = NodeSecrets {
            directory: Some(directory.path().to_owned()),
            fallback: Some(Arc::clone(&fallback)),
        };
        assert!(secrets.secret(&reference("file")).await.unwrap() == from("file"));
        assert!(secrets.secret(&reference("other")).await.unwrap() == from("fallback"));
        assert!(matches!(secrets.secret(&reference("open")).await, Err(SecretError::Unavailable { .. })));
        assert!(matches!(secrets.secret(&reference("none")).await, Err(SecretError::NotFound { .. })));
        secrets.directory = None;
        assert!(secrets.secret(&reference("open")).await.unwrap() == from("fallback"));
    }

    #[test]
    fn reads_secret_files_with_private_modes_only() {
        let directory = tempfile::tempdir().unwrap();
        let reference = |namespace: &str, name: &str| SecretReference::new(namespace, name).unwrap();
        let at = |path: &str| directory.path().join(path);
        write(&at("default/good/user"), "root", 0o600);
        write(&at("default/good/password"), "hunter2\n", 0o400);
        write(&at("default/good/.draft"), "x", 0o644);
        let expected: SecretValues = [("user", "root"), ("password", "hunter2\n")].into_iter().collect();
        assert!(read(directory.path(), &reference("default", "good")).unwrap() == expected);
        assert!(matches!(
            read(directory.path(), &reference("default", "none")),
            Err(SecretError::NotFound { .. })
        ));
        write(&at("default/open/key"), "hunter2", 0o640);
        write(&at("default/large/key"), &"x".repeat(1 << 20), 0o600);
        fs::create_dir_all(at("default/link")).unwrap();
        std::os::unix::fs::symlink(at("default/good/user"), at("default/link/user")).unwrap();
        for (namespace, name, expected) in [
            ("default", "open", "0640"),
            ("default", "large", "1048579"),
            ("default", "link", "default/link/user"),
            ("..", "default", "name of a directory"),
            ("default", "../default", "name of a directory"),
            ("", "good", "name of a directory"),
        ] {
            let error = read(directory.path(), &reference(namespace, name)).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{expected}: {error}");
        }
    }
}
