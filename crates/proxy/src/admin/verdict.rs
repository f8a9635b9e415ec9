//! The health of a box or a server in one word, with reasons and remedies.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Target of log lines about changes that users notice. The default log filter shows this target.
pub const NEWS_TARGET: &str = "braid::news";

/// The health of a box or a server.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Everything works as configured.
    #[default]
    Working,
    /// Users are served, but a part of the configuration does not work.
    Degraded,
    /// No connection of a user is aggregated.
    Down,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Health::Working => "working",
            Health::Degraded => "degraded",
            Health::Down => "down",
        })
    }
}

/// A reason why the health is not better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kind of the reason, stable between versions, such as `captive-portal`.
    pub code: String,
    /// The link, server, interface or setting at fault, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The health if this were the only reason.
    pub health: Health,
    /// The problem, and its effect on users.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

/// The health of a box or a server, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst health of the reasons.
    pub health: Health,
    /// The reasons, the worst first. Empty if everything works.
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// Computes the health from reasons.
    pub fn new(mut reasons: Vec<Reason>) -> Verdict {
        reasons.sort_by_key(|reason| core::cmp::Reverse(reason.health));
        Verdict {
            health: reasons.first().map_or(Health::Working, |r| r.health),
            reasons,
        }
    }
}

/// The state of a link, of a server, or of a server over one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Nothing is known yet.
    #[default]
    Untried,
    /// Working.
    Working,
    /// The network removes the options of Multipath TCP.
    MptcpStripped,
    /// The network drops SYNs with the options of Multipath TCP.
    MptcpBlocked,
    /// Another host answers in the server's place.
    CaptivePortal,
    /// The server answers the TCP handshake, but not the TLS handshake.
    HandshakeUnanswered,
    /// No packet is answered.
    NoAnswers,
    /// The server refuses this box's key or clock.
    KeyRefused,
    /// The server has another key than the configured one.
    WrongKey,
    /// The server speaks another version of Braid.
    OtherVersion,
    /// The peer is not a Braid server.
    NotAServer,
    /// Not in use, because the link is metered and another link is up.
    #[serde(rename = "spared")]
    MeteredStandby,
    /// Not in use: the link has no carrier, no address or no gateway.
    Down,
    /// Switched off by an operator.
    Off,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Condition::Untried => "not tried yet",
            Condition::Working => "working",
            Condition::MptcpStripped => "MPTCP stripped",
            Condition::MptcpBlocked => "MPTCP blocked",
            Condition::CaptivePortal => "captive portal",
            Condition::HandshakeUnanswered => "handshake not answered",
            Condition::NoAnswers => "no answers",
            Condition::KeyRefused => "key refused",
            Condition::WrongKey => "wrong key",
            Condition::OtherVersion => "other version",
            Condition::NotAServer => "not a Braid server",
            Condition::MeteredStandby => "standby (metered)",
            Condition::Down => "down",
            Condition::Off => "switched off",
        })
    }
}

