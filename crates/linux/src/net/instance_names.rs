//! The names and numbers of an instance in the kernel.

use std::path::PathBuf;

/// The names and numbers of everything that an instance creates in the kernel.
///
/// They are computed from nothing but the name of its TUN device, which is unique in a network namespace. So an
/// instance finds and removes what an earlier instance of the same name left when it was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceNames {
    tun: String,
    /// Hash of the device's name, which tells the numbers of instances apart.
    hash: u16,
}

impl InstanceNames {
    /// The bits of a mark that encode the link: 0 for none, otherwise its index plus 1. All bits are set in the
    /// [mark of intercepted connections](Self::intercepted_mark), so the index of a link is at most 253: a value
    /// of 255 would be that mark.
    pub const FLOW_BITS: u32 = 0x00ff_0000;

    /// Returns the names of the instance whose TUN device is called `tun`.
    pub fn of_tun(tun: &str) -> InstanceNames {
        let hash = fnv1a(tun.as_bytes());
        // The two halves of the hash are combined to get fewer bits (xor folding), as FNV's authors advise.
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

    /// Returns the path of the control socket for configurations that name no socket. `role` is `box` or
    /// `server`. Unlike everything else here, the path does not belong to a network namespace: if instances in
    /// two namespaces have the same device name, the socket belongs to the instance that started first.
    pub fn control_socket(&self, role: &str) -> PathBuf {
        format!("/run/braid/{role}-{}.sock", self.tun).into()
    }

    /// Returns the routing table for packets from the sources of link `index`.
    pub fn path_table(&self, index: u8) -> u32 {
        self.table_base() | u32::from(index)
    }

    /// Returns the routing table of forwarded connections that began over link `index` (at most 253, since 254
    /// and 255 would give [`Self::forward_table`] and [`Self::intercept_table`]).
    pub fn flow_table(&self, index: u8) -> u32 {
        self.table_base() | 0x100 | u32::from(index)
    }

    /// Returns the routing table of forwarded packets that have no link's mark.
    pub fn forward_table(&self) -> u32 {
        self.table_base() | 0x1fe
    }

    /// Returns the routing table that delivers intercepted packets to this host.
    pub fn intercept_table(&self) -> u32 {
        self.table_base() | 0x1ff
    }

    /// Returns whether a routing table belongs to this instance.
    pub fn owns_table(&self, table: u32) -> bool {
        // The lowest 9 bits tell the tables of one instance apart.
        table & !0x1ff == self.table_base()
    }

    /// Returns the packet mark of intercepted packets.
    pub fn mark(&self) -> u32 {
        // The first byte tells Braid's marks from the small numbers that other programs may use.
        0xb000_0000 | u32::from(self.hash)
    }

    /// Returns the mark of forwarded connections that began over link `index` (at most 253), and of their
    /// packets. It differs from [`Self::mark`] in [`Self::FLOW_BITS`] only.
    // The index plus 1 makes the mark of link 0 differ from `mark`, too.
    pub fn flow_mark(&self, index: u8) -> u32 {
        self.mark() | (u32::from(index) + 1) << Self::FLOW_BITS.trailing_zeros()
    }

    /// Returns the connection mark of intercepted connections. It differs from every link's [`Self::flow_mark`].
    pub fn intercepted_mark(&self) -> u32 {
        self.mark() | Self::FLOW_BITS
    }

    /// Returns the priority of the routing rules for packets from the links' sources and for intercepted
    /// packets. The priority is an even number between 10,000 and 19,998, so these rules come before the main
    /// table's rule (32,766).
    pub fn rule_priority(&self) -> u32 {
        10_000 + u32::from(self.hash) % 5_000 * 2
    }

    /// Returns the priority of the routing rules for forwarded packets: they come after the rule for intercepted
    /// packets and before the main table's rule (32,766).
    pub fn forward_rule_priority(&self) -> u32 {
        self.rule_priority() + 1
    }

    /// Returns the priority of the routing rule that comes after the main table's rule (32,766).
    pub fn fallback_rule_priority(&self) -> u32 {
        // At least 40,000, since `rule_priority` is at least 10,000.
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

    /// Returns whether a rule at this priority belongs to this instance, if it has Braid's protocol number.
    pub fn owns_priority(&self, priority: u32) -> bool {
        self.priorities().contains(&priority)
    }

    fn table_base(&self) -> u32 {
        // The hash is above the 9 bits for the tables of an instance. Bit 30 keeps all numbers far above those
        // that people choose for tables of their own.
        0x4000_0000 | u32::from(self.hash) << 9
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    // The offset basis and the prime of FNV-1a with 32 bits. The hash of a name must never change: a new
    // version has to find what a killed instance of an earlier version left.
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
