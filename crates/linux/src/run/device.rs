//! The TUN device of an instance, and the kernel settings for it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use braid_engine::Config;
use braid_proxy::config::TunConfig;

use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Interface};
use crate::net::sysctl::{self, Sysctl};
use crate::net::{InstanceNames, Result, SystemError, cleanup};
use crate::nft::{self, Rules, Ruleset};
use crate::selftest::{self, Verdict};
use crate::tun::{Tun, TunHandle};

/// Length of the device's queue in packets and super-segments. It holds the packets that arrive while the engine
/// does other work: 4,000 packets of 1,500 bytes are 48 ms at 1 Gbit/s. The length is a choice.
const TXQUEUELEN: u32 = 4_000;
/// MTU of the device in bytes: the maximum length of an IPv4 packet. With a smaller MTU the kernel would refuse
/// super-segments.
const TUN_MTU: u32 = 65_535;

/// An instance's TUN device, up and with its addresses. Dropping it removes everything that the instance
/// created.
#[derive(Debug)]
pub struct Device {
    instance_names: InstanceNames,
    tun: TunHandle,
    index: u32,
    /// The addresses of the device, with their prefix lengths.
    addresses: Vec<(IpAddr, u8)>,
    /// The settings that this instance changed, with their earlier values, which are restored at the end.
    record: Vec<Sysctl>,
    /// The settings that this instance needs. The device's own settings come first.
    settings: Vec<Sysctl>,
    /// Number of the device's own settings at the front of `settings`.
    own_settings: usize,
}

impl Device {
    /// Creates the device, and takes over what an earlier instance of its name left when it was killed.
    ///
    /// # Errors
    /// Fails if the kernel refuses the device, or if an instance of this name is running.
    pub fn open(config: &TunConfig) -> Result<(Tun, Device)> {
        let tun = Tun::create(&config.name)?;
        let mut device = Device {
            instance_names: InstanceNames::of_tun(&config.name),
            tun: tun.handle(),
            index: 0,
            addresses: Vec::new(),
            record: Vec::new(),
            settings: Vec::new(),
            own_settings: 0,
        };
        device.record = cleanup::take_over(&device.instance_names)?;
        device.bring_up(config)?;
        Ok((tun, device))
    }

    /// Changes the device's settings, brings it up and adds its addresses.
    fn bring_up(&mut self, config: &TunConfig) -> Result<()> {
        let name = &config.name;
        let cannot = || SystemError::cannot(format!("set up {name}"));
        let mut netlink = Netlink::open().map_err(cannot())?;
        self.index = device_index(&mut netlink, name).map_err(cannot())?;
        // `addr_gen_mode` 1 and `accept_ra` 0: only the engine answers on the device, so generated addresses and
        // router advertisements have no use. `forwarding`: the kernel has to pass packets between the device and
        // the links. `rp_filter` 0: packets that come in by the device have source addresses to which the main
        // table routes over other interfaces. `send_redirects` 0: the engine needs no hints about shorter
        // routes.
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
        self.add_addresses(&mut netlink, config.own_addresses())
    }