impl Condition {
    /// Returns the name in JSON, which the derived serialization must use too.
    fn code(self) -> &'static str {
        match self {
            Condition::Untried => "untried",
            Condition::Working => "working",
            Condition::MptcpStripped => "mptcp-stripped",
            Condition::MptcpBlocked => "mptcp-blocked",
            Condition::CaptivePortal => "captive-portal",
            Condition::HandshakeUnanswered => "handshake-unanswered",
            Condition::NoAnswers => "no-answers",
            Condition::KeyRefused => "key-refused",
            Condition::WrongKey => "wrong-key",
            Condition::OtherVersion => "other-version",
            Condition::NotAServer => "not-a-server",
            Condition::MeteredStandby => "spared",
            Condition::Down => "down",
            Condition::Off => "off",
        }
    }

    /// Returns the problem of a link in this state, if any. A state that the operator chose is no problem.
    pub fn link_problem(self, name: &str) -> Option<Reason> {
        let (message, remedy) = match self {
            Condition::Untried
            | Condition::Working
            | Condition::MeteredStandby
            | Condition::Off => {
                return None;
            }
            // These states are problems of the server, which `server_problem` reports.
            Condition::KeyRefused
            | Condition::WrongKey
            | Condition::OtherVersion
            | Condition::NotAServer => return None,
            Condition::MptcpStripped => (
                format!(
                    "the network of link {name} removes the options of Multipath TCP: connections over it are \
                     not aggregated, and new ones open on other links"
                ),
                "ask the provider of the link, or try another port of the server",
            ),
            Condition::MptcpBlocked => (
                format!(
                    "the network of link {name} drops packets of Multipath TCP: connections over it are not \
                     aggregated, and new ones open on other links"
                ),
                "ask the provider of the link, or try another port of the server",
            ),
            Condition::CaptivePortal => (
                format!(
                    "link {name} is behind a captive portal, or another host answers in the server's place: \
                     the link is not used"
                ),
                "open a web page over this link and log in; the box then uses the link again by itself",
            ),
            Condition::HandshakeUnanswered => (
                format!(
                    "over link {name} servers answer the TCP handshake and nothing more: the link is not used"
                ),
                "look in the server's log, and look for a firewall on the path that closes connections",
            ),
            Condition::NoAnswers => (
                format!("no server answers over link {name}: the link is not used"),
                "check the modem of the link and its access to the Internet",
            ),
            Condition::Down => (
                format!(
                    "link {name} has no carrier, no address or no gateway: the link is not used"
                ),
                "check the cable or radio of the link, and `ip address` and `ip route` on this host",
            ),
        };
        Some(Reason {
            code: match self {
                Condition::Down => "link-down".to_owned(),
                other => other.code().to_owned(),
            },
            subject: Some(name.to_owned()),
            health: Health::Degraded,
            message,
            remedy: remedy.to_owned(),
        })
    }

    /// Returns whether users are served in this state, with or without Multipath TCP.
    pub(crate) fn serves(self) -> bool {
        matches!(
            self,
            Condition::Working | Condition::MptcpStripped | Condition::MptcpBlocked
        )
    }

    /// Returns the problem of a server in this state over a link, if any.
    pub(crate) fn link_to_server_problem(self, link: &str, server: &str) -> Option<Reason> {
        if matches!(
            self,
            Condition::Untried
                | Condition::Working
                | Condition::MeteredStandby
                | Condition::Down
                | Condition::Off
        ) {
            return None;
        }
        Some(Reason {
            code: self.code().to_owned(),
            subject: Some(format!("{link} to {server}")),
            health: Health::Degraded,
            message: format!(
                "server {server} works over other links but not over link {link} ({self}): connections to this \
                 server do not use the link"
            ),
            remedy:
                "compare the links by `braid box check`; try another port or address of the server"
                    .to_owned(),
        })
    }

    /// Returns the problem of a server in this state, if any.
    pub fn server_problem(self, name: &str) -> Option<Reason> {
        let (message, remedy) = match self {
            Condition::KeyRefused => (
                format!(
                    "server {name} refuses this box: it does not know the box's key, or the clocks differ; \
                     the box does not use this server"
                ),
                "compare `braid key show` here with the users in server.toml, and compare the clocks",
            ),
            Condition::WrongKey => (
                format!(
                    "the key of server {name} differs from its `key` in box.toml; the box does not use this \
                     server"
                ),
                "compare `key` of this server in box.toml with `braid key show` on the server; if they are \
                 equal, another host answers in the server's place",
            ),
            Condition::OtherVersion => (
                format!(
                    "server {name} speaks another version of Braid; the box does not use this server"
                ),
                "update the older of box and server",
            ),
            Condition::NotAServer => (
                format!(
                    "server {name} is not a Braid server, or has a different version; the box does not use \
                     this server"
                ),
                "check `address` and port in box.toml, check that `braid server` runs there, and compare both \
                 versions",
            ),
            Condition::NoAnswers | Condition::HandshakeUnanswered | Condition::CaptivePortal => (
                format!("server {name} cannot be reached over any link"),
                "check that the server runs and that its firewall accepts its port, and check the links",
            ),
            _ => return None,
        };
        Some(Reason {
            code: match self {
                Condition::NoAnswers
                | Condition::HandshakeUnanswered
                | Condition::CaptivePortal => "server-unreachable".to_owned(),
                other => other.code().to_owned(),
            },
            subject: Some(name.to_owned()),
            health: Health::Degraded,
            message,
            remedy: remedy.to_owned(),
        })
    }
}
