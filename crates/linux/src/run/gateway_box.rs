//! Runs the aggregation box: sets it up, and connects its core to the links and the clock of this machine.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use braid_engine::PathId;
use braid_proxy::app::Core as _;
use braid_proxy::config::{BoxConfig, Protection, ServerEntry};
use braid_proxy::records::{MAX_RECORD_AGE, SavedState};
use braid_proxy::{BoxCore, Notice};
use braid_wire::Instant;

use super::Privileges;
use super::confine::{self, Files};
use super::faults;
use super::memory_releaser::MemoryReleaser;
use super::places::{Network, Places};
use super::process::{
    CONTROL_TOKEN, DEBOUNCE_TIME, HANGUP_TOKEN, LINKS_TOKEN, RELOADED_TOKEN, WALL_CLOCK_INTERVAL,
    directory_of, new_stack, open_control, raise_descriptor_limit, serve, since_epoch,
    strategy_factory, system_rng,
};
use super::record_writer::{self, RecordWriter, SAVE_INTERVAL};
use super::reload::{Reload, Reloader};
use super::suspend::Suspension;
use super::uplinks::in_use;
use crate::control::ControlSocket;
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::routes::Packets;
use crate::net::{InstanceNames, Result, SystemError};
use crate::sockets::Limits;
use crate::tun::Tun;

/// Runs the box until `stop` is readable. Calls `started` once the box works. Reads the input at `stop`, so that
/// a second signal can be told from the first. The caller must not read from `stop` meanwhile.
///
/// # Errors
/// Fails if the kernel refuses something that the box needs, such as the TUN device or its rules. Everything that
/// was created or changed until then is removed or restored.
pub fn run_box(
    config: &BoxConfig,
    reload: Option<Reload<'_>>,
    privileges: Privileges,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    let streams = raise_descriptor_limit(config.limits.connections());
    let places = Places::new(&config.links);
    let uplinks = places.uplinks(config);
    let mut engine = config.engine();
    let paths = uplinks.set_up(&mut engine)?;
    let (tun, packet_device, network) = Network::new(paths, places);
    let v6 = network.guard.device().has_v6();
    let instance_names = network.guard.device().instance_names().clone();
    let host = BoxHost {
        control: open_control(config.control.as_deref(), "box", &instance_names),
        reload: reload
            .map(|r| Reloader::new(r, config.clone(), instance_names.control_socket("box")))
            .transpose()?,
        network,
        paths: Vec::new(),
        silence_detectors: vec![SilenceDetector::default(); config.links.len()],
        refresh_at: None,
        wall_clock_at: Instant::ZERO,
        counters_at: Instant::ZERO,
        suspension: Suspension::new(),
        record_writer: None,
        memory_releaser: MemoryReleaser::default(),
        save_at: Instant::ZERO,
    };
    let mut driver = assemble(config, engine, tun, host, streams)?;
    driver.host.network.intercept_port = driver.sockets.reserve_intercept_port(v6)?;
    driver.host.network.apply_rules(config)?;
    if let Some(packet_device) = packet_device {
        driver.tunnel.set_device(packet_device)?;
        driver.core.enable_tunnel();
    }
    driver.sockets.listen_only(&config.socks)?;
    // All files and sockets that need more privileges are open here, and all rules are loaded.
    let confined = confine::give_up(privileges, &driver.host.files(config))?;
    let saved = driver.host.start_threads(config, &instance_names)?;
    start(&mut driver, &saved)?;
    tracing::info!(
        name = config.name,
        links = config.links.len(),
        "the box is up"
    );
    warn_of_plaintext(config);
    started();
    let outcome = serve(&mut driver, &config.name, stop);
    if let Some(record_writer) = driver.host.record_writer.take() {
        let now = driver.clock().now();
        record_writer.finish(driver.core.saved_state(now, &driver.stack));
    }
    // Dropping the driver removes everything that it created in the kernel. `confined` is dropped after the
    // driver, since the removal needs the files that `confined` keeps open.
    drop((driver, confined));
    outcome
}

/// Logs a warning for each server whose connections are not protected.
pub(super) fn warn_of_plaintext(config: &BoxConfig) {
    let is_plaintext = |server: &&ServerEntry| server.protection == Protection::None;
    for ServerEntry { name, .. } in config.servers.iter().filter(is_plaintext) {
        tracing::warn!(
            server = name,
            "connections to this server are not protected: anybody on the path can read and change them; write \
             protection = \"tls\" for this server"
        );
    }
}

/// Interval at which the links' counters are read. It is shorter than [`SilenceDetector::MIN_SILENCE`], the time
/// after which a silent link is suspect.
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);

type BoxDriver<'a> = Driver<Tun, BoxCore, BoxHost<'a>>;

