//! The TUN device of an instance, and what of the kernel is set for it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use braid_engine::Config;
use braid_proxy::config::TunConfig;

use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Interface};
use crate::net::sysctl::{self, Sysctl};
use crate::net::{Identity, Result, SystemError, cleanup};
use crate::nft::{self, Rules, Ruleset};
use crate::selftest::{self, Verdict};
use crate::tun::Tun;

/// Packets and super-segments the kernel holds for the engine: a pause of 40 ms at 1 Gbit/s in
/// single packets.
const TXQUEUELEN: u32 = 4_000;
/// No packet of a path is larger; a smaller MTU would make the kernel refuse some.
const TUN_MTU: u32 = 65_535;

/// An instance's TUN device, up and with its addresses. Dropping this removes everything that the
/// instance created.
#[derive(Debug)]
pub struct Device {
    identity: Identity,
    index: u32,
    /// The addresses that it has, with their prefix lengths.
    addresses: Vec<(IpAddr, u8)>,
    record: Vec<Sysctl>,
    /// The settings that are to be in force, the device's own first.
    settings: Vec<Sysctl>,
    own_settings: usize,
}

impl Device {
    /// Creates the device, and takes over what an earlier instance of its name left behind.
    ///
    /// # Errors
    /// Where the system refuses, and where an instance of this name is running.
    pub fn open(config: &TunConfig) -> Result<(Tun, Device)> {
        let tun = Tun::create(&config.name)?;
        let mut device = Device {
            identity: Identity::of_tun(&config.name),
            index: 0,
            addresses: Vec::new(),
            record: Vec::new(),
            settings: Vec::new(),
            own_settings: 0,
        };
        device.record = cleanup::take_over(&device.identity)?;
        device.bring_up(config)?;
        Ok((tun, device))
    }

    fn bring_up(&mut self, config: &TunConfig) -> Result<()> {
        let name = &config.name;
        let doing = || SystemError::doing(format!("set up {name}"));
        let mut netlink = Netlink::open().map_err(doing())?;
        let found = netlink.interface(name).map_err(doing())?;
        self.index = found
            .ok_or_else(|| SystemError::other(format!("find {name}"), "it is gone"))?
            .index;
        // The device takes no part in neighbour discovery and has no use for addresses of its
        // own making.
        for (key, value) in [
            ("ipv6/conf/{}/addr_gen_mode", 1),
            ("ipv6/conf/{}/accept_ra", 0),
            ("ipv4/conf/{}/forwarding", 1),
            ("ipv4/conf/{}/rp_filter", 0),
            ("ipv4/conf/{}/send_redirects", 0),
        ] {
            let setting = Sysctl::new(format!("net/{}", key.replace("{}", name)), value);
            if Sysctl::current(&setting.key).is_some() {
                setting.apply()?;
                self.settings.push(setting);
            }
        }
        self.own_settings = self.settings.len();
        netlink
            .bring_up(self.index, TUN_MTU, TXQUEUELEN)
            .map_err(doing())?;
        for (addr, prefix_len) in config.own_addresses() {
            match self.add_address(&mut netlink, (addr, prefix_len)) {
                Ok(()) => self.addresses.push((addr, prefix_len)),
                Err(error) if addr.is_ipv6() => {
                    tracing::warn!(%error, "no IPv6 on {name}");
                }
                Err(error) => return Err(doing()(error)),
            }
        }
        Ok(())
    }

    fn add_address(
        &self,
        netlink: &mut Netlink,
        (addr, prefix_len): (IpAddr, u8),
    ) -> io::Result<()> {
        netlink.add_address(&Address {
            interface: self.index,
            addr,
            prefix_len,
            deprecated: false,
            secondary: false,
        })
    }

    /// Returns whether the device is as it was set up, by what there is of interfaces and addresses.
    pub fn is_sound(&self, interfaces: &[Interface], addresses: &[Address]) -> bool {
        let own = interfaces.iter().find(|i| i.index == self.index);
        let has = |addr| {
            addresses
                .iter()
                .any(|a| a.interface == self.index && a.addr == addr)
        };
        own.is_some_and(|own| own.running && own.mtu == TUN_MTU)
            && self.addresses.iter().all(|(addr, _)| has(*addr))
    }

    /// Puts the device up again, with its addresses.
    ///
    /// # Errors
    /// Where the system refuses, as where the device is gone, which only a new start makes again.
    pub fn restore(&self) -> Result<()> {
        let doing = || SystemError::doing(format!("set up {} again", self.identity.tun()));
        let mut netlink = Netlink::open().map_err(doing())?;
        netlink
            .bring_up(self.index, TUN_MTU, TXQUEUELEN)
            .map_err(doing())?;
        for address in &self.addresses {
            self.add_address(&mut netlink, *address).map_err(doing())?;
        }
        Ok(())
    }