    /// Brings the device up and adds its addresses. A kernel without IPv6 for the device refuses IPv6 addresses; the
    /// device then has none.
    ///
    /// # Errors
    /// Fails if the kernel refuses anything else.
    fn add_addresses(
        &mut self,
        netlink: &mut Netlink,
        addresses: impl IntoIterator<Item = (IpAddr, u8)>,
    ) -> Result<()> {
        let name = self.instance_names.tun();
        let cannot = || SystemError::cannot(format!("set up {name}"));
        let brought_up = netlink.bring_up(self.index, TUN_MTU, TXQUEUELEN);
        brought_up.map_err(cannot())?;
        let mut added = Vec::new();
        for address in addresses {
            match self.add_address(netlink, address) {
                Ok(()) => added.push(address),
                Err(error) if address.0.is_ipv6() => {
                    tracing::warn!(%error, "cannot add IPv6 addresses to {name}: the box works with IPv4 only");
                }
                Err(error) => return Err(cannot()(error)),
            }
        }
        self.addresses = added;
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

    /// Returns whether the device is up and has its name, its MTU and all its addresses, according to `interfaces` and
    /// `addresses`.
    pub fn is_sound(&self, interfaces: &[Interface], addresses: &[Address]) -> bool {
        let is_own = |i: &&Interface| i.index == self.index && i.name == self.instance_names.tun();
        let own = interfaces.iter().find(is_own);
        let has_address = |addr| {
            addresses
                .iter()
                .any(|a| a.interface == self.index && a.addr == addr)
        };
        own.is_some_and(|own| own.running && own.mtu == TUN_MTU)
            && self.addresses.iter().all(|(addr, _)| has_address(*addr))
    }

    /// Brings the device up again, with its addresses. Creates the device again if it was removed; the new device
    /// has another index.
    ///
    /// # Errors
    /// Fails if the device was renamed, if another device has its name, or if the kernel refuses.
    pub fn restore(&mut self) -> Result<()> {
        let name = self.instance_names.tun();
        let cannot = || SystemError::cannot(format!("set up {name} again"));
        let mut netlink = Netlink::open().map_err(cannot())?;
        let taken = netlink.interface(name).map_err(cannot())?.is_some();
        // An earlier attempt may have failed after it had created the device, so each one reads what holds now.
        let why_not = match self.tun.name().map_err(cannot())? {
            None if taken => {
                Some("another program has created a device of this name; remove it".to_owned())
            }
            None => {
                self.tun.recreate(name).map_err(cannot())?;
                None
            }
            Some(other) if other != name => {
                Some(format!("it was renamed to `{other}`; rename it back"))
            }
            Some(_) => None,
        };
        if let Some(why_not) = why_not {
            return Err(SystemError::other(format!("set up {name} again"), why_not));
        }
        self.index = device_index(&mut netlink, name).map_err(cannot())?;
        for setting in &self.settings[..self.own_settings] {
            setting.apply()?;
        }
        let addresses = self.addresses.clone();
        self.add_addresses(&mut netlink, addresses)
    }

    /// Returns the names and numbers of what the instance creates.
    pub fn instance_names(&self) -> &InstanceNames {
        &self.instance_names
    }

    /// Returns whether the device has an IPv6 address.
    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(|(addr, _)| addr.is_ipv6())
    }