/// Creates engine, core and driver.
fn assemble<'a>(
    config: &BoxConfig,
    engine: braid_engine::Config,
    tun: Tun,
    host: BoxHost<'a>,
    streams: usize,
) -> Result<BoxDriver<'a>> {
    let stack = new_stack(engine, &config.strategy)?;
    let core = BoxCore::new(config, system_rng()?, strategy_factory(&config.strategy)?);
    let limits = Limits {
        streams,
        ..Limits::default()
    };
    // The clock starts at the maximum age of a saved record, so that the time of each record from earlier runs is
    // not negative.
    let clock = Clock::starting_at(Instant::ZERO + MAX_RECORD_AGE);
    Driver::new(clock, tun, stack, core, host, limits)
}

/// Gives the core the time, the links, and the state that was saved at the end of the last run.
fn start(driver: &mut BoxDriver<'_>, saved: &SavedState) -> Result<()> {
    let now = driver.clock().now();
    let (core, stack, host) = (&mut driver.core, &mut driver.stack, &mut driver.host);
    let tunnel = &mut driver.tunnel;
    core.set_wall_clock(now, since_epoch());
    host.wall_clock_at = now + WALL_CLOCK_INTERVAL;
    for (index, addresses) in host.network.addresses.iter().enumerate() {
        let addresses = in_use(*addresses, &host.network.links, index);
        let path = core.add_link(now, index, addresses, stack);
        let path = path.map_err(|e| SystemError::other("add a link", e.to_string()))?;
        host.paths.push(path);
        tunnel.add_link(path, host.network.socket_mark(path));
        core.set_link_up(now, path, host.network.links.is_up(index), stack);
    }
    core.restore_state(now, stack, saved);
    host.save_at = now + SAVE_INTERVAL;
    host.keep_forwarding(core);
    Ok(())
}

/// The machine around the core of a box: the links, the wall clock, the control socket and the saved records.
#[derive(Debug)]
pub(super) struct BoxHost<'a> {
    control: Option<ControlSocket>,
    pub(super) reload: Option<Reloader<'a, BoxConfig>>,
    pub(super) network: Network,
    /// The path of each link, by the link's place.
    pub(super) paths: Vec<PathId>,
    pub(super) silence_detectors: Vec<SilenceDetector>,
    /// Time of the next refresh of links and rules, if a notification or failure calls for one.
    refresh_at: Option<Instant>,
    /// Time at which the core next gets the wall clock's time.
    wall_clock_at: Instant,
    /// Time at which the links' counters are read next.
    counters_at: Instant,
    suspension: Suspension,
    record_writer: Option<RecordWriter>,
    memory_releaser: MemoryReleaser,
    /// Time of the next save of records.
    save_at: Instant,
}

