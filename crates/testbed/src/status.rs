//! The status of a running testbed, for people and for machines.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The present status of a testbed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The testbed's name.
    pub name: String,
    /// Process id of the process that owns the emulator.
    pub pid: u32,
    /// Hosts, in the order of the file.
    pub hosts: Vec<HostStatus>,
    /// Links, in the order of the file.
    pub links: Vec<LinkStatus>,
    /// The emulator's delivery lag.
    #[serde(rename = "lateness")]
    pub delivery_lag: DeliveryLagStatus,
}

/// The present status of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name in the file.
    pub name: String,
    /// `user`, `box`, `router`, `server` or `content`.
    pub role: String,
    /// The host's network namespace.
    pub namespace: String,
    /// The interface, and the address with prefix length, of every address of the host.
    pub addresses: Vec<(String, String)>,
    /// The host's process, if it has one.
    pub process: Option<ChildStatus>,
}

/// The process of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChildStatus {
    /// Process id; `None` once the process has ended.
    pub pid: Option<u32>,
    /// The exit status as text, if the process has ended.
    pub ended: Option<String>,
    /// The file with the standard output and error of the process.
    pub log: String,
}

/// The present status of a link.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Name in the file; also the interface's name at both ends.
    pub name: String,
    /// The host at the `from` end.
    pub from: String,
    /// The host at the `to` end.
    pub to: String,
    /// `from` to `to`.
    pub forward: DirectionStatus,
    /// `to` to `from`.
    pub reverse: DirectionStatus,
}

/// The present status of one direction of a link. Bytes count whole IP packets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectionStatus {
    /// True if the direction carries packets.
    pub up: bool,
    /// Rate in bit/s, or the mean rate of a trace; `None` if the rate is not limited.
    pub rate: Option<u64>,
    /// Length of the trace that sets the rate, ms. The trace repeats after this time.
    pub trace_ms: Option<f64>,
    /// One-way delay, ms.
    pub delay_ms: f64,
    /// Maximum additional delay, ms.
    pub jitter_ms: f64,
    /// True if packets overtake each other by jitter.
    pub jitter_reorders: bool,
    /// Queue bound, as in the file.
    pub queue: String,
    /// Target and interval of CoDel, if it is on.
    pub codel: Option<String>,
    /// Probability of random loss in the long run, 0 to 1.
    pub loss: f64,
    /// The parameters of the Gilbert-Elliott model, if losses come in bursts.
    pub bursts: Option<String>,
    /// Probability that a packet takes a detour, so that later packets overtake it, 0 to 1.
    pub reorder: f64,
    /// Probability of duplication, 0 to 1.
    pub duplicate: f64,
    /// Probability of corruption, 0 to 1.
    pub corrupt: f64,
    /// Packets handed to the link.
    pub packets_offered: u64,
    /// Bytes handed to the link.
    pub bytes_offered: u64,
    /// Packets delivered.
    pub packets_delivered: u64,
    /// Bytes delivered.
    pub bytes_delivered: u64,
    /// Copies made of packets.
    pub packets_duplicated: u64,
    /// Packets delivered with a bit flipped.
    pub packets_corrupted: u64,
    /// Packets delayed on a detour, so that later packets overtake them.
    pub packets_detoured: u64,
    /// Packets dropped because the queue was full.
    pub dropped_queue: u64,
    /// Packets dropped by CoDel.
    pub dropped_codel: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Packets dropped because the link was down.
    pub dropped_down: u64,
    /// Packets that the sending device dropped before the emulator read them. If there are any, the emulator
    /// was too slow for the traffic, and measurements do not show the link as described.
    pub dropped_device: u64,
    /// Bytes in the queue now.
    pub queue_bytes: u64,
    /// Maximum number of bytes in the queue since the start of the link.
    pub queue_bytes_max: u64,
}

/// Delays of packets beyond the delivery times of the model.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeliveryLagStatus {
    /// Packets counted.
    pub samples: u64,
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs. A measurement is invalid if this exceeds 1000 µs.
    pub p99_us: f64,
    /// Largest, µs.
    pub max_us: f64,
    /// True if the emulator runs under SCHED_FIFO.
    pub realtime: bool,
}

impl DirectionStatus {
    /// Returns as text those settings that are usually off but now on.
    fn further_settings(&self) -> String {
        let mut text = String::new();
        if let Some(bursts) = &self.bursts {
            text += &format!(" in bursts ({bursts})");
        }
        if let Some(codel) = &self.codel {
            text += &format!(", CoDel {codel}");
        }
        if self.jitter_reorders {
            text += ", reordered by jitter";
        }
        let shares = [self.reorder, self.duplicate, self.corrupt];
        for (share, what) in shares.iter().zip(["reordered", "duplicated", "corrupted"]) {
            if *share > 0.0 {
                text += &format!(", {:.3} % {what}", share * 100.0);
            }
        }
        text
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "testbed {} (process {})", self.name, self.pid)?;
        self.hosts.iter().try_for_each(|host| host.fmt(f))?;
        self.links.iter().try_for_each(|link| link.fmt(f))?;
        let late = &self.delivery_lag;
        let (p50, p99, max, packets) = (late.p50_us, late.p99_us, late.max_us, late.samples);
        write!(
            f,
            "emulator lateness: median {p50:.0} µs, p99 {p99:.0} µs, max {max:.0} µs over {packets} packets"
        )?;
        let no_priority = if late.realtime {
            ""
        } else {
            " (no real-time priority)"
        };
        writeln!(f, "{no_priority}")
    }
}

impl fmt::Display for HostStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, role, namespace) = (&self.name, &self.role, &self.namespace);
        writeln!(f, "host {name:<10} {role:<8} namespace {namespace}")?;
        for (interface, address) in &self.addresses {
            writeln!(f, "    {interface:<10} {address}")?;
        }
        let Some(ChildStatus { pid, ended, log }) = &self.process else {
            return Ok(());
        };
        match (pid, ended) {
            (Some(pid), _) => writeln!(f, "    process {pid}, log {log}"),
            (None, Some(how)) => writeln!(f, "    process ended ({how}), log {log}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for LinkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "link {}", self.name)?;
        let (from, to) = (&self.from, &self.to);
        for (from, to, d) in [(from, to, &self.forward), (to, from, &self.reverse)] {
            let rate = match d.rate {
                Some(rate) => format!("{:.3} Mbit/s", rate as f64 / 1e6),
                None => "unlimited".to_owned(),
            };
            let state = if d.up { "up" } else { "down" };
            let source = d.trace_ms.map_or("", |_| " by a trace");
            writeln!(
                f,
                "    {from} -> {to}: {state}, {rate}{source}, {} ms (+{} ms jitter), queue {}, loss \
                 {:.3} %{}",
                d.delay_ms,
                d.jitter_ms,
                d.queue,
                d.loss * 100.0,
                d.further_settings(),
            )?;
            writeln!(
                f,
                "        carried {} bytes in {} packets; dropped {} queue, {} codel, {} loss, {} down, \
                 {} device; queue {} bytes (max {}); {} duplicated, {} corrupted, {} detoured",
                d.bytes_delivered,
                d.packets_delivered,
                d.dropped_queue,
                d.dropped_codel,
                d.dropped_loss,
                d.dropped_down,
                d.dropped_device,
                d.queue_bytes,
                d.queue_bytes_max,
                d.packets_duplicated,
                d.packets_corrupted,
                d.packets_detoured,
            )?;
        }
        Ok(())
    }
}
