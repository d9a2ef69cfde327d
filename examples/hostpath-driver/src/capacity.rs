//! Sizes: the range that a caller requests, and the size of a volume.

use csi_proto::csi::v1 as csi;

use super::capability::Capability;
use super::error::CallError;
use super::filesystem::FileSystem;
use super::volume::VolumeKind;

/// The size of a volume when the request has no range.
pub const DEFAULT_BYTES: u64 = 1 << 30;

// The size of an image is a multiple of this unit.
const IMAGE_UNIT: u64 = 4096;

/// A range of sizes in bytes, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    required: u64,
    limit: Option<u64>,
}

impl SizeRange {
    /// Parses the range of a request. A missing range allows every size.
    ///
    /// # Errors
    /// Returns an error if a number is negative, or if the limit is below the required size.
    pub fn parse(range: Option<&csi::CapacityRange>) -> Result<Self, CallError> {
        let Some(range) = range else { return Ok(Self { required: 0, limit: None }) };
        let number = |field, bytes: i64| {
            let expected = "0 or more bytes".to_owned();
            u64::try_from(bytes).map_err(|_| CallError::invalid(field, bytes, expected))
        };
        let required = number("capacity_range.required_bytes", range.required_bytes)?;
        let limit = number("capacity_range.limit_bytes", range.limit_bytes)?;
        let limit = (limit > 0).then_some(limit);
        if limit.is_some_and(|limit| limit < required) {
            let expected = format!("at least required_bytes, which is {required}");
            return Err(CallError::invalid("capacity_range.limit_bytes", range.limit_bytes, expected));
        }
        Ok(Self { required, limit })
    }

    /// Returns the size of a volume with this range: the smallest that is at least `minimum` and valid for its kind.
    ///
    /// # Errors
    /// Returns [`CallError::OutOfRange`] if the limit is below that size.
    pub fn choose(self, kind: VolumeKind, minimum: u64) -> Result<u64, CallError> {
        let wanted = match (self.required, self.limit) {
            (0, None) => DEFAULT_BYTES,
            (0, Some(limit)) => DEFAULT_BYTES.min(limit),
            (required, _) => required,
        };
        let unit = match kind {
            VolumeKind::Directory => 1,
            VolumeKind::Loop => IMAGE_UNIT,
        };
        let too_much = || CallError::OutOfRange {
            found: self.required.to_string(),
            expected: "less than 8 EiB".to_owned(),
        };
        let bytes = wanted.max(minimum).checked_next_multiple_of(unit).filter(|b| i64::try_from(*b).is_ok());
        let bytes = bytes.ok_or_else(too_much)?;
        match self.limit {
            // A size that exceeds the limit only by rounding may fit one unit below.
            Some(limit) if bytes > limit => {
                let below = limit / unit * unit;
                if below >= self.required.max(minimum) && below > 0 {
                    return Ok(below);
                }
                let expected = format!("at least {bytes} bytes for a volume of kind {}", kind.name());
                Err(CallError::OutOfRange { found: format!("at most {limit} bytes"), expected })
            }
            _ => Ok(bytes),
        }
    }

    /// Returns true if a volume of this size is in the range.
    pub fn contains(self, bytes: u64) -> bool {
        self.required <= bytes && self.limit.is_none_or(|limit| bytes <= limit)
    }

    /// Formats the range for a message.
    pub fn describe(self) -> String {
        match self.limit {
            Some(limit) => format!("{} to {limit} bytes", self.required),
            None => format!("{} bytes or more", self.required),
        }
    }
}

/// Returns the smallest size of a volume of this kind that provides all capabilities.
pub fn minimum_bytes(kind: VolumeKind, capabilities: &[Capability]) -> u64 {
    match kind {
        VolumeKind::Directory => 0,
        VolumeKind::Loop => capabilities
            .iter()
            .filter_map(Capability::fs_type)
            .map(FileSystem::minimum_bytes)
            .max()
            .unwrap_or(IMAGE_UNIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<SizeRange, CallError> {
        SizeRange::parse(Some(&csi::CapacityRange { required_bytes, limit_bytes }))
    }

    #[test]
    fn a_size_is_chosen_within_the_range_or_refused() {
        use VolumeKind::{Directory, Loop};
        for (required, limit, kind, minimum, expected) in [
            (0, 0, Loop, 0, Some(DEFAULT_BYTES)),
            (0, 5000, Directory, 0, Some(5000)),
            (0, 5000, Loop, 0, Some(4096)),
            (5, 0, Loop, 0, Some(4096)),
            (5, 0, Directory, 0, Some(5)),
            (5, 10, Loop, 0, None),
            (1 << 20, 1 << 20, Loop, 0, Some(1 << 20)),
            (1 << 20, 0, Loop, 300 << 20, Some(300 << 20)),
            (1 << 20, 2 << 20, Loop, 300 << 20, None),
            (i64::MAX, 0, Loop, 0, None),
            (i64::MAX, 0, Directory, 0, Some(i64::MAX as u64)),
        ] {
            let chosen = range(required, limit).unwrap().choose(kind, minimum);
            assert_eq!(chosen.as_ref().ok().copied(), expected, "{required}..{limit} {kind:?}: {chosen:?}");
        }
    }

    #[test]
    fn rejects_invalid_ranges_and_names_the_field() {
        for (required, limit, names) in
            [(-1, 0, "required_bytes"), (0, -1, "limit_bytes"), (2, 1, "limit_bytes")]
        {
            let error = range(required, limit).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.to_string().contains(names), "{error}");
        }
    }
}
