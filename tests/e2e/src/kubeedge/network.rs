//! The network of a run. The ports of KubeEdge are fixed, and cloudcore needs an address that is not loopback.

use std::process::Command;

use crate::error::E2eError;
use crate::kubernetes::image;

/// The address of the machine, for cloudcore and edgecore.
pub(super) const ADDRESS: &str = "10.99.0.1";

/// Creates a pair of links. The first one has [`ADDRESS`] and a default route.
pub(super) fn create() -> Result<(), E2eError> {
    let address = format!("address add {ADDRESS}/24 dev edge0");
    let orders = [
        "link set lo up",
        "link add edge0 type veth peer name edge1",
        &address,
        "link set edge0 up",
        "link set edge1 up",
        "route add default via 10.99.0.2",
    ];
    orders.iter().try_for_each(|order| image::run(Command::new("ip").args(order.split(' '))).map(drop))
}