    /// The names of what the instance creates.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether there is IPv6.
    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(|(addr, _)| addr.is_ipv6())
    }

    /// Puts kernel settings in force, after recording what they were. `tracks` has the kernel load connection
    /// tracking, of which some settings are.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn apply_settings(&mut self, wanted: &[Sysctl], tracks: bool) -> Result<()> {
        nft::keep_record(&self.identity, &self.record, tracks)?;
        let is_wanted = |setting: &Sysctl| wanted.iter().any(|other| other.key == setting.key);
        for setting in self.record.extract_if(.., |setting| !is_wanted(setting)) {
            // Of an earlier instance. Its interface may be gone.
            let _ = setting.apply();
        }
        let differing = sysctl::differing(wanted);
        for (old, _) in &differing {
            // What an earlier instance found is what there was before.
            if !self.record.iter().any(|known| known.key == old.key) {
                self.record.push(old.clone());
            }
        }
        nft::keep_record(&self.identity, &self.record, tracks)?;
        let mut settings = wanted.to_vec();
        for (_, new) in differing {
            match new.apply() {
                // In a container some settings are the host's to make.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    tracing::warn!(%error, "going on without");
                    settings.retain(|setting| setting.key != new.key);
                }
                result => result?,
            }
        }
        self.settings.append(&mut settings);
        Ok(())
    }

    /// Records what the settings `wanted` were before, beside what is recorded; returns the record as it was.
    pub fn record(&mut self, wanted: &[Sysctl]) -> Vec<Sysctl> {
        let before = self.record.clone();
        for (old, _) in sysctl::differing(wanted) {
            if !self.record.iter().any(|known| known.key == old.key) {
                self.record.push(old);
            }
        }
        before
    }

    /// Goes back to an earlier [record](Self::record).
    pub fn set_record(&mut self, record: Vec<Sysctl>) {
        self.record = record;
    }

    /// Puts settings in force that were recorded, in place of all but the device's own. Those that the system
    /// refuses are logged.
    pub fn change_settings(&mut self, wanted: &[Sysctl]) {
        self.settings.truncate(self.own_settings);
        self.settings.extend_from_slice(wanted);
        for (_, new) in sysctl::differing(wanted) {
            if let Err(error) = new.apply() {
                tracing::warn!(%error, "going on without");
                self.settings.retain(|setting| setting.key != new.key);
            }
        }
    }

    /// The settings that are not as they were put in force, each with what it is.
    pub fn changed_settings(&self) -> Vec<(Sysctl, Sysctl)> {
        sysctl::differing(&self.settings)
    }

    /// Puts rules in force, in place of earlier ones.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn apply_rules(&self, rules: Rules) -> Result<()> {
        let ruleset = Ruleset {
            rules,
            record: self.record.clone(),
        };
        ruleset.apply(&self.identity)
    }

    /// Sends a super-segment through this machine and adapts the engine's settings to what became
    /// of it: `mtu` (bytes) is to hold for every path. To be called before source routing is set
    /// up, and with forwarding on.
    pub fn adapt_engine(
        &self,
        config: &mut Config,
        tun: &mut Tun,
        addresses: &TunConfig,
        mtu: u16,
    ) {
        let (from, to) = (
            IpAddr::V4(addresses.path_v4(0)),
            IpAddr::V4(addresses.path_v4(1)),
        );
        let verdict = selftest::probe(tun, from, to).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot test the offloads");
            Verdict::Lost
        });
        match verdict {
            Verdict::Whole => tracing::debug!("super-segments pass in both directions"),
            Verdict::Cut => tracing::warn!("super-segments are cut on receipt: expect less speed"),
            Verdict::Lost => tracing::warn!(
                "super-segments do not pass this machine's stack: sending single packets with \
                 checksums in software"
            ),
        }
        if !verdict.can_send() {
            config.max_transmit = usize::from(mtu);
            config.checksum_offload = false;
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = cleanup::cleanup(&self.identity, &self.record) {
            tracing::error!(%error, "something is left behind");
        }
    }
}

/// Forwarding for an interface that carries paths. Reverse-path filtering is loosened: the main
/// table knows one way to a peer, and packets of the other paths come in by others. IPv6 knows
/// forwarding for all interfaces only, and an interface that forwards heeds router advertisements
/// only if told to twice.
pub(super) fn path_settings(interface: &str, v6: bool) -> Vec<Sysctl> {
    let mut settings = vec![
        Sysctl::new(format!("net/ipv4/conf/{interface}/forwarding"), 1),
        Sysctl::new(format!("net/ipv4/conf/{interface}/rp_filter"), 2),
    ];
    let accept_ra = format!("net/ipv6/conf/{interface}/accept_ra");
    if v6 && Sysctl::current(&accept_ra).is_some_and(|now| now.value == "1") {
        settings.push(Sysctl::new(accept_ra, 2));
    }
    settings
}
