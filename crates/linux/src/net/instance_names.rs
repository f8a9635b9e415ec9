//! The names and numbers of an instance in the kernel.

use std::path::PathBuf;

/// The names and numbers of everything that an instance creates in the kernel.
///
/// They follow from the name of its TUN device alone, which is unique in a network namespace. So an instance
/// finds and removes the remains of an earlier one that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceNames {
    tun: String,
    hash: u16,
}

impl InstanceNames {
    /// The bits of a mark that encode the link.
    pub const FLOW_BITS: u32 = 0x00ff_0000;

    /// Returns the names of the instance whose TUN device is called `tun`.
    pub fn of_tun(tun: &str) -> InstanceNames {
        let hash = fnv1a(tun.as_bytes());
        InstanceNames {
            tun: tun.to_owned(),
            hash: ((hash >> 16) ^ (hash & 0xffff)) as u16,
        }
    }

    /// Returns the name of the TUN device.
    pub fn tun(&self) -> &str {
        &self.tun
    }

    /// Returns the name of the nftables table, of family `inet`.
    pub fn nft_table(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.tun.chars().map(plain).collect();
        if name == self.tun {
            format!("braid_{name}")
        } else {
            // The hash keeps names apart that differ only in characters which nftables does not allow.
            format!("braid_{name}_{:04x}", self.hash)
        }
    }

    /// Returns the control socket for configurations that name none. `role` is `box` or `server`. Unlike the
    /// rest, the socket is not bound to the network namespace: of two instances with equal device names, the
    /// first has it.
    pub fn control_socket(&self, role: &str) -> PathBuf {
        format!("/run/braid/{role}-{}.sock", self.tun).into()
    }

    /// Returns the routing table of path `index`.
    pub fn path_table(&self, index: u8) -> u32 {
        self.table_base() | u32::from(index)
    }

    /// Returns the routing table of forwarded connections that began over link `index` (at most 253).
    pub fn flow_table(&self, index: u8) -> u32 {
        self.table_base() | 0x100 | u32::from(index)
    }

    /// Returns the routing table of all forwarded packets without a connection's mark.
    pub fn forward_table(&self) -> u32 {
        self.table_base() | 0x1fe
    }

    /// Returns the routing table that delivers intercepted packets to this host.
    pub fn intercept_table(&self) -> u32 {
        self.table_base() | 0x1ff
    }

    /// Returns whether a routing table belongs to this instance.
    pub fn owns_table(&self, table: u32) -> bool {
        table & !0x1ff == self.table_base()
    }

    /// Returns the packet mark of intercepted packets.
    pub fn mark(&self) -> u32 {
        0xb000_0000 | u32::from(self.hash)
    }

    /// Returns the mark of forwarded connections that began over link `index` (at most 253), and of their
    /// packets. It differs from [`Self::mark`] in [`Self::FLOW_BITS`] only.
    pub fn flow_mark(&self, index: u8) -> u32 {
        self.mark() | (u32::from(index) + 1) << Self::FLOW_BITS.trailing_zeros()
    }

    /// Returns the connection mark of intercepted connections. It is none of [`Self::flow_mark`].
    pub fn intercepted_mark(&self) -> u32 {
        self.mark() | Self::FLOW_BITS
    }

    /// Returns the priority of the routing rules for packets of paths and for intercepted packets.
    pub fn rule_priority(&self) -> u32 {
        10_000 + u32::from(self.hash) % 5_000 * 2
    }

    /// Returns the priority of the routing rules for forwarded packets: after the intercepted ones, before
    /// the main table (32,766).
    pub fn forward_rule_priority(&self) -> u32 {
        self.rule_priority() + 1
    }

    /// Returns the priority of the routing rule after the main table.
    pub fn fallback_rule_priority(&self) -> u32 {
        self.rule_priority() + 30_000
    }

    /// Returns the priorities of this instance's routing rules.
    pub fn priorities(&self) -> [u32; 3] {
        [
            self.rule_priority(),
            self.forward_rule_priority(),
            self.fallback_rule_priority(),
        ]
    }

    /// Returns whether a rule with Braid's marks at this priority belongs to this instance.
    pub fn owns_priority(&self, priority: u32) -> bool {
        self.priorities().contains(&priority)
    }

    fn table_base(&self) -> u32 {
        // 16 bits of hash above 9 bits for the tables of an instance.
        0x4000_0000 | u32::from(self.hash) << 9
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    // FNV-1a, 32 bits: offset basis and prime. The hash of a name must never change.
    bytes.iter().fold(0x811c_9dc5, |hash, b| {
        (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_follow_from_the_name() {
        let a = InstanceNames::of_tun("braid0");
        let b = InstanceNames::of_tun("braid1");
        assert_eq!(a, InstanceNames::of_tun("braid0"));
        assert_eq!(a.nft_table(), "braid_braid0");
        let tables = [0, 255].map(|i| a.path_table(i));
        for table in tables
            .into_iter()
            .chain([a.forward_table(), a.intercept_table()])
        {
            assert!(a.owns_table(table) && !b.owns_table(table));
        }
        assert!(!a.owns_table(254));
        assert_ne!(a.mark(), b.mark());
        for index in [0, 253] {
            assert!(a.owns_table(a.flow_table(index)));
            assert_ne!(a.flow_table(index), a.path_table(index));
            assert_ne!(a.flow_mark(index), a.mark());
            assert_ne!(a.flow_mark(index), a.intercepted_mark());
            assert_eq!(a.flow_mark(index) & !InstanceNames::FLOW_BITS, a.mark());
        }
        assert_ne!(a.flow_table(253), a.forward_table());
    }

    #[test]
    fn table_names_are_plain_and_stay_apart() {
        let (a, b) = (InstanceNames::of_tun("a.b"), InstanceNames::of_tun("a-b"));
        assert_ne!(a.nft_table(), b.nft_table());
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        assert!(plain(&a.nft_table()) && plain(&b.nft_table()));
    }
}
