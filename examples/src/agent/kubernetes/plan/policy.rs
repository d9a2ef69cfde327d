//! From a CSIDriver to a policy.

use volume_manager::driver::{DriverPolicy, FsGroupPolicy, TokenRequest};

use crate::kubernetes::message::Driver;

/// What a driver's object says. What it leaves out is as the API server would have filled it in.
pub(super) fn policy(driver: &Driver) -> DriverPolicy {
    let has = |mode: &str| driver.lifecycle_modes.iter().any(|found| found == mode);
    let mut policy = DriverPolicy::default();
    policy.attach_required = driver.attach_required;
    policy.pod_info_on_mount = driver.pod_info_on_mount;
    policy.persistent = driver.lifecycle_modes.is_empty() || has("Persistent");
    policy.ephemeral = has("Ephemeral");
    policy.fs_group_policy = match driver.fs_group_policy.as_str() {
        "File" => FsGroupPolicy::File,
        "None" => FsGroupPolicy::None,
        _ => FsGroupPolicy::ReadWriteOnceWithFsType,
    };
    policy.requires_republish = driver.requires_republish;
    policy.selinux_mount = driver.selinux_mount;
    policy.token_in_secrets = driver.token_in_secrets;
    let requests = driver.token_requests.iter().map(|request| TokenRequest {
        audience: request.audience.clone(),
        expiration_seconds: request.expiration_seconds,
    });
    policy.token_requests = requests.collect();
    policy
}
