//! What the operator hears of: counters, and log lines bounded per kind and source.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

/// A struct of counters with their names.
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
    /// What the box counted since its start.
    BoxCounters {
        /// Users' connections taken in.
        accepted,
        /// Of those, connected to their destination.
        connected,
        /// Of those, over servers of a release whose subflows do not prove themselves.
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
        /// The server has not its key, or what it sent was changed or cut off on the way, before or
        /// after the connection.
        unprotected,
        /// Not connected: the server is none, or has another failure.
        server_failed,
        /// Not connected: no server could be reached.
        no_server,
        /// Asked for by SOCKS, and not taken in: malformed, unknown, too late or broken off.
        socks_refused,
        /// What programs said in place of hints, each item.
        bad_hints,
        /// Refused because of a limit on connections.
        over_limit,
        /// Ended because nothing moved for too long.
        idle_timeout,
        /// Further attempts to reach a server for a user's connection.
        retries,
        /// Warm connections opened.
        warm_opened,
        /// Warm connections that a user got.
        warm_used,
        /// Connections that had served a user and were kept, to serve another.
        warm_kept,
        /// Warm connections that were lost while they waited.
        warm_lost,
        /// Warm connections that were lost when they were used first, and replaced unnoticed.
        warm_failed,
        /// Probes sent.
        probes,
        /// Probes that failed.
        probes_failed,
        /// Whole handshakes made to find out whether users can be served.
        examinations,
        /// Examinations that the server did not answer as it should.
        examinations_failed,
        /// Trains of packets asked for, to measure a server by.
        trains,
        /// Trains that did not come, or told nothing.
        trains_failed,
        /// Times the best link changed.
        best_path_changes,
        /// Times intake was stopped because no server was reachable.
        intake_stopped,
        /// Bytes from users.
        bytes_up,
        /// Bytes to users.
        bytes_down,
    }
}

counters! {
    /// What the server counted since its start.
    ServerCounters {
        /// Connections accepted, probes included.
        accepted,
        /// Closed by the peer before it said anything: a box's probe.
        probes,
        /// Trains sent, by which boxes measure.
        trains,
        /// Trains refused: one user asked for too many.
        trains_refused,
        /// Connected to their destination.
        connected,
        /// Of those, by boxes of a release whose subflows do not prove themselves.
        joined_by_keys,
        /// Ended in order.
        finished,
        /// Ended by the box.
        reset_by_box,
        /// Ended by the destination's reset.
        reset_by_destination,
        /// Not SOCKS5, or malformed.
        garbage,
        /// In clear, where all has to be protected.
        clear,
        /// Protected, and not as it was sent, or cut off before its end.
        damaged,
        /// Protected, and broken off by the box (an alert of TLS): what came to it was not as it was
        /// sent.
        damaged_at_box,
        /// TLS, but of another version of Braid or of another program.
        incompatible,
        /// Boxes whose configuration has another key for this server.
        refused_by_box,
        /// The cryptographic library failed.
        tls_failed,
        /// Tickets of a first flight that were used before, or forgotten: it had to be proved anew who
        /// sent it.
        unknown_tickets,
        /// Neither user/password offered in clear, nor no authentication where that is protected.
        no_method,
        /// A command other than CONNECT.
        bad_command,
        /// An unknown address type or an invalid name.
        bad_address,
        /// The SOCKS request was not complete in time.
        handshake_timeout,
        /// The peer went away in the middle of the SOCKS request.
        handshake_aborted,
        /// Signed in, and ended without a further request: a box's warm connections that it did not need, and
        /// its examinations.
        waited_in_vain,
        /// Hints of a request that are malformed, out of range or of a strategy nobody knows.
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
        /// Names that waited until another one of their user was looked up.
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
        /// Sources whose failed handshakes were forgotten before their time, because others had more.
        sources_forgotten,
        /// Ended because their user, or the user's key, was taken out of the configuration.
        user_removed,
        /// Ended because nothing moved for too long.
        idle_timeout,
        /// Bytes from boxes.
        bytes_up,
        /// Bytes to boxes.
        bytes_down,
    }
}

/// What the log of box and server says of [`Event::JoinForged`](braid_engine::Event::JoinForged).
pub(crate) const FORGED_JOIN: &str = "refused a subflow that did not prove itself; the connection goes on \
     without it. Somebody who can read packets of this connection tried to take a part of it, or a network \
     changes options of Multipath TCP";

/// Sources remembered at a time.
const MAX_SOURCES: usize = 1_024;
/// One line per kind and source in this time.
const INTERVAL: Duration = Duration::from_secs(60);

/// Bounds log lines: one per kind and source a minute.
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
    /// Whether to log an error of `kind` by `source`; if so, how many were left out since the
    /// last line. Sources beyond the bound share one entry.
    pub(crate) fn allow(
        &mut self,
        now: Instant,
        kind: &'static str,
        source: IpAddr,
    ) -> Option<u64> {
        let mut key = (kind, Some(source_of(source)));
        if !self.seen.contains_key(&key) && self.seen.len() >= MAX_SOURCES {
            self.seen
                .retain(|_, seen| now.saturating_since(seen.logged) < INTERVAL);
            if self.seen.len() >= MAX_SOURCES {
                key.1 = None;
            }
        }
        match self.seen.get_mut(&key) {
            Some(seen) if now.saturating_since(seen.logged) < INTERVAL => {
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

/// Who an address is of: one IPv6 host has a whole /64 of them.
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
        assert!(limiter.seen.len() <= MAX_SOURCES + 1);
        assert!(lines as usize <= MAX_SOURCES + 1);
    }

    use core::net::Ipv4Addr;
}
