//! Staging paths: `ROOT/DRIVER/NAME/staging`, with a short NAME for an id of any length.

use std::path::{Path, PathBuf};

use crate::name::VolumeKey;

/// Returns the name of a volume's directory: 32 hexadecimal digits, a hash of the id.
///
/// The spec requires drivers to accept staging paths of 128 bytes, while an id alone may be longer; hence a hash. Ids
/// of one driver with the same hash differ in `suffix`. The name is part of the volume's record, so it never depends on
/// other volumes.
pub(super) fn directory_name(key: &VolumeKey, suffix: u32) -> String {
    let hash = fnv_1a_128(key.id.as_str().as_bytes());
    if suffix == 0 { format!("{hash:032x}") } else { format!("{hash:032x}-{suffix}") }
}

/// Returns the staging directory of a volume below `root`, for the directory name in its record.
pub(super) fn staging_path(root: &Path, key: &VolumeKey, directory_name: &str) -> PathBuf {
    root.join(key.driver.as_str()).join(directory_name).join("staging")
}

/// Returns whether a name from a record has the form of [`directory_name`], which never leaves the root.
pub(super) fn is_directory_name(name: &str) -> bool {
    let (hash, suffix) = name.split_once('-').unwrap_or((name, "1"));
    hash.len() == 32
        && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && !suffix.is_empty()
        && suffix.len() <= 10
        && suffix.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the 128-bit Fowler-Noll-Vo hash. The hash need not resist an attacker, because a collision only costs a
/// suffix.
fn fnv_1a_128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_proto::{DriverName, VolumeId};

    fn key(id: &str) -> VolumeKey {
        VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new(id).unwrap() }
    }

    #[test]
    fn any_id_gives_a_short_path_below_the_root() {
        for id in ["a", "../../etc", "a/b", &"x".repeat(4096)] {
            let name = directory_name(&key(id), 0);
            assert!(is_directory_name(&name) && is_directory_name(&directory_name(&key(id), 3)));
            let path = staging_path(Path::new("/var/lib/edge/volumes"), &key(id), &name);
            assert!(path.starts_with("/var/lib/edge/volumes/d.example") && path.as_os_str().len() <= 128);
        }
        assert_ne!(directory_name(&key("a"), 0), directory_name(&key("b"), 0));
        assert_ne!(directory_name(&key("a"), 0), directory_name(&key("a"), 1));
    }

    #[test]
    fn rejects_directory_names_that_leave_the_root() {
        let good = directory_name(&key("a"), 0);
        for bad in
            ["", "..", "/", &good[1..], &format!("{good}-"), &format!("{good}-x"), &format!("{good}/..")]
        {
            assert!(!is_directory_name(bad), "{bad}");
        }
    }

    #[test]
    fn hash_matches_the_published_test_vectors() {
        assert_eq!(fnv_1a_128(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv_1a_128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
