//! The TUN device of an instance, and what of the kernel is set for it.

use std::io::ErrorKind;
use std::net::IpAddr;

use braid_engine::Config;
use braid_proxy::config::TunConfig;

use crate::net::links::has_ipv6;
use crate::net::netlink::Netlink;
use crate::net::routes::Address;
use crate::net::sysctl::{self, Sysctl};
use crate::net::{Identity, Result, SystemError, cleanup};
use crate::nft::{Rules, Ruleset};
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
    v6: bool,
    record: Vec<Sysctl>,
}

impl Device {
    /// Creates the device and removes what an earlier instance of its name left behind.
    ///
    /// # Errors
    /// Where the system refuses, and where an instance of this name is running.
    pub fn open(config: &TunConfig) -> Result<(Tun, Device)> {
        let tun = Tun::create(&config.name)?;
        let mut device = Device {
            identity: Identity::of_tun(&config.name),
            index: 0,
            v6: has_ipv6(),
            record: Vec::new(),
        };
        cleanup::cleanup(&device.identity)?;
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
            }
        }
        netlink
            .bring_up(self.index, TUN_MTU, TXQUEUELEN)
            .map_err(doing())?;
        for (addr, prefix_len) in config.own_addresses() {
            let address = Address {
                interface: self.index,
                addr,
                prefix_len,
                deprecated: false,
                secondary: false,
            };
            match netlink.add_address(&address) {
                Ok(()) => {}
                Err(error) if address.addr.is_ipv6() => {
                    tracing::warn!(%error, "no IPv6 on {name}");
                    self.v6 = false;
                }
                Err(error) => return Err(doing()(error)),
            }
        }
        Ok(())
    }

    /// The names of what the instance creates.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether there is IPv6.
    pub fn has_v6(&self) -> bool {
        self.v6
    }

    /// Puts kernel settings in force, after recording what they were. `rules` are in force
    /// meanwhile.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn apply_settings(&mut self, wanted: &[Sysctl], rules: Rules) -> Result<()> {
        let differing = sysctl::differing(wanted);
        self.record = differing.iter().map(|(old, _)| old.clone()).collect();
        self.apply_rules(rules)?;
        for (_, new) in differing {
            match new.apply() {
                // In a container some settings are the host's to make.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    tracing::warn!(%error, "going on without");
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// Puts further kernel settings in force and `rules` in place of earlier ones. What the settings were is
    /// recorded beside what is recorded.
    ///
    /// # Errors
    /// Where the system refuses the rules; nothing changed then. Settings that it refuses are logged.
    pub fn change(&mut self, wanted: &[Sysctl], rules: Rules) -> Result<()> {
        let before = self.record.clone();
        let differing = sysctl::differing(wanted);
        for (old, _) in &differing {
            if !self.record.iter().any(|known| known.key == old.key) {
                self.record.push(old.clone());
            }
        }
        if let Err(error) = self.apply_rules(rules) {
            self.record = before;
            return Err(error);
        }
        for (_, new) in differing {
            if let Err(error) = new.apply() {
                tracing::warn!(%error, "going on without");
            }
        }
        Ok(())
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
        if let Err(error) = cleanup::cleanup(&self.identity) {
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
