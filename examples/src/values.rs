//! Values of command-line options: each parses from text, prints as such, and cannot hold what is out of bounds.

mod amount;
mod driver;
mod listen;

pub use amount::{ByteSize, TimeSpan};
pub use driver::DriverAt;
pub use listen::ListenAddress;

/// An option's value cannot be used. The option's name is added by the command-line parser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidValue {
    /// Neither a port nor an address with a port.
    #[error(
        "{found:?} is no address to listen on; give a port (`10000`) or an IP address and a port (`127.0.0.1:10000`)"
    )]
    Listen {
        /// What was given.
        found: String,
    },
    /// No `NAME=` before the socket.
    #[error(
        "{found:?} names no driver; give `NAME=unix:///path`, as in `hostpath.csi.edge=unix:///plugins/hostpath/csi.sock`"
    )]
    DriverWithoutName {
        /// What was given.
        found: String,
    },
    /// The driver's name breaks the rules of CSI.
    #[error(transparent)]
    DriverName(#[from] csi_proto::name::InvalidDriverName),
    /// The driver's socket cannot be used.
    #[error(transparent)]
    Socket(#[from] csi_proxy::InvalidSocketAddress),
    /// Not a number with a unit of bytes.
    #[error("{found:?} is no size; give bytes or a number with KiB, MiB, GiB or TiB, as in `8MiB`")]
    Size {
        /// What was given.
        found: String,
    },
    /// Not a number with a unit of time.
    #[error("{found:?} is no duration; give a number with ms, s, m or h, as in `10s`, at most 8760h")]
    Duration {
        /// What was given.
        found: String,
    },
}
