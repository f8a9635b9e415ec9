//! The TUN devices of an instance, and the kernel settings for them.

use std::io::ErrorKind;
use std::net::IpAddr;

use braid_engine::Config;
use braid_proxy::config::TunConfig;

use super::tun_device::{ENGINE_QUEUE, TUNNEL_QUEUE, TunDevice};
use crate::net::routes::{Address, Interface};
use crate::net::sysctl::{self, Sysctl};
use crate::net::{InstanceNames, Result, SystemError, cleanup};
use crate::nft::{self, Rules, Ruleset};
use crate::selftest::{self, Verdict};
use crate::tun::{PacketTun, Tun};

/// MTU of the engine's device in bytes: the maximum length of an IPv4 packet. With a smaller MTU the kernel would refuse
/// super-segments.
const TUN_MTU: u32 = 65_535;

/// Settings of both devices. `addr_gen_mode` 1 and `accept_ra` 0: only this process answers on a device, so generated
/// addresses and router advertisements have no use. `forwarding`: the kernel has to pass packets between the device and
/// others. `send_redirects` 0: no host on the device needs hints about shorter routes.
const COMMON_SETTINGS: [(&str, u32); 4] = [
    ("ipv6/conf/{}/addr_gen_mode", 1),
    ("ipv6/conf/{}/accept_ra", 0),
    ("ipv4/conf/{}/forwarding", 1),
    ("ipv4/conf/{}/send_redirects", 0),
];
/// Packets that come in by the engine's device have source addresses to which the main table routes over other
/// interfaces, so reverse-path filtering is off.
const ENGINE_RP_FILTER: (&str, u32) = ("ipv4/conf/{}/rp_filter", 0);
/// Packets that come in by the packet device of the tunnel have any source address. Loose filtering takes them even if
/// the filtering of all interfaces is strict, since the larger of both values holds (ip-sysctl.rst).
const TUNNEL_RP_FILTER: (&str, u32) = ("ipv4/conf/{}/rp_filter", 2);

/// An instance's TUN device, up and with its addresses, and the packet device of its tunnel. Dropping it removes
/// everything that the instance created.
#[derive(Debug)]
pub struct Device {
    instance_names: InstanceNames,
    tun: TunDevice,
    tunnel: Option<TunDevice>,
    /// The settings that this instance changed, with their earlier values, which are restored at the end.
    record: Vec<Sysctl>,
    /// The settings that this instance needs, except those of its devices.
    settings: Vec<Sysctl>,
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
            tun: TunDevice::new(config.name.clone(), tun.handle(), ENGINE_QUEUE),
            tunnel: None,
            record: Vec::new(),
            settings: Vec::new(),
        };
        device.record = cleanup::take_over(&device.instance_names)?;
        device.tun.change_settings(&COMMON_SETTINGS)?;
        device.tun.change_settings(&[ENGINE_RP_FILTER])?;
        device.tun.bring_up(TUN_MTU, config.own_addresses())?;
        Ok((tun, device))
    }

    /// Creates the packet device of the tunnel as [`Self::open_tunnel`] does, and brings it up with this MTU (bytes) and
    /// these addresses if there are any. A failure is only logged, as box and server aggregate connections without a
    /// tunnel too.
    ///
    /// # Errors
    /// Fails as [`Self::open_tunnel`] and [`Self::change_tunnel`] do. There is no such device then.
    pub(super) fn try_open_tunnel(
        &mut self,
        mtu: u16,
        addresses: &[(IpAddr, u8)],
    ) -> Result<PacketTun> {
        let opened = self.open_tunnel();
        let opened = opened.and_then(|packet_device| {
            if !addresses.is_empty() {
                self.change_tunnel(mtu, addresses)?;
            }
            Ok(packet_device)
        });
        opened.inspect_err(|error| {
            tracing::error!(
                %error,
                "there is no tunnel: boxes forward all traffic other than TCP over one link, unprotected"
            );
            self.tunnel = None;
        })
    }

    /// Creates the packet device of the tunnel. It is down and has no addresses.
    ///
    /// # Errors
    /// Fails if the kernel refuses the device.
    pub fn open_tunnel(&mut self) -> Result<PacketTun> {
        let name = self.instance_names.tunnel_device();
        let tun = PacketTun::create(&name)?;
        let mut device = TunDevice::new(name, tun.handle(), TUNNEL_QUEUE);
        device.change_settings(&COMMON_SETTINGS)?;
        device.change_settings(&[TUNNEL_RP_FILTER])?;
        self.tunnel = Some(device);
        Ok(tun)
    }

    /// Changes MTU (bytes) and addresses of the packet device of the tunnel, and brings it up. Returns whether they differ
    /// from those of the last call.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if there is no such device.
    pub fn change_tunnel(&mut self, mtu: u16, addresses: &[(IpAddr, u8)]) -> Result<bool> {
        let missing = || SystemError::other("set up the tunnel", "it has no packet device");
        let tunnel = self.tunnel.as_mut().ok_or_else(missing)?;
        tunnel.change_addresses(mtu.into(), addresses)
    }

    /// Returns whether the packet device of the tunnel has an IPv4 address, and whether it has an IPv6 address.
    pub fn tunnel_families(&self) -> (bool, bool) {
        let tunnel = self.tunnel.as_ref();
        tunnel.map_or((false, false), |tunnel| (tunnel.has_v4(), tunnel.has_v6()))
    }

    fn devices(&self) -> impl Iterator<Item = &TunDevice> {
        [&self.tun].into_iter().chain(&self.tunnel)
    }

    /// Returns whether the devices are up and have their names, MTUs and addresses, according to `interfaces` and
    /// `addresses`.
    pub fn is_sound(&self, interfaces: &[Interface], addresses: &[Address]) -> bool {
        self.devices()
            .all(|device| device.is_sound(interfaces, addresses))
    }

    /// Brings the devices up again, with their addresses. Creates a device again if it was removed; the new device
    /// has another index.
    ///
    /// # Errors
    /// Fails if a device was renamed, if another device has its name, or if the kernel refuses.
    pub fn restore(&mut self) -> Result<()> {
        let tunnel = self.tunnel.as_mut().map_or(Ok(()), TunDevice::restore);
        self.tun.restore().and(tunnel)
    }

    /// Returns the names and numbers of what the instance creates.
    pub fn instance_names(&self) -> &InstanceNames {
        &self.instance_names
    }

    /// Returns whether the device of the engine has an IPv6 address.
    pub fn has_v6(&self) -> bool {
        self.tun.has_v6()
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
    /// except those of the devices. A setting that the kernel refuses is only logged.
    pub fn change_settings(&mut self, wanted: &[Sysctl]) {
        self.settings = wanted.to_vec();
        for (_, new) in sysctl::differing(wanted) {
            if let Err(error) = new.apply() {
                tracing::warn!(%error, "cannot change a kernel setting; the process runs without it");
                self.settings.retain(|setting| setting.key != new.key);
            }
        }
    }

    /// Returns the settings that another program changed, each as a pair of the current and the wanted value.
    pub fn changed_settings(&self) -> Vec<(Sysctl, Sysctl)> {
        let of_devices = self.devices().flat_map(TunDevice::settings);
        let all: Vec<Sysctl> = of_devices.chain(&self.settings).cloned().collect();
        sysctl::differing(&all)
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
