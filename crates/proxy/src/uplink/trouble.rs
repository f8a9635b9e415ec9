//! Problems that keep users from a server, or from Multipath TCP, although the network answers; and how they are
//! recognised.

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
    /// Something else, such as a captive portal, answers in the server's place.
    Portal,
    /// The TCP handshake is answered, and the TLS handshake is not.
    Unanswered,
    /// The server does not know this box's key, or refuses its clock.
    KeyRefused,
    /// The server's key is not the configured one.
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
    /// No result, because the box could not open a connection, or the failure shows no problem.
    Nothing,
}

/// The pause after the first examination that found a problem. It doubles each time up to
/// [`MAX_EXAMINATION_PAUSE`], because an examination costs about 5 kB and a TLS handshake. Both are guesses.
const MIN_EXAMINATION_PAUSE: Duration = Duration::from_secs(1);
/// The maximum pause, and so the maximum time that users wait for a link that works again.
const MAX_EXAMINATION_PAUSE: Duration = Duration::from_secs(30);

impl Trouble {
    /// Returns whether the problem keeps all users from the server over the link.
    pub(crate) fn is_fatal(self) -> bool {
        !matches!(self, Trouble::Stripped | Trouble::Blocked)
    }

    /// Returns whether the server is the cause, so that the link does not matter.
    pub(crate) fn is_of_server(self) -> bool {
        matches!(
            self,
            Trouble::KeyRefused | Trouble::WrongKey | Trouble::OtherVersion | Trouble::NotAServer
        )
    }

    /// Returns the problem shown by a fallback to regular TCP; `None` if the cause shows none.
    pub(crate) fn of_fallback(cause: FallbackCause) -> Option<Trouble> {
        match cause {
            FallbackCause::SynsDropped => Some(Trouble::Blocked),
            FallbackCause::PeerSynAckPlain
            | FallbackCause::ThirdAckPlain
            | FallbackCause::DataPlain
            | FallbackCause::PeerFellBack => Some(Trouble::Stripped),
            // Something changed the payload. That shows nothing about the handling of options.
            FallbackCause::BadChecksum | FallbackCause::PeerBadChecksum => None,
            _ => None,
        }
    }

    /// Returns the problem of a connection that failed before the server proved its key. `plain` is true if the
    /// connection is regular TCP. A captive portal answers in the server's place and does not support Multipath
    /// TCP, so the answers on an MPTCP connection are the server's.
    pub(crate) fn of_broken(broken: ChannelError, plain: bool) -> Option<Trouble> {
        match broken {
            // No portal answers as in the first two cases, so `plain` does not matter for them.
            ChannelError::Refused => Some(Trouble::KeyRefused),
            ChannelError::OtherVersions { .. } => Some(Trouble::OtherVersion),
            // The cryptographic library of this machine failed.
            ChannelError::Failed => None,
            _ if plain => Some(Trouble::Portal),
            ChannelError::WrongKey => Some(Trouble::WrongKey),
            ChannelError::Incompatible => Some(Trouble::OtherVersion),
            ChannelError::Damaged => Some(Trouble::NotAServer),
            ChannelError::Alert(_) | ChannelError::Truncated => Some(Trouble::Unanswered),
        }
    }

    /// Returns the problem shown by a failed sign-in or an invalid answer; `None` for the refusal of a
    /// destination.
    pub(crate) fn of_answer(error: ClientError, plain: bool) -> Option<Trouble> {
        match error {
            ClientError::MethodRefused | ClientError::AuthRefused => Some(Trouble::KeyRefused),
            ClientError::Garbage if plain => Some(Trouble::Portal),
            ClientError::Garbage => Some(Trouble::NotAServer),
            ClientError::Refused(_) => None,
        }
    }

    /// Returns the problem of a connection that was established, and ended or stayed silent before the server
    /// proved its key.
    pub(crate) fn of_silence(plain: bool) -> Trouble {
        match plain {
            true => Trouble::Portal,
            false => Trouble::Unanswered,
        }
    }
}

/// Returns the pause after the last of `problem_count` consecutive examinations that found a problem.
pub(super) fn pause(problem_count: u32) -> Duration {
    // 5 doublings exceed the maximum; the bound keeps the shift from overflowing.
    let doubled = MIN_EXAMINATION_PAUSE * (1 << problem_count.saturating_sub(1).min(5));
    doubled.min(MAX_EXAMINATION_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let pauses: Vec<u64> = [1, 2, 3, 4, 5, 6, 7, u32::MAX]
            .map(|count| pause(count).as_secs())
            .to_vec();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_portal_does_not_support_multipath_tcp() {
        let damaged = |plain| Trouble::of_broken(ChannelError::Damaged, plain);
        assert_eq!(damaged(true), Some(Trouble::Portal));
        assert_eq!(damaged(false), Some(Trouble::NotAServer));
        // A server behind a network that strips options still refuses in its own way.
        let refused = Trouble::of_broken(ChannelError::Refused, true);
        assert_eq!(refused, Some(Trouble::KeyRefused));
    }
}
