//! Errors of a protected connection, and their descriptions for the operator of a box.

use std::borrow::Cow;

use rustls::AlertDescription;

use super::versions::Versions;

/// An error that ends a protected connection other than by an orderly close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The peer does not know our key.
    Refused,
    /// The peer has not proved the expected key, or presented no usable key.
    WrongKey,
    /// The peer speaks TLS, but another version of Braid or another protocol.
    Incompatible,
    /// The peer's release has no version of the protocol in common with this one.
    OtherVersions {
        /// The versions and features of this end.
        ours: Versions,
        /// The versions and features of the peer.
        theirs: Versions,
    },
    /// The peer reports an error in what it received.
    Alert(AlertDescription),
    /// A record is malformed or fails authentication, or this is another protocol.
    Damaged,
    /// The connection ended without the peer's close_notify or end of the user's bytes.
    Truncated,
    /// The cryptographic library failed.
    Failed,
}

impl Broken {
    /// Returns a short kind for statistics and logs, and a description for the operator of a box.
    pub fn at_box(self) -> (&'static str, Cow<'static, str>) {
        let (kind, text) = match self {
            Broken::Refused => (
                "key refused",
                "the server does not know this box: its configuration has to have this box's key",
            ),
            Broken::WrongKey => (
                "wrong key",
                "the server has not the key that the configuration says: a mistake, or somebody else \
                 in its place",
            ),
            Broken::Incompatible => (
                "incompatible",
                "the server speaks another version of Braid, or is none",
            ),
            Broken::OtherVersions { ours, theirs } => {
                let (age, older) = match theirs.is_older(ours) {
                    true => ("old", "the server"),
                    false => ("new", "this box"),
                };
                let text = format!(
                    "the server's release is too {age} for this box: it speaks {theirs} of the protocol, the \
                     box {ours}; update {older}"
                );
                return ("incompatible", text.into());
            }
            Broken::Alert(_) => (
                "alert",
                "the server broke off: what came to it was changed on the way",
            ),
            Broken::Damaged => (
                "damaged",
                "what came from the server was changed on the way",
            ),
            Broken::Truncated => ("truncated", "the connection was cut off on the way"),
            Broken::Failed => ("TLS", "the cryptographic library failed"),
        };
        (kind, text.into())
    }

    /// Returns the alert for the peer where rustls raised none itself; `None` where no alert is due.
    pub(super) fn alert(self) -> Option<AlertDescription> {
        match self {
            Broken::OtherVersions { .. } => Some(AlertDescription::ProtocolVersion),
            Broken::Damaged => Some(AlertDescription::BadRecordMac),
            Broken::Failed => Some(AlertDescription::InternalError),
            _ => None,
        }
    }
}

impl From<rustls::Error> for Broken {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            Error::AlertReceived(alert) => match alert {
                AlertDescription::AccessDenied => Broken::Refused,
                AlertDescription::HandshakeFailure
                | AlertDescription::MissingExtension
                | AlertDescription::NoApplicationProtocol
                | AlertDescription::ProtocolVersion
                | AlertDescription::UnsupportedCertificate => Broken::Incompatible,
                alert => Broken::Alert(alert),
            },
            Error::InvalidCertificate(_) | Error::NoCertificatesPresented => Broken::WrongKey,
            Error::NoApplicationProtocol | Error::PeerIncompatible(_) => Broken::Incompatible,
            Error::EncryptError
            | Error::FailedToGetCurrentTime
            | Error::FailedToGetRandomBytes
            | Error::General(_) => Broken::Failed,
            _ => Broken::Damaged,
        }
    }
}
