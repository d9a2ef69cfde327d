//! Objects for the core.

use std::sync::Arc;

use super::super::*;
use edge_csi_common::kubernetes::message::{Attachment, Claim, Driver, PodVolume, TokenRequest};

pub(super) type Applied = (Kind, ObjectKey, Option<Value>);

/// A pod in namespace `n` with volumes named like their claims.
pub(super) fn pod(name: &str, node: &str, claims: &[&str]) -> Applied {
    let volumes = claims.iter().map(|claim| PodVolume {
        name: (*claim).to_owned(),
        claim: (*claim).to_owned(),
        ..PodVolume::default()
    });
    let pod = Pod {
        namespace: "n".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        service_account: "default".to_owned(),
        volumes: volumes.collect(),
        ..Pod::default()
    };
    let node = NodeName::new(node).unwrap();
    let record = PodRecord { node, ephemeral: Default::default(), pod: Arc::new(pod) };
    (Kind::Pod, Kind::Pod.key("n", name), Some(Value::Pod(record)))
}

/// A claim in namespace `n` that is bound to a volume, or to none.
pub(super) fn claim(name: &str, volume: &str) -> Applied {
    let claim = Claim {
        namespace: "n".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        volume: volume.to_owned(),
        expand_to: 0,
    };
    let record = ClaimRecord { claim, owner: None, pending: false };
    (Kind::Claim, Kind::Claim.key("n", name), Some(Value::Claim(record)))
}

/// A volume of 100 bytes with a secret `stage-NAME`, of CSI if it has a driver.
pub(super) fn volume(name: &str, claim_uid: &str, driver: Option<&str>) -> Applied {
    let volume = driver.map(|driver| {
        Arc::new(PersistentVolume {
            name: name.to_owned(),
            driver: driver.to_owned(),
            volume_handle: format!("handle-{name}"),
            claim_uid: claim_uid.to_owned(),
            node_stage_secret: Some(SecretName { namespace: "s".to_owned(), name: format!("stage-{name}") }),
            ..PersistentVolume::default()
        })
    });
    let record = VolumeRecord { volume, capacity: 100 };
    (Kind::PersistentVolume, Kind::PersistentVolume.key("", name), Some(Value::PersistentVolume(record)))
}

/// An attachment of volume `v`.
pub(super) fn attachment(name: &str, node: &str, attached: bool) -> Applied {
    let attachment = Attachment {
        name: name.to_owned(),
        attacher: "csi".to_owned(),
        volume: "v".to_owned(),
        attached,
        ..Attachment::default()
    };
    let value = Value::Attachment(NodeName::new(node).unwrap(), Arc::new(attachment));
    (Kind::Attachment, Kind::Attachment.key("", name), Some(value))
}

/// A driver that wants a token.
pub(super) fn driver(name: &str) -> Applied {
    let token = TokenRequest { audience: "vault".to_owned(), expiration_seconds: None };
    let driver = Driver { name: name.to_owned(), token_requests: vec![token], ..Driver::default() };
    (Kind::Driver, Kind::Driver.key("", name), Some(Value::Driver(Arc::new(driver))))
}
