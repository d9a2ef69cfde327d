//! Parameters of storage classes.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::CallError;
use crate::volume::{KIND_PARAMETER, VolumeKind};

// The prefix of the parameters that sidecars add, like the name of the claim.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// Parses the parameters of a volume.
///
/// # Errors
/// Returns an error for an unknown key or value.
pub(super) fn volume_kind(parameters: &BTreeMap<String, String>) -> Result<Option<VolumeKind>, CallError> {
    no_others(parameters, &[KIND_PARAMETER])?;
    let Some(kind) = parameters.get(KIND_PARAMETER) else { return Ok(None) };
    VolumeKind::parse(kind).map(Some).ok_or_else(|| {
        CallError::invalid(
            "parameters",
            format!("{KIND_PARAMETER}={kind}"),
            format!("{KIND_PARAMETER}=directory or {KIND_PARAMETER}=loop"),
        )
    })
}

/// Checks that there are only the parameters of the sidecars and the known ones.
///
/// # Errors
/// Returns an error for an unknown key.
pub(super) fn no_others(parameters: &BTreeMap<String, String>, known: &[&str]) -> Result<(), CallError> {
    let unknown = |key: &&String| !key.starts_with(SIDECAR_PREFIX) && !known.contains(&key.as_str());
    match parameters.keys().find(unknown) {
        None => Ok(()),
        Some(key) => Err(CallError::invalid(
            "parameters",
            key,
            if known.is_empty() { "no parameters".to_owned() } else { format!("only {}", known.join(", ")) },
        )),
    }
}

/// Checks that these parameters may be modified.
///
/// # Errors
/// Returns an error for a key that is not in the driver's configuration.
pub(super) fn mutable(
    parameters: &BTreeMap<String, String>,
    allowed: &BTreeSet<String>,
) -> Result<(), CallError> {
    match parameters.keys().find(|key| !allowed.contains(*key)) {
        None => Ok(()),
        Some(key) => Err(CallError::invalid(
            "mutable_parameters",
            key,
            format!("one of {allowed:?}, which --mutable-parameters names"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn parameters_that_are_not_known_are_named() {
        assert_eq!(volume_kind(&map(&[("csi.storage.k8s.io/pvc/name", "x")])).unwrap(), None);
        assert_eq!(volume_kind(&map(&[("kind", "loop")])).unwrap(), Some(VolumeKind::Loop));
        for (bad, names) in [(("kind", "lop"), "lop"), (("sort", "loop"), "sort")] {
            let error = volume_kind(&map(&[bad])).unwrap_err();
            assert!(
                error.to_string().contains(names) && error.code() == tonic::Code::InvalidArgument,
                "{error}"
            );
        }
        assert!(mutable(&map(&[("iops", "1")]), &BTreeSet::from(["iops".to_owned()])).is_ok());
        assert!(mutable(&map(&[("iops", "1"), ("x", "1")]), &BTreeSet::from(["iops".to_owned()])).is_err());
    }
}