impl BoxHost<'_> {
    /// Returns the files that the box needs later: configuration and key, which are read again, the directory of
    /// the records, and the directory of the control socket, which is removed at the end.
    fn files(&self, config: &BoxConfig) -> Files {
        // `RecordWriter` logs it if the directory cannot be created.
        let own = config
            .state
            .iter()
            .filter(|d| record_writer::make(d).is_ok());
        let control = self.control.iter();
        let reloader = self.reload.iter().map(|reloader| reloader.file);
        let key = config.key_file.as_deref().filter(|_| self.reload.is_some());
        Files {
            read: reloader
                .chain(key)
                .flat_map(confine::directories_around)
                .collect(),
            remove: control.map(|c| directory_of(c.path())).collect(),
            own: own.cloned().collect(),
        }
    }

    /// Starts the threads, and returns the state that was saved at the end of the last run. Must be called after
    /// privileges were given up: a thread keeps the privileges that it has from its parent.
    fn start_threads(
        &mut self,
        config: &BoxConfig,
        instance_names: &InstanceNames,
    ) -> Result<SavedState> {
        if let Some(control) = &mut self.control {
            let started = control.start();
            started.map_err(SystemError::cannot("start a thread"))?;
        }
        if let Some(reloader) = &mut self.reload {
            let started = reloader.start();
            started.map_err(SystemError::cannot("start a thread"))?;
        }
        let Some(directory) = &config.state else {
            return Ok(SavedState::default());
        };
        let (record_writer, saved) = RecordWriter::open(directory, instance_names);
        self.record_writer = record_writer;
        Ok(saved)
    }

    /// Reads the state of the links again, restores missing rules, and tells the core about links that changed.
    pub(super) fn refresh(&mut self, context: &mut Context<'_, BoxCore>) {
        let Network { links, guard, .. } = &mut self.network;
        let changed = match guard.refresh(context.now, links) {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(%error, "cannot read the state of the links; the next attempt follows");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
                return;
            }
        };
        if self.network.links.needs_retry() {
            self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
        }
        self.network.open_tunnel();
        context
            .core
            .set_tunnel_fault(self.network.tunnel_fault.clone());
        self.update_machine_faults(context.core);
        if changed.is_empty() {
            return;
        }
        for (index, readdressed) in changed {
            let (state, up) = (
                &self.network.links.states()[index],
                self.network.links.is_up(index),
            );
            let running = state.running;
            let name = context.core.link_name(self.paths[index]);
            tracing::info!(
                link = name,
                up,
                running,
                readdressed,
                "the interface or address of a link has changed"
            );
            let path = self.paths[index];
            let (now, core, stack) = (context.now, &mut *context.core, &mut *context.stack);
            if up {
                let addresses = in_use(self.network.addresses[index], &self.network.links, index);
                core.set_link_addresses(now, path, addresses, stack);
            }
            core.set_link_up(now, path, up, stack);
            if readdressed {
                core.on_link_readdressed(now, path, stack);
            }
        }
        self.keep_forwarding(context.core);
    }

    /// Tells the core which faults of this machine keep users of the local network from the box. The faults are
    /// those at the last refresh of interfaces, addresses and routes.
    pub(super) fn update_machine_faults(&self, core: &mut BoxCore) {
        if let Some(reloader) = &self.reload {
            let links = &self.network.links;
            let mut faults =
                faults::of_lan(&reloader.config, links.interfaces(), links.addresses());
            faults.extend(faults::of_routes(links.reached()));
            core.set_machine_faults(faults);
        }
    }

    /// Makes the core validate each link that sends packets and receives none. The engine's own connections show
    /// at once that a link has failed. Forwarded packets do not show it, so the counters of the interface are
    /// needed.
    fn check_counters(&mut self, context: &mut Context<'_, BoxCore>) {
        let Ok(packets) = self.network.links.packets() else {
            return;
        };
        for (index, detector) in self.silence_detectors.iter_mut().enumerate() {
            let packets = packets[index].filter(|_| self.network.links.is_up(index));
            if detector.update(context.now, packets) {
                context.core.revalidate_link(context.now, self.paths[index]);
            }
        }
    }

    /// Makes the core validate links and connections after a suspend of this machine. Peers and NATs may have
    /// forgotten the connections, and the core cannot see this by itself: the monotonic clock stood still.
    fn check_suspend(&mut self, context: &mut Context<'_, BoxCore>) {
        if let Some(suspended) = self.suspension.check() {
            let seconds = suspended.as_secs();
            tracing::info!(
                seconds,
                "resumed after a suspend: validating links and connections"
            );
            context.core.set_wall_clock(context.now, since_epoch());
            context.core.on_resumed(context.now, context.stack);
        }
    }

    /// Returns the link of a path.
    fn link_of(&self, path: PathId) -> Option<usize> {
        self.paths.iter().position(|p| *p == path)
    }

    /// Forwards over the first usable link if the current link is not usable. This function does not wait until
    /// the core chooses a link, since the core learns later than this host that an interface is down.
    pub(super) fn keep_forwarding(&mut self, core: &BoxCore) {
        let usable = |i: &usize| self.network.links.is_up(*i) && !core.is_off(self.paths[*i]);
        let current = self.network.links.forwarding().filter(usable);
        let first = || (0..self.paths.len()).find(usable);
        if let Some(index) = current.or_else(first) {
            self.network.links.forward_over(index);
        }
    }
}

