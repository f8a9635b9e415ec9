//! Counters, and a limit on log lines for each kind and source.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

/// Defines a struct of counters with their names.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, in order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// The box's counters since its start.
    BoxCounters {
        /// Connections of users: intercepted connections, and connections of SOCKS clients.
        accepted,
        /// Accepted connections that reached their destination.
        connected,
        /// Connections to servers of a release that authenticates subflows by the keys of the initial handshake
        /// only, and not by a secret of TLS.
        joined_by_keys,
        /// Connections that ended in order.
        finished,
        /// Connections that ended by the user's reset.
        reset_by_user,
        /// Connections that ended by the server, the network or a timeout after their destination was connected.
        reset_by_server,
        /// Connections without a destination: the server reports that the destination refused.
        destination_refused,
        /// Connections without a destination: the server reports that it cannot reach the destination.
        destination_unreachable,
        /// Connections without a destination: the destination did not answer in time.
        destination_timeout,
        /// Connections without a destination: the server's rules forbid the destination.
        destination_forbidden,
        /// Connections whose key, signature or time the server refused.
        auth_refused,
        /// Connections on which the peer does not have the server's key, or whose bytes were changed or cut off
        /// on the path, before or after the destination was connected.
        unprotected,
        /// Connections whose peer is not a Braid server, or failed in another way.
        server_failed,
        /// Connections for which no server was reachable.
        no_server,
        /// SOCKS requests refused: malformed, unknown, too late or incomplete.
        socks_refused,
        /// Items in programs' hints that are invalid.
        bad_hints,
        /// Connections refused because of a limit.
        over_limit,
        /// Connections ended because no bytes moved for too long.
        idle_timeout,
        /// Further attempts to reach a server for a user's connection.
        retries,
        /// Idle connections opened.
        idle_opened,
        /// Idle connections used for a user.
        idle_used,
        /// Connections kept for another user after they had served one.
        idle_returned,
        /// Idle connections lost while they waited.
        idle_lost,
        /// Idle connections that failed on first use, and were replaced before the user noticed.
        idle_failed,
        /// Probes sent.
        probes,
        /// Probes that failed.
        probes_failed,
        /// Complete handshakes that test whether a server can serve users.
        examinations,
        /// Examinations that did not end with a sign-in.
        examinations_failed,
        /// Packet trains requested, to measure a server.
        trains,
        /// Packet trains that did not come, or yielded no rate.
        trains_failed,
        /// Changes of the best link.
        best_path_changes,
        /// Times that interception stopped because no server was reachable.
        interception_stopped,
        /// Bytes from users.
        bytes_up,
        /// Bytes to users.
        bytes_down,
    }
}

counters! {
    /// The server's counters since its start.
    ServerCounters {
        /// Connections accepted, including probes.
        accepted,
        /// Connections that the peer closed before its first byte, as a box's probe of a link does.
        probes,
        /// Packet trains sent to boxes that measure.
        trains,
        /// Packet trains refused because a user requested too many.
        trains_refused,
        /// Requests whose destination was connected.
        connected,
        /// Requests of boxes of a release that authenticates subflows by the keys of the initial handshake only,
        /// and not by a secret of TLS.
        joined_by_keys,
        /// Requests whose bytes ended in order in both directions.
        finished,
        /// Connections that ended by the box.
        reset_by_box,
        /// Connections that ended by the destination's reset.
        reset_by_destination,
        /// Connections whose bytes are not SOCKS5, or are malformed.
        garbage,
        /// Plaintext connections refused, because protection is required.
        plaintext_refused,
        /// Protected connections whose bytes were changed, or cut off before the end.
        damaged,
        /// Protected connections that the box ended by an alert, because the bytes that it received had been
        /// changed.
        damaged_at_box,
        /// Connections with TLS of another version of Braid, or of another program.
        incompatible,
        /// Connections of boxes whose configuration has another key for this server.
        refused_by_box,
        /// Connections on which the cryptographic library failed.
        tls_failed,
        /// Session tickets in early data that this server does not know. A ticket is unknown after its use, or if
        /// the server has forgotten it. A full handshake then has to prove the key of the box.
        unknown_tickets,
        /// Clients that do not offer the needed method: user and password in plaintext, or no authentication on a
        /// protected connection.
        no_method,
        /// Requests with a command other than CONNECT.
        bad_command,
        /// Requests with an unknown address type or an invalid name.
        bad_address,
        /// Connections whose SOCKS request was not complete in time.
        handshake_timeout,
        /// Connections that the peer closed before its SOCKS request was complete.
        handshake_aborted,
        /// Signed-in connections that ended without a further request: a box's idle connections that it did not
        /// need, and its examinations.
        unused_sign_ins,
        /// Invalid hints in a request: malformed, out of range, or with an unknown strategy.
        bad_hints,
        /// Passwords that do not have Braid's form.
        auth_malformed,
        /// Connections whose key belongs to no user, or whose signature is wrong.
        auth_wrong,
        /// Passwords whose time is outside the window, or before this server's start.
        auth_time,
        /// Passwords used before.
        auth_replayed,
        /// Passwords refused because no more can be remembered.
        auth_cache_full,
        /// Passwords that were made for another destination.
        auth_destination,
        /// Destinations that the rules forbid.
        forbidden,
        /// Names that do not resolve.
        not_resolved,
        /// Look-ups that waited because their user had too many other look-ups.
        lookups_waited,
        /// Destinations that refused the connection.
        refused,
        /// Destinations that cannot be reached.
        unreachable,
        /// Destinations that did not answer in time.
        connect_timeout,
        /// Connections refused because of a limit, or for lack of resources.
        over_limit,
        /// Connections refused because their source has too many current handshakes.
        over_source,
        /// Connections refused because too many handshakes of their source have failed.
        over_failures,
        /// Sources whose failed handshakes were forgotten early, because other sources had more.
        sources_forgotten,
        /// Connections ended because their user, or the user's key, was removed from the configuration.
        user_removed,
        /// Connections ended because no bytes moved for too long.
        idle_timeout,
        /// Bytes from boxes.
        bytes_up,
        /// Bytes to boxes.
        bytes_down,
    }
}

