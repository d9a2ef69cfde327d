//! Decodes the answers of NodeGetVolumeStats and NodeGetVolumeHealth.

use csi_proto::csi::v1::volume_usage::Unit;
use csi_proto::csi::v1::{NodeGetVolumeHealthResponse, VolumeHealthErrorType, VolumeUsage};

use super::outcome::{HealthIssue, HealthStatus, Usage, VolumeCondition, VolumeStats};
use crate::excerpt::excerpt;

/// The size in bytes at which a reason is cut.
const MAX_REASON: usize = 128;

/// The size in bytes at which a description is cut.
const MAX_MESSAGE: usize = 1024;

/// The maximum number of health issues of one volume that are read.
const MAX_ISSUES: usize = 64;

/// The answer of NodeGetVolumeStats in all versions. Version 1.13 removed its second field.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatsAnswer {
    #[prost(message, repeated, tag = "1")]
    pub(super) usage: Vec<VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    pub(super) volume_condition: Option<ConditionAnswer>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct ConditionAnswer {
    #[prost(bool, tag = "1")]
    pub(super) abnormal: bool,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// Decodes the answer. Its condition is ignored without the capability `VOLUME_CONDITION`.
pub(super) fn stats(answer: StatsAnswer, has_condition: bool) -> VolumeStats {
    let usage = |unit: Unit| {
        let found = answer.usage.iter().find(|usage| usage.unit == i32::from(unit))?;
        let non_negative = |number: i64| u64::try_from(number).unwrap_or(0);
        Some(Usage {
            total: non_negative(found.total),
            used: non_negative(found.used),
            available: non_negative(found.available),
        })
    };
    VolumeStats {
        bytes: usage(Unit::Bytes),
        inodes: usage(Unit::Inodes),
        condition: answer.volume_condition.filter(|_| has_condition).map(|condition| VolumeCondition {
            abnormal: condition.abnormal,
            message: excerpt(&condition.message, MAX_MESSAGE),
        }),
    }
}

pub(super) fn health(answer: NodeGetVolumeHealthResponse) -> Vec<HealthIssue> {
    let entries = answer.volume_health.map(|health| health.health_statuses).unwrap_or_default();
    let issue = |entry: csi_proto::csi::v1::volume_health::VolumeHealthEntry| HealthIssue {
        status: match entry.status() {
            VolumeHealthErrorType::UnknownVolumeHealthType => HealthStatus::Unknown,
            VolumeHealthErrorType::Degraded => HealthStatus::Degraded,
            VolumeHealthErrorType::Inaccessible => HealthStatus::Inaccessible,
            VolumeHealthErrorType::DataLoss => HealthStatus::DataLoss,
        },
        reason: excerpt(&entry.reason, MAX_REASON),
        message: excerpt(&entry.message, MAX_MESSAGE),
    };
    entries.into_iter().take(MAX_ISSUES).map(issue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(unit: i32, total: i64, used: i64, available: i64) -> VolumeUsage {
        VolumeUsage { available, total, used, unit }
    }

    #[test]
    fn usage_is_read_by_unit_and_negative_numbers_are_zero() {
        let answer = StatsAnswer {
            usage: vec![usage(2, 7, 8, 9), usage(99, 1, 1, 1), usage(1, 10, 4, -6), usage(1, 0, 0, 0)],
            volume_condition: None,
        };
        let stats = stats(answer, false);
        assert_eq!(stats.bytes, Some(Usage { total: 10, used: 4, available: 0 }));
        assert_eq!(stats.inodes, Some(Usage { total: 7, used: 8, available: 9 }));
    }

    #[test]
    fn condition_is_ignored_without_the_capability() {
        let condition = ConditionAnswer { abnormal: true, message: "x".repeat(2000) };
        let answer = StatsAnswer { usage: vec![], volume_condition: Some(condition) };
        assert_eq!(stats(answer.clone(), false).condition, None);
        let read = stats(answer, true).condition.unwrap();
        assert!(read.abnormal && read.message.len() <= 1024 + '…'.len_utf8());
    }
}
