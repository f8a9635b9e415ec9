//! A TUN device in the kernel: its state, its addresses and its own settings.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Interface};
use crate::net::sysctl::Sysctl;
use crate::net::{Result, SystemError};
use crate::tun::TunHandle;

/// Length of the queue of the engine's device in packets and super-segments. It holds the packets that arrive while the
/// process does other work: 4,000 packets of 1,500 bytes are 48 ms at 1 Gbit/s. The length is a choice.
pub(super) const ENGINE_QUEUE: u32 = 4_000;
/// Length of the queue of the tunnel's packet device in packets and super-segments. UDP does not wait for room in the
/// queue as TCP does, so super-segments of 64 kB may fill it: 1,000 are 64 MB. Packets of 1,400 bytes fill it in 11 ms
/// at 1 Gbit/s. The length is a choice.
pub(super) const TUNNEL_QUEUE: u32 = 1_000;

/// A TUN device of this process. The process that has the file removes the device, by closing the file.
#[derive(Debug)]
pub(super) struct TunDevice {
    name: String,
    tun: TunHandle,
    /// Length of the device's queue in packets and super-segments.
    queue_len: u32,
    index: u32,
    /// MTU in bytes; 0 while the device is down, which needs none.
    mtu: u32,
    /// The addresses of the device, with their prefix lengths.
    addresses: Vec<(IpAddr, u8)>,
    /// The addresses of the last change, if it was complete. The kernel may have refused those of IPv6.
    requested: Option<Vec<(IpAddr, u8)>>,
    /// The device's own settings.
    settings: Vec<Sysctl>,
}

impl TunDevice {
    /// Returns the device `name` of `tun`, which is down. Its queue will hold `queue_len` packets and super-segments.
    pub fn new(name: String, tun: TunHandle, queue_len: u32) -> TunDevice {
        TunDevice {
            name,
            tun,
            queue_len,
            index: 0,
            mtu: 0,
            addresses: Vec::new(),
            requested: None,
            settings: Vec::new(),
        }
    }

    /// Changes settings of the device. `wanted` has the end of each setting's key below `net`, with `{}` for the name of
    /// the device, and the value. Settings that the kernel does not have are left out.
    ///
    /// # Errors
    /// Fails if the kernel refuses a setting.
    pub fn change_settings(&mut self, wanted: &[(&str, u32)]) -> Result<()> {
        for (key, value) in wanted {
            let setting = Sysctl::new(format!("net/{}", key.replace("{}", &self.name)), *value);
            if Sysctl::current(&setting.key).is_some() {
                setting.apply()?;
                self.settings.push(setting);
            }
        }
        Ok(())
    }

    /// Brings the device up and adds addresses. A kernel without IPv6 for the device refuses IPv6 addresses; the device
    /// then has none.
    ///
    /// # Errors
    /// Fails if the kernel refuses anything else.
    pub fn bring_up(
        &mut self,
        mtu: u32,
        addresses: impl IntoIterator<Item = (IpAddr, u8)>,
    ) -> Result<()> {
        let cannot = || SystemError::cannot(format!("set up {}", self.name));
        let mut netlink = Netlink::open().map_err(cannot())?;
        let index = device_index(&mut netlink, &self.name).map_err(cannot())?;
        let brought_up = netlink.bring_up(index, mtu, self.queue_len);
        brought_up.map_err(cannot())?;
        let mut added = Vec::new();
        for (addr, prefix_len) in addresses {
            match netlink.add_address(&address(index, addr, prefix_len)) {
                Ok(()) => added.push((addr, prefix_len)),
                Err(error) if addr.is_ipv6() => {
                    let name = &self.name;
                    tracing::warn!(%error, "cannot add IPv6 addresses to {name}: it works with IPv4 only");
                }
                Err(error) => return Err(cannot()(error)),
            }
        }
        (self.index, self.mtu, self.addresses) = (index, mtu, added);
        Ok(())
    }

    /// Changes MTU and addresses, and returns whether they differ from those of the last call. Brings the device up if it
    /// is down. New addresses come before earlier ones go, since the kernel removes all routes of a device without
    /// addresses.
    ///
    /// # Errors
    /// Fails as [`Self::bring_up`] does, and if an address cannot be removed. The next call tries again.
    pub fn change_addresses(&mut self, mtu: u32, addresses: &[(IpAddr, u8)]) -> Result<bool> {
        if mtu == self.mtu && self.requested.as_deref() == Some(addresses) {
            return Ok(false);
        }
        self.requested = None;
        let mut gone = self.addresses.clone();
        gone.retain(|address| !addresses.contains(address));
        self.bring_up(mtu, addresses.iter().copied())?;
        let cannot = || SystemError::cannot(format!("remove an address of {}", self.name));
        let mut netlink = Netlink::open().map_err(cannot())?;
        // Until it is removed, each of them is still an address of the device.
        self.addresses.extend(&gone);
        for (addr, prefix_len) in gone {
            let removed = netlink.delete_address(&address(self.index, addr, prefix_len));
            removed.map_err(cannot())?;
            self.addresses.retain(|kept| *kept != (addr, prefix_len));
        }
        self.requested = Some(addresses.to_vec());
        Ok(true)
    }

    /// Returns whether the device is up and has its name, its MTU and all its addresses, according to `interfaces` and
    /// `addresses`. A device that was never brought up is sound.
    pub fn is_sound(&self, interfaces: &[Interface], addresses: &[Address]) -> bool {
        if self.mtu == 0 {
            return true;
        }
        let is_own = |i: &&Interface| i.index == self.index && i.name == self.name;
        let own = interfaces.iter().find(is_own);
        let has_address = |addr| {
            addresses
                .iter()
                .any(|a| a.interface == self.index && a.addr == addr)
        };
        own.is_some_and(|own| own.running && own.mtu == self.mtu)
            && self.addresses.iter().all(|(addr, _)| has_address(*addr))
    }

    /// Brings the device up again, with its addresses. Creates the device again if it was removed; the new device
    /// has another index.
    ///
    /// # Errors
    /// Fails if the device was renamed, if another device has its name, or if the kernel refuses.
    pub fn restore(&mut self) -> Result<()> {
        if self.mtu == 0 {
            return Ok(());
        }
        let name = &self.name;
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
            Some(other) if other != *name => {
                Some(format!("it was renamed to `{other}`; rename it back"))
            }
            Some(_) => None,
        };
        if let Some(why_not) = why_not {
            return Err(SystemError::other(format!("set up {name} again"), why_not));
        }
        for setting in &self.settings {
            setting.apply()?;
        }
        let addresses = self.addresses.clone();
        self.bring_up(self.mtu, addresses)
    }

    /// Returns the device's own settings.
    pub fn settings(&self) -> &[Sysctl] {
        &self.settings
    }

    /// Returns whether the device has an IPv6 address.
    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(|(addr, _)| addr.is_ipv6())
    }

    /// Returns whether the device has an IPv4 address.
    pub fn has_v4(&self) -> bool {
        self.addresses.iter().any(|(addr, _)| addr.is_ipv4())
    }
}

fn address(interface: u32, addr: IpAddr, prefix_len: u8) -> Address {
    Address {
        interface,
        addr,
        prefix_len,
        deprecated: false,
        secondary: false,
    }
}

/// Returns the index of the interface `name`.
fn device_index(netlink: &mut Netlink, name: &str) -> io::Result<u32> {
    let found = netlink.interface(name)?;
    let removed = || io::Error::new(ErrorKind::NotFound, "another program has removed it");
    Ok(found.ok_or_else(removed)?.index)
}
