//! Problems that keep users from a server although the network answers, and their recognition.

use core::time::Duration;

use braid_engine::FallbackCause;
use braid_secure::channel::ChannelError;

use crate::protocol::socks::ClientError;

/// A problem that keeps users from a server over one link, or from Multipath TCP, although the link carries
/// packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The network strips the options of Multipath TCP: connections there are regular TCP.
    Stripped,
    /// The network drops SYNs with the options of Multipath TCP: connections there are regular TCP.
    Blocked,
    /// Something else answers in the server's place, such as a captive portal.
    Portal,
    /// The TCP handshake is answered, but the TLS handshake is not.
    Unanswered,
    /// The server does not know this box's key, or refuses its clock.
    KeyRefused,
    /// The server has another key than the configured one.
    WrongKey,
    /// The server speaks another version of Braid.
    OtherVersion,
    /// The server speaks another protocol.
    NotAServer,
}

/// The result of an examination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The server signed this box in.
    SignedIn {
        /// Round-trip time of the TCP handshake; zero where a repeated SYN left it unknown.
        rtt: Duration,
        /// The reason why the connection is regular TCP; `None` where Multipath TCP works.
        plain: Option<Trouble>,
    },
    /// The server did not sign this box in.
    Trouble(Trouble),
    /// Nothing answers.
    NoAnswer,
    /// No result: the box could not ask.
    Nothing,
}

/// The pause after the first examination that found a problem; doubled each time up to [`MAX_EXAMINATION_PAUSE`].
/// An examination costs about 5 kB and a TLS handshake.
const MIN_EXAMINATION_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause, for which users may wait for a link that works again.
const MAX_EXAMINATION_PAUSE: Duration = Duration::from_secs(30);

impl Trouble {
    /// Returns whether no user can be served.
    pub(crate) fn is_fatal(self) -> bool {
        !matches!(self, Trouble::Stripped | Trouble::Blocked)
    }

    /// Returns whether the server is the cause, on whatever link.
    pub(crate) fn is_of_server(self) -> bool {
        matches!(
            self,
            Trouble::KeyRefused | Trouble::WrongKey | Trouble::OtherVersion | Trouble::NotAServer
        )
    }

    /// Returns the problem of a connection that has become regular TCP.
    pub(crate) fn of_fallback(cause: FallbackCause) -> Option<Trouble> {
        match cause {
            FallbackCause::SynsDropped => Some(Trouble::Blocked),
            FallbackCause::PeerSynAckPlain
            | FallbackCause::ThirdAckPlain
            | FallbackCause::DataPlain
            | FallbackCause::PeerFellBack => Some(Trouble::Stripped),
            // The payload was changed, which says nothing about options.
            FallbackCause::BadChecksum | FallbackCause::PeerBadChecksum => None,
            _ => None,
        }
    }

    /// Returns the problem of a connection that failed before the server proved its key. A captive portal answers
    /// by itself, so it does not speak Multipath TCP (`plain`).
    pub(crate) fn of_broken(broken: ChannelError, plain: bool) -> Option<Trouble> {
        match broken {
            ChannelError::Refused => Some(Trouble::KeyRefused),
            ChannelError::OtherVersions { .. } => Some(Trouble::OtherVersion),
            ChannelError::Failed => None,
            _ if plain => Some(Trouble::Portal),
            ChannelError::WrongKey => Some(Trouble::WrongKey),
            ChannelError::Incompatible => Some(Trouble::OtherVersion),
            ChannelError::Damaged => Some(Trouble::NotAServer),
            ChannelError::Alert(_) | ChannelError::Truncated => Some(Trouble::Unanswered),
        }
    }

    /// Returns the problem of a connection on which the answers are not a server's.
    pub(crate) fn of_answer(error: ClientError, plain: bool) -> Option<Trouble> {
        match error {
            ClientError::MethodRefused | ClientError::AuthRefused => Some(Trouble::KeyRefused),
            ClientError::Garbage if plain => Some(Trouble::Portal),
            ClientError::Garbage => Some(Trouble::NotAServer),
            ClientError::Refused(_) => None,
        }
    }

    /// Returns the problem of a connection that ended or stayed silent before the server proved its key.
    pub(crate) fn of_silence(plain: bool) -> Trouble {
        match plain {
            true => Trouble::Portal,
            false => Trouble::Unanswered,
        }
    }
}

/// Returns the pause after the `found`th consecutive examination that found a problem, counted from 1.
pub(super) fn pause(found: u32) -> Duration {
    let doubled = MIN_EXAMINATION_PAUSE * (1 << found.saturating_sub(1).min(5));
    doubled.min(MAX_EXAMINATION_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let pauses: Vec<u64> = [1, 2, 3, 4, 5, 6, 7, u32::MAX]
            .map(|found| pause(found).as_secs())
            .to_vec();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_portal_knows_nothing_of_multipath_tcp() {
        let damaged = |plain| Trouble::of_broken(ChannelError::Damaged, plain);
        assert_eq!(damaged(true), Some(Trouble::Portal));
        assert_eq!(damaged(false), Some(Trouble::NotAServer));
        // A server behind a network that strips options still refuses in its own way.
        let refused = Trouble::of_broken(ChannelError::Refused, true);
        assert_eq!(refused, Some(Trouble::KeyRefused));
    }
}