    /// Records the current values of kernel settings and then changes the settings to `wanted`. If `tracks` is
    /// true, first makes the kernel load connection tracking, since some of the settings belong to it. A setting
    /// that an earlier instance changed and that is not in `wanted` is restored.
    ///
    /// # Errors
    /// Fails if the record cannot be loaded, or if the kernel refuses a value. If this process may not change a
    /// setting, this is only logged.
    pub fn apply_settings(&mut self, wanted: &[Sysctl], tracks: bool) -> Result<()> {
        // This loads connection tracking, whose settings are read below.
        nft::keep_record(&self.instance_names, &self.record, tracks)?;
        let is_wanted = |setting: &Sysctl| wanted.iter().any(|other| other.key == setting.key);
        for setting in self.record.extract_if(.., |setting| !is_wanted(setting)) {
            // An earlier instance changed the setting, so it is restored. This may fail, since the interface may
            // be gone.
            let _ = setting.apply();
        }
        let differing = sysctl::differing(wanted);
        for (old, _) in &differing {
            // If an earlier instance has recorded the setting, its record has the original value.
            if !self.record.iter().any(|known| known.key == old.key) {
                self.record.push(old.clone());
            }
        }
        // The complete record is in the kernel before the first setting changes, so that nothing is lost if this
        // process is killed in between.
        nft::keep_record(&self.instance_names, &self.record, tracks)?;
        let mut settings = wanted.to_vec();
        for (_, new) in differing {
            match new.apply() {
                // Inside a container some settings can be changed only by the host.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    tracing::warn!(%error, "cannot change a kernel setting; the process runs without it");
                    settings.retain(|setting| setting.key != new.key);
                }
                result => result?,
            }
        }
        self.settings.append(&mut settings);
        Ok(())
    }

    /// Adds the current values of the settings `wanted` to the record, and returns the record from before.
    pub fn record(&mut self, wanted: &[Sysctl]) -> Vec<Sysctl> {
        let before = self.record.clone();
        for (old, _) in sysctl::differing(wanted) {
            if !self.record.iter().any(|known| known.key == old.key) {
                self.record.push(old);
            }
        }
        before
    }

    /// Restores an earlier [record](Self::record).
    pub fn set_record(&mut self, record: Vec<Sysctl>) {
        self.record = record;
    }

    /// Changes settings, which have to be [recorded](Self::record) before. They replace all guarded settings
    /// except the device's own. A setting that the kernel refuses is only logged.
    pub fn change_settings(&mut self, wanted: &[Sysctl]) {
        self.settings.truncate(self.own_settings);
        self.settings.extend_from_slice(wanted);
        for (_, new) in sysctl::differing(wanted) {
            if let Err(error) = new.apply() {
                tracing::warn!(%error, "cannot change a kernel setting; the process runs without it");
                self.settings.retain(|setting| setting.key != new.key);
            }
        }
    }

    /// Returns the settings that another program changed, each as a pair of the current and the wanted value.
    pub fn changed_settings(&self) -> Vec<(Sysctl, Sysctl)> {
        sysctl::differing(&self.settings)
    }

    /// Loads rules in place of earlier ones.
    ///
    /// # Errors
    /// Fails if `nft` is missing or refuses the rules.
    pub fn apply_rules(&self, rules: Rules) -> Result<()> {
        let ruleset = Ruleset {
            rules,
            record: self.record.clone(),
        };
        ruleset.apply(&self.instance_names)
    }

    /// Tests whether this machine passes super-segments. If it does not, the engine sends single packets of at
    /// most `mtu` bytes with checksums in software, so `mtu` has to fit every path. Must be called after
    /// forwarding was switched on. Must be called before the rules for source addresses are installed, since
    /// these rules would route the test packet out of a link.
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
            tracing::warn!(%error, "cannot test super-segments: sending single packets with checksums in \
                                    software, which costs more processor time");
            Verdict::Lost
        });
        match verdict {
            Verdict::Whole => tracing::debug!("super-segments pass in both directions"),
            Verdict::Cut => tracing::warn!(
                "the kernel splits received super-segments: this costs processor \
                                            time and may limit the rate"
            ),
            Verdict::Lost => tracing::warn!(
                "super-segments do not pass this machine's network stack: sending single packets with checksums \
                 in software, which costs more processor time"
            ),
        }
        if !verdict.can_send() {
            config.max_transmit = usize::from(mtu);
            config.checksum_offload = false;
        }
    }
}

/// Returns the index of the interface `name`.
fn device_index(netlink: &mut Netlink, name: &str) -> io::Result<u32> {
    let found = netlink.interface(name)?;
    let removed = || io::Error::new(ErrorKind::NotFound, "another program has removed it");
    Ok(found.ok_or_else(removed)?.index)
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = cleanup::cleanup(&self.instance_names, &self.record) {
            tracing::error!(%error, "cannot remove all rules, routes and settings; the next start of this \
                                     instance removes them");
        }
    }
}

/// Returns the settings of a link's interface. Forwarding is on. Reverse-path filtering is loose (2): the main
/// table has one route to a peer, but the peer's packets come in by other interfaces too. IPv6 forwarding is
/// switched on for all interfaces at once, and an interface that forwards obeys router advertisements only if
/// `accept_ra` is 2 (ip-sysctl.rst).
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