impl Host<BoxCore> for BoxHost<'_> {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let control = self.control.as_ref().map(|c| (c.fd(), CONTROL_TOKEN));
        let reloader = self.reload.iter();
        let reloader =
            reloader.flat_map(|a| [(a.signal(), HANGUP_TOKEN), (a.fd(), RELOADED_TOKEN)]);
        control
            .into_iter()
            .chain([
                (self.network.links.fd(), LINKS_TOKEN),
                (self.network.guard.fd(), LINKS_TOKEN),
            ])
            .chain(reloader)
            .collect()
    }

    fn on_ready(&mut self, source: u32, context: &mut Context<'_, BoxCore>) {
        match (source, &self.control, &self.reload) {
            (CONTROL_TOKEN, Some(control), reloader) => {
                let reload_requests = reloader.as_ref().map(|reloader| &reloader.reload_requests);
                control.serve(context.now, context.core, context.stack, reload_requests);
                return self.keep_forwarding(context.core);
            }
            (HANGUP_TOKEN, _, Some(reloader)) => return reloader.on_signal(),
            (RELOADED_TOKEN, _, Some(_)) => return self.apply_reloads(context),
            _ => {}
        }
        let news = self.network.links.has_news() | self.network.guard.has_news();
        if news && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + DEBOUNCE_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let regular = self.wall_clock_at.min(self.counters_at).min(self.save_at);
        let regular = regular.min(self.network.guard.next_timeout());
        let others = [self.refresh_at, self.network.places.next_timeout()];
        others.into_iter().flatten().chain([regular]).min()
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, BoxCore>) {
        self.clear_places(context);
        let looks = self.network.guard.next_timeout() <= context.now;
        if looks || self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
            if let Some(rules) = self.network.guard.poll_status() {
                context.core.set_rules(rules);
            }
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
        if self.counters_at <= context.now {
            self.counters_at = context.now + COUNTERS_INTERVAL;
            self.check_suspend(context);
            self.check_counters(context);
        }
        if self.save_at <= context.now {
            self.save_at = context.now + SAVE_INTERVAL;
            if let Some(record_writer) = &mut self.record_writer {
                record_writer.submit(context.core.saved_state(context.now, context.stack));
            }
        }
    }

    fn after_turn(&mut self, context: &mut Context<'_, BoxCore>) {
        self.memory_releaser.update(context.stack.connections());
        while let Some(change) = context.core.poll_tunnel_change() {
            self.network.follow_tunnel(change);
            context
                .core
                .set_tunnel_fault(self.network.tunnel_fault.clone());
        }
        while let Some(notice) = context.core.poll_notice() {
            match notice {
                Notice::BestPath(Some(path)) => {
                    if let Some(index) = self.link_of(path) {
                        let name = context.core.link_name(path);
                        tracing::info!(
                            link = name,
                            "traffic that is only forwarded takes this link"
                        );
                        self.network.links.forward_over(index);
                    }
                }
                Notice::BestPath(None) => {}
                Notice::Reached(path, reached) => {
                    if let Some(index) = self.link_of(path) {
                        self.network.links.keep_flows(index, reached);
                    }
                }
                Notice::Families(families) => {
                    if let Err(error) = self.network.guard.set_intercepted_families(families) {
                        tracing::error!(
                            %error,
                            "cannot load the rules that refuse connections to destinations that no server \
                             reaches: these connections time out instead"
                        );
                    }
                }
                Notice::Intercept(open) => {
                    if let Err(error) = context.sockets.set_intercepting(open) {
                        tracing::error!(%error, "cannot listen for intercepted connections: new connections are \
                                                 forwarded over one link, unprotected");
                    }
                }
            }
        }
    }
}

/// Detects that a link sends packets and receives none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SilenceDetector {
    /// Start of the time without received packets, and the counters at this time.
    since: Option<(Instant, Packets)>,
}

impl SilenceDetector {
    /// Minimum number of packets that were sent without an answer. If fewer were sent, they may have been lost
    /// or need no answer. The number is a guess.
    const MIN_SENT_PACKETS: u64 = 3;
    /// Minimum time without received packets, longer than any usual round trip. The value is a guess.
    const MIN_SILENCE: Duration = Duration::from_secs(2);

    /// Takes the current values of the counters (`None` if the interface is missing), and returns whether the
    /// link has to be validated. If so, the detection starts again.
    fn update(&mut self, now: Instant, packets: Option<Packets>) -> bool {
        let Some(packets) = packets else {
            self.since = None;
            return false;
        };
        let (since, before) = *self.since.get_or_insert((now, packets));
        // A received packet ends the silence. If no packet was sent since the silence started, no answer is due,
        // so the silence starts only now.
        if packets.rx != before.rx || packets.tx == before.tx {
            self.since = Some((now, packets));
            return false;
        }
        let sent = packets.tx.saturating_sub(before.tx);
        let is_suspect =
            sent >= Self::MIN_SENT_PACKETS && now.saturating_since(since) >= Self::MIN_SILENCE;
        if is_suspect {
            self.since = Some((now, packets));
        }
        is_suspect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_answers_nothing_is_suspect() {
        // The silence starts at second 7, at 14 packets sent and 11 received. At second 9 it has lasted 2 s, and 3
        // packets were sent.
        let mut detector = SilenceDetector::default();
        let mut update = |s: u64, tx, rx| {
            let now = Instant::from_millis(s * 1_000);
            detector.update(now, Some(Packets { tx, rx }))
        };
        assert!(!update(0, 10, 10));
        assert!(!update(5, 10, 10), "nothing was sent");
        assert!(!update(6, 12, 10));
        assert!(!update(7, 14, 11), "something came back");
        assert!(!update(8, 16, 11), "1 s of silence");
        assert!(update(9, 17, 11));
        assert!(!update(10, 19, 11), "reported a second ago");
        assert!(update(11, 20, 11));
        assert!(!detector.update(Instant::from_millis(20_000), None));
        assert_eq!(detector.since, None, "the interface is gone");
    }
}
