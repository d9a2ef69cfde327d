#![cfg_attr(feature = "runtime", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "runtime"),
    doc = "The pure cores of a session transport: frames, the session, and a hub's routing table."
)]
#![cfg_attr(edge_csi_docs, doc = "\n# Features\n\n", doc = document_features::document_features!())]
#![cfg_attr(edge_csi_docs, feature(doc_cfg))]

mod fair_queue;
mod fair_share;
mod frame;
#[cfg(feature = "runtime")]
mod frame_io;
mod generated;
pub mod hub;
mod id_map;
#[cfg(feature = "runtime")]
pub mod link;
pub mod name;
pub mod peer;
pub mod presence;
#[cfg(feature = "tls")]
pub mod reload;
mod session;
#[cfg(feature = "runtime")]
mod setters;
#[cfg(feature = "runtime")]
mod start_error;
#[cfg(feature = "tls")]
pub mod tls;
pub mod token;

/// The pure cores, for simulations and fuzzing, all timeouts and limits as structs, for tests, and what the programs of this
/// repository share. No promise of stability: they change with any version.
pub mod advanced {
    pub use crate::hub::core::{Core, SessionKey};
    pub use crate::hub::settings::HubSettings;
    pub use crate::hub::stats::Presence;
    #[cfg(feature = "uds")]
    pub use crate::link::uds::bind::{BoundSocket, bind_socket};
    pub use crate::peer::backoff::Backoff;
    #[cfg(feature = "runtime")]
    pub use crate::peer::builder::PeerSettings;
    #[cfg(feature = "tls")]
    pub use crate::reload::watch::ReloadEvent;
    pub use crate::session::{
        Action, CloseReason, Event, InboundCallId, Incoming, LinkAction, LinkCore, LinkEvent, LinkState,
        Remote, Role, Session, SessionSettings, Stats,
    };

    /// Frames and their encoding, for programs that speak the protocol without a [`Peer`](crate::Peer). A frame is a varint, a
    /// header of that many bytes (`edge.session.v1.Header` of the published schema), and a body that is opaque to the transport.
    pub mod frame {
        pub use crate::frame::{
            DEFAULT_MAX_FRAME, DecodeError, Encoder, End, Frame, HEADROOM, Hello, Kind, Lane, MAX_FEATURES,
            MAX_HEADER, MAX_SERVICES, MAX_TEXT, MESSAGE_COST, MIN_MAX_FRAME, PROTOCOL_VERSION, Part, Reply,
            WireFrame, cost, decode, encode,
        };
    }
}

pub use frame::{Failure, MAX_CLOSING, MAX_METADATA, Reason, Request};
#[cfg(feature = "runtime")]
pub use hub::Hub;
pub use name::{InvalidName, PeerId, ServiceName, SessionId};
#[cfg(feature = "runtime")]
pub use peer::{
    CallError, Cancelled, ConnectError, HubSet, Peer, PeerState, Refusal, ReplyEvent, ReplySender,
    ReplyStream, Service,
};
#[cfg(feature = "runtime")]
pub use start_error::StartError;

/// The names that most programs use.
#[cfg(feature = "runtime")]
pub mod prelude {
    pub use crate::hub::Rules;
    pub use crate::link::{Address, DialOptions, ListenOptions};
    #[cfg(feature = "tls")]
    pub use crate::tls::{ClientTls, ServerTls};
    pub use crate::{
        ConnectError, Hub, Peer, PeerId, ReplyEvent, ReplySender, Request, Service, ServiceName,
    };
}
