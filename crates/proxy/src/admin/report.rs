//! Counters, and log lines limited per kind and source.

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
        /// Intercepted connections of users, and those by SOCKS.
        accepted,
        /// Accepted connections that reached their destination.
        connected,
        /// Connections over servers of a release whose subflows do not authenticate by a secret.
        joined_by_keys,
        /// Ended in order.
        finished,
        /// Ended by the user's reset.
        reset_by_user,
        /// Ended by the server, the network or a timeout after they were connected.
        reset_by_server,
        /// Not connected: the server says that the destination refused.
        destination_refused,
        /// Not connected: the server says that the destination cannot be reached.
        destination_unreachable,
        /// Not connected: the destination did not answer in time.
        destination_timeout,
        /// Not connected: the server's rules forbid the destination.
        destination_forbidden,
        /// Not connected: the server refused key, signature or time.
        auth_refused,
        /// The server does not have its key, or its bytes were changed or cut off on the path, before or after the
        /// destination was connected.
        unprotected,
        /// Not connected: the peer is not a Braid server, or failed otherwise.
        server_failed,
        /// Not connected: no server could be reached.
        no_server,
        /// SOCKS requests refused: malformed, unknown, too late or broken off.
        socks_refused,
        /// Items in programs' hints that are invalid.
        bad_hints,
        /// Refused because of a limit on connections.
        over_limit,
        /// Ended because nothing moved for too long.
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
        /// Idle connections that failed on first use, and were replaced without the user's notice.
        idle_failed,
        /// Probes sent.
        probes,
        /// Probes that failed.
        probes_failed,
        /// Whole handshakes made to test whether users can be served.
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
        /// Connections accepted, probes included.
        accepted,
        /// Closed by the peer before its first byte: a box's probe.
        probes,
        /// Packet trains sent, by which boxes measure.
        trains,
        /// Packet trains refused because a user requested too many.
        trains_refused,
        /// Connected to their destination.
        connected,
        /// Connections by boxes of a release whose subflows do not authenticate by a secret.
        joined_by_keys,
        /// Ended in order.
        finished,
        /// Ended by the box.
        reset_by_box,
        /// Ended by the destination's reset.
        reset_by_destination,
        /// Not SOCKS5, or malformed.
        garbage,
        /// Plaintext connections refused, because protection is required.
        plaintext_refused,
        /// Protected connections whose bytes were changed, or cut off before the end.
        damaged,
        /// Protected connections ended by the box's alert, because what it received had been changed.
        damaged_at_box,
        /// TLS of another version of Braid, or of another program.
        incompatible,
        /// Boxes whose configuration has another key for this server.
        refused_by_box,
        /// The cryptographic library failed.
        tls_failed,
        /// Unknown tickets of first flights, used before or forgotten; their senders had to prove their key by a
        /// full handshake.
        unknown_tickets,
        /// The client offers neither user/password in plaintext nor, where protected, no authentication.
        no_method,
        /// A command other than CONNECT.
        bad_command,
        /// An unknown address type or an invalid name.
        bad_address,
        /// The SOCKS request was not complete in time.
        handshake_timeout,
        /// The peer went away in the middle of the SOCKS request.
        handshake_aborted,
        /// Signed in, but ended without a further request: a box's idle connections that it did not need, and its
        /// examinations.
        unused_sign_ins,
        /// Invalid hints in a request: malformed, out of range, or with an unknown strategy.
        bad_hints,
        /// Passwords not of Braid's form.
        auth_malformed,
        /// No user has the key, or a wrong signature.
        auth_wrong,
        /// The time in the password is outside of the window, or before this server's start.
        auth_time,
        /// Passwords used before.
        auth_replayed,
        /// Passwords refused because no more can be remembered.
        auth_cache_full,
        /// The password was made for another destination.
        auth_destination,
        /// Destinations that the rules forbid.
        forbidden,
        /// Names that do not resolve.
        not_resolved,
        /// Names that waited because their user had too many look-ups under way.
        lookups_waited,
        /// Destinations that refused.
        refused,
        /// Destinations that cannot be reached.
        unreachable,
        /// Destinations that did not answer in time.
        connect_timeout,
        /// Refused because of a limit on connections, or for lack of resources.
        over_limit,
        /// Refused because their source has too many handshakes under way.
        over_source,
        /// Refused because too many handshakes of their source have failed.
        over_failures,
        /// Sources whose failed handshakes were forgotten early, because others had more.
        sources_forgotten,
        /// Ended because their user, or the user's key, was removed from the configuration.
        user_removed,
        /// Ended because nothing moved for too long.
        idle_timeout,
        /// Bytes from boxes.
        bytes_up,
        /// Bytes to boxes.
        bytes_down,
    }
}

/// Names of counters in the last version, each with its present name. The status has both for one version.
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

/// Most sources that are remembered.
const MAX_LOG_SOURCES: usize = 1_024;
/// Shortest time between lines of one kind and source.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Limits log lines to one per kind and source a minute.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    seen: BTreeMap<(&'static str, Option<IpAddr>), Seen>,
}

#[derive(Debug)]
struct Seen {
    logged: Instant,
    suppressed: u64,
}

impl LogLimiter {
    /// Returns whether to log an error of `kind` by `source`: `Some` with the number of lines suppressed since the
    /// last one, or `None`. Sources beyond the bound share one entry.
    pub(crate) fn allow(
        &mut self,
        now: Instant,
        kind: &'static str,
        source: IpAddr,
    ) -> Option<u64> {
        let mut key = (kind, Some(source_of(source)));
        if !self.seen.contains_key(&key) && self.seen.len() >= MAX_LOG_SOURCES {
            self.seen
                .retain(|_, seen| now.saturating_since(seen.logged) < LOG_INTERVAL);
            if self.seen.len() >= MAX_LOG_SOURCES {
                key.1 = None;
            }
        }
        match self.seen.get_mut(&key) {
            Some(seen) if now.saturating_since(seen.logged) < LOG_INTERVAL => {
                seen.suppressed += 1;
                None
            }
            Some(seen) => {
                seen.logged = now;
                Some(core::mem::take(&mut seen.suppressed))
            }
            None => {
                self.seen.insert(
                    key,
                    Seen {
                        logged: now,
                        suppressed: 0,
                    },
                );
                Some(0)
            }
        }
    }
}

/// Returns the host of an address, as one IPv6 host usually has a whole /64.
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
        for i in 0..100_000u128 {
            let source = Ipv6Addr::from_bits(0x2001_0db8 << 96 | i);
            lines += u32::from(limiter.allow(Instant::ZERO, "x", source.into()).is_some());
        }
        assert_eq!(lines, 1);
        for i in 0..100_000u32 {
            let source = Ipv4Addr::from_bits(0x0a00_0000 + i);
            lines += u32::from(limiter.allow(Instant::ZERO, "x", source.into()).is_some());
        }
        assert!(limiter.seen.len() <= MAX_LOG_SOURCES + 1);
        assert!(lines as usize <= MAX_LOG_SOURCES + 1);
    }

    use core::net::Ipv4Addr;
}