/// Names of counters in the last version, each with its current name. The status has both names for one version,
/// so that scripts can be adapted.
pub const RENAMED_COUNTERS: [(&str, &str); 8] = [
    ("warm_opened", "idle_opened"),
    ("warm_used", "idle_used"),
    ("warm_kept", "idle_returned"),
    ("warm_lost", "idle_lost"),
    ("warm_failed", "idle_failed"),
    ("intake_stopped", "interception_stopped"),
    ("clear", "plaintext_refused"),
    ("waited_in_vain", "unused_sign_ins"),
];

/// The log line of box and server for [`Event::JoinForged`](braid_engine::Event::JoinForged).
pub(crate) const FORGED_JOIN: &str = "refused a subflow whose sender did not prove to be the peer; the \
     connection goes on without it. Either somebody who reads packets of this connection tried to join it, or \
     a network changes options of Multipath TCP: compare the links by `braid box check`";

/// Maximum number of pairs of kind and source that are remembered. A guess that limits memory.
const MAX_LOG_SOURCES: usize = 1_024;
/// Minimum time between lines of one kind and source. A guess: an attack fills the log slowly, and an operator who
/// watches it soon sees whether a problem persists.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A limit on log lines: one line in [`LOG_INTERVAL`] for each kind and source.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    seen: BTreeMap<(&'static str, Option<IpAddr>), Seen>,
}

#[derive(Debug)]
struct Seen {
    logged_at: Instant,
    suppressed: u64,
}

impl LogLimiter {
    /// Returns `Some` if an error of `kind` from `source` is to be logged, with the number of lines suppressed
    /// since the last line. Once [`MAX_LOG_SOURCES`] entries exist, all further sources share one entry for each
    /// kind.
    pub(crate) fn allow(
        &mut self,
        now: Instant,
        kind: &'static str,
        source: IpAddr,
    ) -> Option<u64> {
        let mut key = (kind, Some(source_of(source)));
        if !self.seen.contains_key(&key) && self.seen.len() >= MAX_LOG_SOURCES {
            self.seen
                .retain(|_, seen| now.saturating_since(seen.logged_at) < LOG_INTERVAL);
            if self.seen.len() >= MAX_LOG_SOURCES {
                key.1 = None;
            }
        }
        match self.seen.get_mut(&key) {
            Some(seen) if now.saturating_since(seen.logged_at) < LOG_INTERVAL => {
                seen.suppressed += 1;
                None
            }
            Some(seen) => {
                seen.logged_at = now;
                Some(core::mem::take(&mut seen.suppressed))
            }
            None => {
                self.seen.insert(
                    key,
                    Seen {
                        logged_at: now,
                        suppressed: 0,
                    },
                );
                Some(0)
            }
        }
    }
}

/// Returns the address that stands for the host with the address `remote`: the IPv4 address itself, or the /64 of
/// an IPv6 address, because a single IPv6 host usually has a whole /64.
pub(crate) fn source_of(remote: IpAddr) -> IpAddr {
    match remote.to_canonical() {
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_kind_and_source_a_minute() {
        let mut limiter = LogLimiter::default();
        let (a, b): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let t = Instant::from_millis;
        assert_eq!(limiter.allow(t(0), "x", a), Some(0));
        assert_eq!(limiter.allow(t(1), "x", a), None);
        assert_eq!(limiter.allow(t(1), "x", b), Some(0));
        assert_eq!(limiter.allow(t(1), "y", a), Some(0));
        assert_eq!(limiter.allow(t(59_999), "x", a), None);
        assert_eq!(limiter.allow(t(60_000), "x", a), Some(2));
    }

    #[test]
    fn memory_is_bounded_and_a_v6_host_is_one_source() {
        let mut limiter = LogLimiter::default();
        let mut lines = 0;
        // All these addresses are in 2001:db8::/64.
        for i in 0..100_000u128 {
            let source = Ipv6Addr::from_bits(0x2001_0db8 << 96 | i);
            lines += u32::from(limiter.allow(Instant::ZERO, "x", source.into()).is_some());
        }
        assert_eq!(lines, 1);
        for i in 0..100_000u32 {
            let source = Ipv4Addr::from_bits(0x0a00_0000 + i);
            lines += u32::from(limiter.allow(Instant::ZERO, "x", source.into()).is_some());
        }
        // One entry more than the limit: the one that all further sources share.
        assert!(limiter.seen.len() <= MAX_LOG_SOURCES + 1);
        assert!(lines as usize <= MAX_LOG_SOURCES + 1);
    }

    use core::net::Ipv4Addr;
}
