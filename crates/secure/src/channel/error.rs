//! Errors of a protected connection, and their descriptions for the operator of a box.

use std::borrow::Cow;

use rustls::AlertDescription;

use super::versions::Versions;

/// An error that ends a protected connection other than by an orderly close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelError {
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
        /// The versions and features of the peer; `None` where it announces them in an unknown form.
        theirs: Option<Versions>,
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

impl ChannelError {
    /// Returns a short kind for statistics and logs, and a description for the operator of a box.
    pub fn at_box(self) -> (&'static str, Cow<'static, str>) {
        let (kind, text) = match self {
            ChannelError::Refused => (
                "key refused",
                "the server does not know this box: its configuration has to have this box's key",
            ),
            ChannelError::WrongKey => (
                "wrong key",
                "the server has not the key that the configuration says: a mistake, or somebody else \
                 in its place",
            ),
            ChannelError::Incompatible => (
                "incompatible",
                "the server speaks another version of Braid, or is none",
            ),
            ChannelError::OtherVersions { ours, theirs } => {
                let speaks = match theirs {
                    Some(theirs) => format!("it speaks {theirs} of the protocol, the box {ours}"),
                    None => "it says its versions in another form".to_owned(),
                };
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
                "the server broke off: what came to it was changed on the way",
            ),
            ChannelError::Damaged => (
                "damaged",
                "what came from the server was changed on the way",
            ),
            ChannelError::Truncated => ("truncated", "the connection was cut off on the way"),
            ChannelError::Failed => ("TLS", "the cryptographic library failed"),
        };
        (kind, text.into())
    }

    /// Returns the alert for the peer where rustls raised none itself; `None` where no alert is due.
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
                "the server's release is too new for this box: it says its versions in another form; update this \
                 box",
            ),
        ] {
            let error = ChannelError::OtherVersions { ours, theirs };
            assert_eq!(error.at_box(), ("incompatible", expected.into()));
            assert_eq!(error.alert(), Some(AlertDescription::ProtocolVersion));
        }
    }
}
