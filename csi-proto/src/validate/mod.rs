//! The size rules of the spec, as warnings.
//!
//! Kubernetes and drivers exceed some of the limits in practice, so nothing here rejects a message: [`Validate::validate`]
//! returns violations of the spec, and the caller decides. The limits apply in both directions (spec, "Size Limits"). A warning
//! names the field and its size, never its value.

use std::fmt;

use crate::name::InvalidDriverName;

mod report;
mod topology;

pub use report::Report;

include!("../generated/validate_messages.rs");

/// The maximum size of a string in bytes, unless its field has a limit of its own.
pub const STRING_MAX_BYTES: usize = 128;
/// The maximum size of all keys and values of a map in bytes.
pub const MAP_MAX_BYTES: usize = 4096;
/// The maximum size of a node id in bytes; the spec recommends [`STRING_MAX_BYTES`].
pub const NODE_ID_MAX_BYTES: usize = 256;
/// The maximum size of all mount flags of a capability in bytes.
pub const MOUNT_FLAGS_MAX_BYTES: usize = 4096;
/// The maximum size in bytes of the prefix of a topology key, of its name, and of its value.
pub const SEGMENT_MAX_BYTES: usize = 63;
/// The maximum number of warnings per message; further ones are omitted.
pub const MAX_WARNINGS: usize = 64;

/// A message that can be checked against the size rules of the spec.
///
/// ```
/// use csi_proto::Validate;
/// use csi_proto::csi::v1::NodeStageVolumeRequest;
///
/// let request = NodeStageVolumeRequest { volume_id: "v".repeat(200), ..Default::default() };
/// let warnings: Vec<_> = request.validate().iter().map(ToString::to_string).collect();
/// assert_eq!(warnings, ["volume_id has 200 bytes; the spec allows 128"]);
/// ```
pub trait Validate {
    /// Adds the violations of this message to a report.
    fn check(&self, report: &mut Report);

    /// Returns the violations of this message, at most [`MAX_WARNINGS`]; empty if it conforms to the spec.
    fn validate(&self) -> Vec<Warning> {
        let mut report = Report::default();
        self.check(&mut report);
        report.into_warnings()
    }
}

/// A field that violates a rule of the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// Path of the field in the checked message: `volume_capabilities[2].mount.fs_type`.
    pub field: String,
    /// The rule and the value found.
    pub breach: Breach,
}

/// How a field violates a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breach {
    /// A string, a map or a list is larger than allowed.
    Size {
        /// Size in bytes; for a map the sum of all keys and values, for `mount_flags` the sum of all elements.
        found: usize,
        /// Limit of the spec in bytes.
        bound: usize,
    },
    /// The text is not a driver name.
    DriverName(InvalidDriverName),
    /// A part of a topology key, or its value, has more than [`SEGMENT_MAX_BYTES`].
    SegmentSize {
        /// The part that is too long.
        part: SegmentPart,
        /// The part's size in bytes.
        found: usize,
    },
    /// A part of a topology key, or its value, has a character that is not allowed at its position.
    SegmentForm(SegmentPart),
    /// Another key of the same topology differs only in case; keys are case-insensitive.
    SegmentRepeated,
    /// Another topology key of the same message has another prefix; a plugin uses only one.
    PrefixesDiffer,
}

/// A part of an entry of `Topology.segments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentPart {
    /// The part of the key before the slash: a domain name in lower case.
    Prefix,
    /// The part of the key after the slash; the whole key if it has no slash.
    Name,
    /// The value.
    Value,
}

