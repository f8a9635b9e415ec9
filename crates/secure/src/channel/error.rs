//! Errors of a protected connection, and their descriptions for the operator of a box.

use std::borrow::Cow;

use rustls::AlertDescription;

use super::versions::Versions;

/// An error that ends a protected connection other than by an orderly close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelError {
    /// The peer does not know our key.
    Refused,
    /// The peer has not proved the expected key, or has presented no usable key.
    WrongKey,
    /// The peer speaks TLS, but over TLS it speaks another version of Braid or another protocol.
    Incompatible,
    /// The peer's release has no version of the protocol in common with this one.
    OtherVersions {
        /// The versions and features of this end.
        ours: Versions,
        /// The versions and features of the peer; `None` where it announces them in an unknown form.
        theirs: Option<Versions>,
    },
    /// The peer reports an error in the bytes that it received.
    Alert(AlertDescription),
    /// A record is malformed or fails authentication, or the peer broke the protocol.
    Damaged,
    /// The connection ended before the peer's close_notify, or before the end of the user's bytes.
    Truncated,
    /// The cryptographic library failed.
    Failed,
}

impl ChannelError {
    /// Returns a short name of the error for statistics and logs, and a description for the operator of a box.
    pub fn at_box(self) -> (&'static str, Cow<'static, str>) {
        let (kind, text) = match self {
            ChannelError::Refused => (
                "key refused",
                "the server does not know this box: add this box's key to the server's configuration",
            ),
            ChannelError::WrongKey => (
                "wrong key",
                "the server does not have the key that this box's configuration names: correct the key, unless \
                 somebody else answers in the server's place",
            ),
            ChannelError::Incompatible => (
                "incompatible",
                "the server speaks another version of Braid, or is none",
            ),
            ChannelError::OtherVersions { ours, theirs } => {
                let speaks = match theirs {
                    Some(theirs) => format!("it speaks {theirs} of the protocol, the box {ours}"),
                    None => "it announces its versions in an unknown form".to_owned(),
                };
                // Only a later release can have another form of the announcement.
                let (age, older) = if theirs.is_some_and(|theirs| theirs.is_older(ours)) {
                    ("old", "the server")
                } else {
                    ("new", "this box")
                };
                let text = format!(
                    "the server's release is too {age} for this box: {speaks}; update {older}"
                );
                return ("incompatible", text.into());
            }
            ChannelError::Alert(_) => (
                "alert",
                "the server ended the connection: bytes of this box were changed on the way to it",
            ),
            ChannelError::Damaged => (
                "damaged",
                "bytes of the server were changed on the way to this box",
            ),
            ChannelError::Truncated => (
                "truncated",
                "the connection ended without the server's announcement: something on the way cut it off",
            ),
            ChannelError::Failed => ("TLS", "the cryptographic library failed"),
        };
        (kind, text.into())
    }

    /// Returns the alert to send to the peer. Returns `None` for errors that rustls raises (it sends its own
    /// alert), for errors that the peer reports, and for errors after which the peer reads no more.
    pub(super) fn alert(self) -> Option<AlertDescription> {
        match self {
            ChannelError::OtherVersions { .. } => Some(AlertDescription::ProtocolVersion),
            ChannelError::Damaged => Some(AlertDescription::BadRecordMac),
            ChannelError::Failed => Some(AlertDescription::InternalError),
            _ => None,
        }
    }
}

impl From<rustls::Error> for ChannelError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            Error::AlertReceived(alert) => match alert {
                // A server's rustls sends this alert if its verifier refuses an unknown key.
                AlertDescription::AccessDenied => ChannelError::Refused,
                AlertDescription::HandshakeFailure
                | AlertDescription::MissingExtension
                | AlertDescription::NoApplicationProtocol
                | AlertDescription::ProtocolVersion
                | AlertDescription::UnsupportedCertificate => ChannelError::Incompatible,
                alert => ChannelError::Alert(alert),
            },
            Error::InvalidCertificate(_) | Error::NoCertificatesPresented => ChannelError::WrongKey,
            Error::NoApplicationProtocol | Error::PeerIncompatible(_) => ChannelError::Incompatible,
            Error::EncryptError
            | Error::FailedToGetCurrentTime
            | Error::FailedToGetRandomBytes
            | Error::General(_) => ChannelError::Failed,
            _ => ChannelError::Damaged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_of_two_releases_is_named() {
        let ours = Versions::new(2, 3, 0).unwrap();
        for (theirs, expected) in [
            (
                Versions::new(1, 1, 0),
                "the server's release is too old for this box: it speaks version 1 of the protocol, the box \
                 versions 2 to 3; update the server",
            ),
            (
                Versions::new(4, 5, 0),
                "the server's release is too new for this box: it speaks versions 4 to 5 of the protocol, the \
                 box versions 2 to 3; update this box",
            ),
            (
                None,
                "the server's release is too new for this box: it announces its versions in an unknown form; \
                 update this box",
            ),
        ] {
            let error = ChannelError::OtherVersions { ours, theirs };
            assert_eq!(error.at_box(), ("incompatible", expected.into()));
            assert_eq!(error.alert(), Some(AlertDescription::ProtocolVersion));
        }
    }
}
