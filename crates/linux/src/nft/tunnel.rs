//! Rules for the packets of the tunnel.

use std::fmt::{self, Write as _};

use ipnet::{Ipv4Net, Ipv6Net};

use super::{Names, Quoted};
use crate::net::InstanceNames;

/// The rules of a box whose tunnel carries packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxTunnel {
    /// The packet device.
    pub device: String,
    /// True if the tunnel carries IPv4.
    pub v4: bool,
    /// True if the tunnel carries IPv6.
    pub v6: bool,
}

/// The rules of a server that offers a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTunnel {
    /// The packet device.
    pub device: String,
    /// The range of the boxes' IPv4 addresses.
    pub v4: Ipv4Net,
    /// The range of the boxes' IPv6 addresses.
    pub v6: Ipv6Net,
}

impl BoxTunnel {
    /// Name of the chain to which the interception hands packets that are not TCP.
    pub(super) const CHAIN: &str = "tunnel";

    /// Emits the chains of the tunnel.
    ///
    /// The first one gives the tunnel's mark to packets for other hosts, except for the destinations that are only
    /// forwarded. Routing sends packets with the mark into the device. If the device is gone, because this process was
    /// killed, routing ignores the mark, and the packets are forwarded over a link. A flow that changes between
    /// tunnel and link loses one packet, because the kernel forgets its translated address.
    ///
    /// Nothing comes from the tunnel but answers: neither to hosts of the local network nor to this host itself.
    pub(super) fn emit(
        &self,
        lan: &[String],
        instance_names: &InstanceNames,
        out: &mut String,
    ) -> fmt::Result {
        let (device, mark) = (Quoted(&self.device), instance_names.tunnel_mark());
        writeln!(
            out,
            "chain {chain} {{
             fib daddr type != unicast return
             ip daddr @bypass4 return
             ip6 daddr @bypass6 return",
            chain = Self::CHAIN,
        )?;
        for (family, is_carried) in [("ipv4", self.v4), ("ipv6", self.v6)] {
            if is_carried {
                writeln!(out, "meta nfproto {family} meta mark set {mark}")?;
            }
        }
        writeln!(
            out,
            "}}
             chain tunnel-forward {{ type filter hook forward priority filter; policy accept;
             iifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-input {{ type filter hook input priority filter; policy accept;
             iifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-postrouting {{ type nat hook postrouting priority srcnat; policy accept;
             oifname {device} iifname {lan} masquerade
             }}",
            lan = Names(lan),
        )
    }
}

impl ServerTunnel {
    /// Emits the chains of the tunnel.
    ///
    /// Packets of boxes are forwarded with the address of the interface by which they leave. Boxes do not reach each
    /// other, nor this server itself, and nothing but answers goes to them. The core has checked already that the source
    /// of each packet is the address of its box; the rule is for packets of other programs on the device.
    pub(super) fn emit(&self, out: &mut String) -> fmt::Result {
        let device = Quoted(&self.device);
        writeln!(
            out,
            "chain tunnel-forward {{ type filter hook forward priority filter; policy accept;
             iifname {device} oifname {device} drop
             iifname {device} ip saddr != {v4} drop
             iifname {device} ip6 saddr != {v6} drop
             oifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-input {{ type filter hook input priority filter; policy accept;
             iifname {device} drop
             }}
             chain tunnel-postrouting {{ type nat hook postrouting priority srcnat; policy accept;
             iifname {device} masquerade
             }}",
            v4 = self.v4,
            v6 = self.v6,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn box_script(v4: bool, v6: bool) -> String {
        let tunnel = BoxTunnel {
            device: "braid0t".to_owned(),
            v4,
            v6,
        };
        let mut out = String::new();
        let lan = ["lan0".to_owned()];
        tunnel
            .emit(&lan, &InstanceNames::of_tun("t"), &mut out)
            .unwrap();
        out
    }

    /// Packets of a family without an address in the tunnel are forwarded.
    #[test]
    fn only_families_that_the_tunnel_carries_are_marked() {
        let marks = |v4, v6| {
            let script = box_script(v4, v6);
            let families = ["ipv4", "ipv6"]
                .map(|family| script.contains(&format!("nfproto {family} meta mark")));
            (families[0], families[1])
        };
        for carried in [(true, true), (true, false), (false, true)] {
            assert_eq!(marks(carried.0, carried.1), carried);
        }
    }

    #[test]
    fn bypassed_destinations_come_before_the_mark() {
        let script = box_script(true, true);
        let at = |text: &str| script.find(text).unwrap();
        assert!(at("@bypass4 return") < at("meta mark set"));
        assert!(at("@bypass6 return") < at("meta mark set"));
    }
}