impl fmt::Display for SegmentPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefix => "prefix",
            Self::Name => "name",
            Self::Value => "value",
        })
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match &self.breach {
            Breach::Size { found, bound } => write!(f, "{field} has {found} bytes; the spec allows {bound}"),
            Breach::DriverName(cause) => write!(f, "{field}: {cause}"),
            Breach::SegmentSize { part, found } => {
                write!(f, "the {part} of {field} has {found} bytes; the spec allows {SEGMENT_MAX_BYTES}")
            }
            Breach::SegmentForm(part) => {
                let (letter, others) = match part {
                    SegmentPart::Prefix => ("lower-case letter", "'-' and '.'"),
                    SegmentPart::Name | SegmentPart::Value => ("letter", "'-', '.' and '_'"),
                };
                write!(
                    f,
                    "the {part} of {field} must begin and end with a {letter} or digit; only these, {others} are allowed"
                )
            }
            Breach::SegmentRepeated => write!(f, "{field} differs from another key in case only; remove one"),
            Breach::PrefixesDiffer => {
                write!(
                    f,
                    "{field} has another prefix than the previous keys; a plugin uses one prefix for all keys"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Breach, MAX_WARNINGS, Validate, Warning};
    use crate::csi::v1::{
        ControllerPublishVolumeRequest, CreateVolumeRequest, GetPluginInfoResponse, NodeGetInfoResponse,
        NodePublishVolumeRequest, VolumeCapability, volume_capability::AccessType,
        volume_capability::MountVolume,
    };
    use crate::name::InvalidDriverName;

    fn size(field: &str, found: usize, bound: usize) -> Warning {
        Warning { field: field.to_owned(), breach: Breach::Size { found, bound } }
    }

    fn mount(fs_type: usize, flags: &[usize]) -> VolumeCapability {
        let mount_flags = flags.iter().map(|&bytes| "f".repeat(bytes)).collect();
        let mount = MountVolume { fs_type: "x".repeat(fs_type), mount_flags, ..MountVolume::default() };
        VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: None }
    }

    #[test]
    fn warns_above_the_limit_and_not_at_it() {
        let text = |bytes: usize| "t".repeat(bytes);
        for (found, warns) in [(128, false), (129, true)] {
            let request = CreateVolumeRequest { name: text(found), ..Default::default() };
            assert_eq!(request.validate(), if warns { vec![size("name", found, 128)] } else { vec![] });
        }
        for (found, warns) in [(256, false), (257, true)] {
            let request = ControllerPublishVolumeRequest { node_id: text(found), ..Default::default() };
            assert_eq!(request.validate(), if warns { vec![size("node_id", found, 256)] } else { vec![] });
            let response = NodeGetInfoResponse { node_id: text(found), ..Default::default() };
            assert_eq!(response.validate(), if warns { vec![size("node_id", found, 256)] } else { vec![] });
        }
        for (found, warns) in [(4096, false), (4097, true)] {
            let parameters = [("k".to_owned(), text(found - 1))].into();
            let request = CreateVolumeRequest { parameters, ..Default::default() };
            assert_eq!(
                request.validate(),
                if warns { vec![size("parameters", found, 4096)] } else { vec![] }
            );
        }
    }

    #[test]
    fn sums_the_size_of_mount_flags() {
        let within =
            CreateVolumeRequest { volume_capabilities: vec![mount(1, &[2048, 2048])], ..Default::default() };
        assert_eq!(within.validate(), []);
        let above =
            CreateVolumeRequest { volume_capabilities: vec![mount(1, &[2048, 2049])], ..Default::default() };
        assert_eq!(above.validate(), [size("volume_capabilities[0].mount.mount_flags", 4097, 4096)]);
    }

    #[test]
    fn a_field_is_named_by_its_path() {
        let volume_capabilities = vec![mount(1, &[]), mount(129, &[])];
        let request =
            CreateVolumeRequest { volume_capabilities, name: "n".repeat(130), ..Default::default() };
        assert_eq!(
            request.validate(),
            [size("name", 130, 128), size("volume_capabilities[1].mount.fs_type", 129, 128)]
        );
    }

    #[test]
    fn paths_have_no_bound() {
        let path = "/".repeat(5000);
        let request = NodePublishVolumeRequest {
            target_path: path.clone(),
            staging_target_path: path,
            ..Default::default()
        };
        assert_eq!(request.validate(), []);
    }

    #[test]
    fn a_driver_name_has_its_own_form() {
        let response = GetPluginInfoResponse { name: "n".repeat(64), ..Default::default() };
        let breach = Breach::DriverName(InvalidDriverName::TooLong { found: 64 });
        assert_eq!(response.validate(), [Warning { field: "name".to_owned(), breach }]);
    }

    #[test]
    fn limits_the_number_of_warnings() {
        let volume_capabilities = vec![mount(200, &[]); 10 * MAX_WARNINGS];
        let request = CreateVolumeRequest { volume_capabilities, ..Default::default() };
        assert_eq!(request.validate().len(), MAX_WARNINGS);
    }
}
