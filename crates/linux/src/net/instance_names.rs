//! The names and numbers of an instance in the kernel.

use std::path::PathBuf;

/// Maximum length of the name of an interface in bytes (`IFNAMSIZ`, which counts the terminating zero).
const MAX_DEVICE_NAME: usize = 15;
/// The bit that tells the marks of the tunnel from other marks of an instance.
const TUNNEL_MARK_BIT: u32 = 0x0100_0000;

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
    /// [mark of intercepted connections](Self::intercepted_mark), so a value of 255 would be that mark. The index of
    /// a link is at most 252, as [`Self::tunnel_table`] says.
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

    /// Returns the names of the instance's devices: of the TUN device and of the packet device of the tunnel.
    pub fn devices(&self) -> [String; 2] {
        [self.tun.clone(), self.tunnel_device()]
    }

    /// Returns the name of the packet device of the tunnel. It is the name of the TUN device with a `t` behind it, which
    /// replaces the last letter if the name would be too long for an interface.
    pub fn tunnel_device(&self) -> String {
        let mut name = self.tun.clone();
        let replaced = if name.len() >= MAX_DEVICE_NAME {
            name.pop()
        } else {
            None
        };
        // A name must differ from the TUN device's.
        name.push(if replaced == Some('t') { 'u' } else { 't' });
        name
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

    /// Returns the routing table of forwarded connections that began over link `index` (at most 252, since 253 to 255
    /// would give [`Self::tunnel_table`], [`Self::forward_table`] and [`Self::intercept_table`]).
    pub fn flow_table(&self, index: u8) -> u32 {
        self.table_base() | 0x100 | u32::from(index)
    }

    /// Returns the routing table that sends packets into the tunnel.
    pub fn tunnel_table(&self) -> u32 {
        self.table_base() | 0x1fd
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

    /// Returns the mark of forwarded connections that began over link `index` (at most 252), and of their
    /// packets. It differs from [`Self::mark`] in [`Self::FLOW_BITS`] only.
    // The index plus 1 makes the mark of link 0 differ from `mark`, too.
    pub fn flow_mark(&self, index: u8) -> u32 {
        self.mark() | (u32::from(index) + 1) << Self::FLOW_BITS.trailing_zeros()
    }

    /// Returns the connection mark of intercepted connections. It differs from every link's [`Self::flow_mark`].
    pub fn intercepted_mark(&self) -> u32 {
        self.mark() | Self::FLOW_BITS
    }

    /// Returns the mark of the packets that the tunnel itself sends over link `index` (at most 252).
    pub fn socket_mark(&self, index: u8) -> u32 {
        self.flow_mark(index) | TUNNEL_MARK_BIT
    }

    /// Returns the mark of packets that are routed into the tunnel.
    pub fn tunnel_mark(&self) -> u32 {
        self.mark() | TUNNEL_MARK_BIT
    }

    /// Returns the priority of the routing rules for packets from the links' sources, for intercepted packets and for
    /// the tunnel. The priority is an even number between 10,000 and 19,998, so these rules come before the main
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
        let others = [a.tunnel_table(), a.forward_table(), a.intercept_table()];
        for table in tables.into_iter().chain(others) {
            assert!(a.owns_table(table) && !b.owns_table(table));
        }
        assert!(!a.owns_table(254));
        assert_ne!(a.mark(), b.mark());
        for index in [0, 252] {
            assert!(a.owns_table(a.flow_table(index)));
            assert_ne!(a.flow_table(index), a.path_table(index));
            assert_ne!(a.flow_mark(index), a.mark());
            assert_ne!(a.flow_mark(index), a.intercepted_mark());
            assert_eq!(a.flow_mark(index) & !InstanceNames::FLOW_BITS, a.mark());
            assert_ne!(a.socket_mark(index), a.tunnel_mark());
            assert_ne!(a.socket_mark(index), b.socket_mark(index));
        }
        assert_ne!(a.flow_table(252), a.tunnel_table());
        assert_ne!(a.tunnel_mark(), a.mark());
    }

    #[test]
    fn the_tunnels_device_has_a_name_of_its_own() {
        for (tun, device) in [
            ("braid0", "braid0t"),
            ("fourteen-chars", "fourteen-charst"),
            ("fifteen-letters", "fifteen-lettert"),
            ("fifteen-tetters", "fifteen-tettert"),
            ("also-fifteen-it", "also-fifteen-iu"),
        ] {
            let name = InstanceNames::of_tun(tun).tunnel_device();
            assert_eq!(name, device);
            assert!(name.len() <= MAX_DEVICE_NAME && name != tun);
        }
    }

    #[test]
    fn table_names_are_plain_and_stay_apart() {
        let (a, b) = (InstanceNames::of_tun("a.b"), InstanceNames::of_tun("a-b"));
        assert_ne!(a.nft_table(), b.nft_table());
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        assert!(plain(&a.nft_table()) && plain(&b.nft_table()));
    }
}
