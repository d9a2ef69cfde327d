//! Refuses the calls of other hosts that only a caller on the node may make.

use std::fmt::Display;

use csi_proto::Code;

use crate::call::{Call, Fault, MethodPath, Outcome};

/// The beginning of the names of CSI's services, in all versions.
const CSI_PACKAGE: &str = "csi.";

/// Why a call of another host is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// The method of CSI must not come from another host.
    Method,
    /// The method's service is not CSI's, and unknown as to every gRPC server.
    Service,
    /// The call is for another driver than this service, which the request names.
    #[cfg(feature = "edge-transport")]
    Driver(String),
}

impl Refused {
    /// Why a method must not be called from another host (see [`MethodPath::is_remote`]).
    pub(super) fn of_method(method: &MethodPath) -> Option<Self> {
        (!method.is_remote()).then(|| match method.service().starts_with(CSI_PACKAGE) {
            true => Self::Method,
            false => Self::Service,
        })
    }

    /// The outcome of the refused call, which is counted, and logged: as a warning, unless warnings could fill the log.
    pub(super) fn outcome(self, source: &dyn Display, call: &Call, may_warn: bool) -> Outcome {
        let Call { driver, method, .. } = call;
        let (cause, reason) = match &self {
            Self::Method | Self::Service => (
                "method",
                format!("{method} cannot be called from another host; call it on the socket of the node"),
            ),
            #[cfg(feature = "edge-transport")]
            Self::Driver(service) => {
                ("driver", format!("the request is for {service}, and its header names driver {driver}"))
            }
        };
        #[cfg(feature = "metrics")]
        crate::metrics::refused(cause);
        if may_warn {
            tracing::warn!(%source, %driver, %method, cause, "call of another peer refused: {reason}");
        } else {
            tracing::debug!(%source, %driver, %method, cause, "call of another peer refused: {reason}");
        }
        match self {
            // A caller must not retry the call.
            Self::Service => Outcome::from_endpoint(Code::UNIMPLEMENTED, ""),
            _ => Fault::Forbidden { reason }.into(),
        }
    }
}
