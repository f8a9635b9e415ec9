//! A log of a run with one JSON object per line, for tools that read tables.
//!
//! [`Log::read`] taps all links of a world, watches the engines of some hosts, and samples both every 10 ms of
//! virtual time. Each line is a [`Record`]. Fields with times end in `_ns` and count nanoseconds; a world starts
//! at 1 s. Lengths and windows are in bytes. `null` means that there is no value. The same seed and the same build
//! give the same log, byte for byte. Logging does not change a run.
//!
//! Lines are in the order in which their facts became final. A segment has one line. The log writes this line when
//! the receiver has the whole stream up to the segment's end. If the segment was dropped or brought the receiver
//! no new bytes, the log writes the line at the next sample. Segments that are in flight when the log ends come
//! last, by time of sending. At most [`MAX_OPEN`] segments wait for their fates; if there are more, the log writes
//! the oldest one as it is.

mod record;
mod segments;
pub(crate) mod state;

use self::state::HostLog;
use crate::host::Host;
use crate::node::NodeId;
use crate::world::{Sampler, World};

pub use record::{
    Ack, ConnSample, EngineEvent, Header, Kind, LinkEnds, LinkSample, Record, Segment,
    SubflowSample,
};
pub use segments::MAX_OPEN;
pub use state::{Log, Reader, SAMPLE_INTERVAL};

impl Log {
    /// Begins a log of `hosts`, each with its name, and of all links. Its records go to `reader`. Call this before
    /// any packet is sent.
    ///
    /// # Panics
    /// Panics if one of the nodes is not a [`Host`].
    pub fn read(
        world: &mut World,
        hosts: &[(NodeId, &'static str)],
        reader: Box<dyn Reader>,
    ) -> Log {
        let log = Log::new(world, hosts, reader);
        for &(node, name) in hosts {
            let log = log.clone();
            let host_log = HostLog { log, node, name };
            world.with_node(node, |host: &mut Host, _| host.log = Some(host_log));
        }
        for link in world.links() {
            world.tap(link, Box::new(log.clone()));
        }
        world.sample(SAMPLE_INTERVAL, Box::new(log.clone()));
        log
    }
}

impl Sampler for Log {
    fn sample(&mut self, world: &World) {
        let at_ns = world.now().as_nanos();
        let state = &mut *self.state();
        state.segments.review();
        state.write_finalized();
        for link in world.links() {
            let queue = world.counters(link).queue;
            state.lines.write(&Record::Link(LinkSample {
                at_ns,
                link: link.0,
                queue_packets: queue.packets,
                queue_bytes: queue.bytes,
            }));
        }
        for ((node, conn), name) in &state.live {
            let stack = world.host(*node).stack();
            let Some(stats) = stack.conn_stats(*conn) else {
                continue;
            };
            let subflows = stack.subflows(*conn).into_iter();
            let subflows = subflows.map(|stats| SubflowSample {
                subflow: stats.id.0,
                path: stats.path.0,
                cwnd: stats.cwnd,
                in_flight: stats.in_flight,
                out_of_order: stats.out_of_order,
            });
            state.lines.write(&Record::Conn(ConnSample {
                at_ns,
                host: name,
                conn: conn.as_u64(),
                unsent: stats.snd_end - stats.snd_nxt,
                outstanding: stats.snd_nxt - stats.snd_una,
                peer_window: stats.peer_window,
                recv_window: stats.recv_window,
                out_of_order: stats.out_of_order,
                unread: stats.rcv_nxt - stats.rcv_read,
                subflows: subflows.collect(),
            }));
        }
    }
}
