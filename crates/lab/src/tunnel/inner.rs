//! Inner flows: what hosts send through a tunnel.

use std::fmt;
use std::str::FromStr;

use braid_links::text::RateValue;
use braid_tunnel::Urgency;
use braid_units::value::ValueError;

use super::quic::Congestion;

const EXPECTED: &str = "quic:bbr, quic:cubic, voip, or udp:RATE:SIZE such as `udp:5mbit:1200`, with a size of 44 to \
                        1500 bytes";
/// The range of the sizes of UDP packets, bytes: headers of IPv4 and UDP and the stamp of the source, to the MTU.
const UDP_SIZES: std::ops::RangeInclusive<u16> = 44..=1500;
/// A call: 50 packets of 200 bytes a second.
const VOIP: Inner = Inner::Udp {
    rate: 50 * 200 * 8,
    size: 200,
    is_call: true,
};

/// An inner flow, from server to client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// A download over QUIC.
    Quic(Congestion),
    /// UDP at a constant rate.
    Udp {
        /// Rate of IP packets, bit/s.
        rate: u64,
        /// Size of an IP packet, bytes.
        size: u16,
        /// True for a call, whose packets are urgent.
        is_call: bool,
    },
}

impl Inner {
    /// Returns the urgency of the flow's packets in the tunnel.
    pub fn urgency(self) -> Urgency {
        match self {
            Inner::Udp { is_call: true, .. } => Urgency::new(1).unwrap_or_default(),
            Inner::Udp { .. } | Inner::Quic(_) => Urgency::default(),
        }
    }

    /// Returns the size of the flow unless a user chooses one, in the syntax of the command line: 20 MiB, or 20 s of
    /// a call.
    pub fn default_size(self) -> &'static str {
        if self == VOIP { "200000" } else { "20M" }
    }
}

impl FromStr for Inner {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::is_no(text, "inner flow", EXPECTED);
        match text.split(':').collect::<Vec<_>>()[..] {
            ["quic", "bbr"] => Ok(Inner::Quic(Congestion::Bbr)),
            ["quic", "cubic"] => Ok(Inner::Quic(Congestion::Cubic)),
            ["voip"] => Ok(VOIP),
            ["udp", rate, size] => {
                let RateValue(rate) = rate.parse()?;
                let size = size.parse().ok().filter(|size| UDP_SIZES.contains(size));
                Ok(Inner::Udp {
                    rate: rate.ok_or_else(wrong)?,
                    size: size.ok_or_else(wrong)?,
                    is_call: false,
                })
            }
            _ => Err(wrong()),
        }
    }
}

/// Writes the flow as [`FromStr`] reads it.
impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inner::Quic(Congestion::Bbr) => f.pad("quic:bbr"),
            Inner::Quic(Congestion::Cubic) => f.pad("quic:cubic"),
            Inner::Udp { is_call: true, .. } => f.pad("voip"),
            Inner::Udp { rate, size, .. } => f.pad(&format!("udp:{rate}bit:{size}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_flows_are_read_and_shown() {
        let udp = |rate, size| Inner::Udp {
            rate,
            size,
            is_call: false,
        };
        for (text, inner) in [
            ("quic:bbr", Inner::Quic(Congestion::Bbr)),
            ("quic:cubic", Inner::Quic(Congestion::Cubic)),
            ("voip", VOIP),
            ("udp:5000000bit:1200", udp(5_000_000, 1200)),
        ] {
            assert_eq!(text.parse(), Ok(inner));
            assert_eq!(inner.to_string(), text);
        }
        assert_eq!("udp:5mbit:1200".parse(), Ok(udp(5_000_000, 1200)));
        assert_eq!(VOIP.urgency(), Urgency::new(1).unwrap());
        for text in [
            "",
            "quic",
            "quic:reno",
            "udp:5mbit",
            "udp:5mbit:43",
            "udp:5mbit:1501",
        ] {
            let error = text.parse::<Inner>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}` is no inner flow")),
                "{error}"
            );
            assert!(error.contains("quic:bbr"), "{error}");
        }
        let error = "udp:fast:1200".parse::<Inner>().unwrap_err().to_string();
        assert!(error.contains("`fast` is no rate"), "{error}");
        let error = "udp:unlimited:1200".parse::<Inner>().unwrap_err();
        assert!(error.to_string().contains("no inner flow"), "{error}");
    }
}
