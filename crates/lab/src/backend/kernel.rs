//! Runs over emulated links with the kernel's MPTCP at both ends.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use braid_linux::sys::become_realtime;
use braid_sim::traffic::pattern;
use braid_sim::transfer::{self, Direction, REMOTE, REQUEST, client_addr};
use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::mptcp_info::{self, SubflowInfo};
use braid_testbed::netns;

use super::error::Error;
use super::fixture::{
    self, CLIENT, END_CHECK_INTERVAL, ENDPOINT_PRIORITY, Fixture, SERVER, run_error,
};
use super::flow;
use crate::case::{Case, RunResult};

/// Number of the client's routing table for path 0, and of the rule that selects this table. The other
/// paths have the next numbers. Any number works except 253 to 255, which the kernel uses itself.
const FIRST_TABLE: usize = 100;
/// Maximum number of subflows of a connection besides the initial one. It is the kernel's own maximum
/// (`MPTCP_PM_ADDR_MAX`), so that it limits no case.
const SUBFLOW_LIMIT: usize = 8;
/// Number of bytes of a read or write. A guess, large enough to make system calls rare.
const CHUNK: usize = 64 * 1024;
/// Interval at which a warm start checks its number of subflows. The kernel reports no event to the
/// application when a subflow opens.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Checks that this kernel has the congestion control that `case` names. Strategy and declared size need
/// no check, because the kernel ignores both.
pub(super) fn check(case: &Case) -> Result<(), Error> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    match kernel_tcp::listen(any, Transport::Mptcp, &case.cc) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let known = "/proc/sys/net/ipv4/tcp_available_congestion_control";
            let known = fs::read_to_string(known).unwrap_or_default();
            let known = known.split_whitespace().collect::<Vec<_>>().join(", ");
            Err(Error::Usage(format!(
                "this kernel has no congestion control `{}`; it has {known}",
                case.cc
            )))
        }
        Err(e) => Err(Error::Run(format!("cannot use `{}`: {e}", case.cc))),
    }
}

/// Namespaces and links, with addresses for the kernel's MPTCP. The client has an address on each link,
/// and its path manager opens a subflow from each address to the server's single address.
#[derive(Debug)]
pub struct Kernel {
    pub(super) fixture: Fixture,
}

impl Kernel {
    pub(super) fn open(case: &Case) -> Result<Kernel, Error> {
        let paths = case.paths.specs().len();
        let fixture = Fixture::build(paths, &[])?;
        addresses(&fixture, paths, (&case.cc, case.initial_window))?;
        Ok(Kernel { fixture })
    }

    pub(super) fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let (client, server) = (
            self.fixture.namespace(CLIENT)?,
            self.fixture.namespace(SERVER)?,
        );
        self.fixture.run(case, index, |_| {
            // The kernel counts SYNs for the namespace, which serves all runs. The count of earlier runs is
            // subtracted.
            let syns_before = join_syns(&client)?;
            let transfer = Transfer {
                case,
                local: SocketAddr::new(client_addr(case.opening_path(index)).into(), 0),
                remote: REMOTE,
                deadline: Instant::now() + flow::limit(case),
            };
            let mut result = transfer.run(&client, &server).map_err(run_error)?;
            result.join_syns = join_syns(&client)?.saturating_sub(syns_before);
            Ok(result)
        })
    }
}

/// Sets the addresses, MPTCP endpoints and routes of client and server for each path. The routes set the
/// congestion control and the initial window: an application cannot set an initial window, and a socket
/// option would not reach the subflows that the path manager opens.
pub(crate) fn addresses(
    fixture: &Fixture,
    paths: usize,
    (cc, initial_window): (&str, u32),
) -> Result<(), Error> {
    let metrics = format!("initcwnd {initial_window} congctl {cc}");
    let limits = format!("mptcp limits set subflows {SUBFLOW_LIMIT}\n");
    let (mut client, mut server) = (limits.clone(), limits);
    server += &format!("addr add {}/32 dev lo\n", transfer::SERVER);
    for n in 0..paths {
        let (address, link, table) = (client_addr(n), fixture::link_name(n), FIRST_TABLE + n);
        client += &format!(
            "addr add {address}/32 dev {link}\n\
             route add default dev {link} src {address} table {table} {metrics}\n\
             rule add from {address}/32 lookup {table} pref {table}\n\
             mptcp endpoint add {address} dev {link} subflow\n"
        );
        server += &format!(
            "route add {address}/32 dev {link} src {} {metrics}\n",
            transfer::SERVER
        );
    }
    fixture.testbed.ip(CLIENT, &client).map_err(run_error)?;
    fixture.testbed.ip(SERVER, &server).map_err(run_error)
}

/// A transfer between the namespaces of client and server.
struct Transfer<'a> {
    case: &'a Case,
    local: SocketAddr,
    remote: SocketAddr,
    deadline: Instant,
}

/// The times, bytes and subflows that one end observed.
#[derive(Default)]
struct EndRecord {
    /// The start of the flow completion time; set by the client only.
    started: Option<Instant>,
    first_byte: Option<Instant>,
    last_byte: Option<Instant>,
    received: u64,
    /// Bytes received so far, by time; only for a case with an outage.
    arrivals: Vec<(Instant, u64)>,
    /// The counters of the subflows at the end of the transfer.
    subflows: Vec<SubflowInfo>,
}

/// A channel between the two ends. It lies within this process, so it needs no packets, which would disturb
/// the measurement.
struct PeerChannel {
    to: Sender<()>,
    from: Receiver<()>,
}

impl Transfer<'_> {
    fn run(&self, client: &str, server: &str) -> io::Result<RunResult> {
        let listen = || kernel_tcp::listen(self.remote, Transport::Mptcp, &self.case.cc);
        let listener = netns::run_inside(server, listen)?;
        let ((to_server, from_client), (to_client, from_server)) =
            (mpsc::channel(), mpsc::channel());
        let (client_channel, server_channel) = (
            PeerChannel {
                to: to_server,
                from: from_server,
            },
            PeerChannel {
                to: to_client,
                from: from_client,
            },
        );
        thread::scope(|scope| {
            let serving = scope.spawn(move || self.run_server(&listener, &server_channel));
            let client_result = netns::run_inside(client, move || self.run_client(&client_channel));
            let server_result = serving.join();
            let server_result =
                server_result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (client_result, server_result) {
                (Ok(client), Ok(server)) => Ok(self.result(&client, &server)),
                (client, server) => self.resolve_errors([client.err(), server.err()]),
            }
        })
    }

    /// Returns the outcome of a transfer that failed at one end or both. A transfer that took too long has
    /// a result in which `completed` is false. After any other failure, returns the error of the end that
    /// failed first.
    fn resolve_errors(&self, errors: [Option<io::Error>; 2]) -> io::Result<RunResult> {
        let has = |kind| errors.iter().flatten().any(|e| e.kind() == kind);
        if has(io::ErrorKind::TimedOut) {
            return Ok(self.result(&EndRecord::default(), &EndRecord::default()));
        }
        let cause = errors.into_iter().flatten();
        // ConnectionAborted means that this end noticed the failure of the other. The other error is then
        // the cause.
        let cause = cause.min_by_key(|e| e.kind() == io::ErrorKind::ConnectionAborted);
        Err(cause.unwrap_or_else(other_failed))
    }

    /// Runs the client, which requests the flow of a download or sends the flow of an upload.
    fn run_client(&self, peer: &PeerChannel) -> io::Result<EndRecord> {
        become_realtime(ENDPOINT_PRIORITY);
        let mut record = EndRecord {
            started: Some(Instant::now()),
            ..EndRecord::default()
        };
        let stream = kernel_tcp::connect(
            self.remote,
            Some(self.local),
            Transport::Mptcp,
            &self.case.cc,
        )?;
        let mut end = self.end(&stream)?;
        let bytes = match self.case.direction {
            Direction::Down => REQUEST,
            Direction::Up => self.case.size.bytes(),
        };
        if self.case.warm_subflows {
            // The kernel opens further subflows only after data has been acknowledged, so the client sends
            // one byte ahead of the transfer.
            end.send(1)?;
            self.await_subflows(&stream)?;
            self.wait_for_peer(peer)?;
            record.started = Some(Instant::now());
        }
        end.send(bytes)?;
        match self.case.direction {
            Direction::Down => end.receive_all(&mut record)?,
            Direction::Up => stream.shutdown(Shutdown::Write)?,
        }
        self.finish(&stream, peer, &mut record)?;
        Ok(record)
    }

    /// Runs the server, which accepts the connection and sends or receives the flow.
    fn run_server(&self, listener: &TcpListener, peer: &PeerChannel) -> io::Result<EndRecord> {
        become_realtime(ENDPOINT_PRIORITY);
        let mut record = EndRecord::default();
        let stream = loop {
            if let Some(stream) =
                kernel_tcp::accept_within(listener, &self.case.cc, END_CHECK_INTERVAL)?
            {
                break stream;
            }
            self.check_time()?;
            // The client has failed and will not connect.
            if let Err(TryRecvError::Disconnected) = peer.from.try_recv() {
                return Err(other_failed());
            }
        };
        let mut end = self.end(&stream)?;
        if self.case.warm_subflows {
            self.await_subflows(&stream)?;
            let _ = peer.to.send(());
        }
        match self.case.direction {
            Direction::Down => {
                end.receive(REQUEST, &mut EndRecord::default())?;
                end.send(self.case.size.bytes())?;
                stream.shutdown(Shutdown::Write)?;
            }
            Direction::Up => end.receive_all(&mut record)?,
        }
        self.finish(&stream, peer, &mut record)?;
        Ok(record)
    }

    fn end<'s>(&self, stream: &'s TcpStream) -> io::Result<End<'s>>
    where
        Self: 's,
    {
        kernel_tcp::set_stall(stream, END_CHECK_INTERVAL)?;
        Ok(End {
            stream,
            sent: 0,
            is_recorded: self.case.outage.is_some(),
            deadline: self.deadline,
        })
    }

    /// Waits until the connection has a subflow on every path.
    fn await_subflows(&self, stream: &TcpStream) -> io::Result<()> {
        let wanted = self.case.paths.specs().len();
        while mptcp_info::mptcp_info(stream.as_fd())?
            .is_none_or(|info| usize::from(info.subflows) < wanted)
        {
            self.check_time()?;
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the other end, reads the counters, and aborts the connection. The connection is not
    /// closed in an orderly way, because segments of the close could appear in the next run.
    fn finish(
        &self,
        stream: &TcpStream,
        peer: &PeerChannel,
        record: &mut EndRecord,
    ) -> io::Result<()> {
        // An error means that the other end has failed; `wait_for_peer` reports that.
        let _ = peer.to.send(());
        self.wait_for_peer(peer)?;
        record.subflows = mptcp_info::subflows(stream.as_fd())?;
        // A reset removes the peer's subflows and their counters, so neither end resets before both have
        // read them.
        let _ = peer.to.send(());
        self.wait_for_peer(peer)?;
        kernel_tcp::reset_on_drop(stream)
    }

    /// Waits for a message from the other end.
    fn wait_for_peer(&self, peer: &PeerChannel) -> io::Result<()> {
        loop {
            match peer.from.recv_timeout(END_CHECK_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(other_failed()),
                Err(RecvTimeoutError::Timeout) => self.check_time()?,
            }
        }
    }

    fn check_time(&self) -> io::Result<()> {
        check_time(self.deadline)
    }

    /// Returns the result. Numbers of packets and copies stay 0, because the kernel does not count them.
    fn result(&self, client: &EndRecord, server: &EndRecord) -> RunResult {
        let (sender, receiver) = match self.case.direction {
            Direction::Down => (server, client),
            Direction::Up => (client, server),
        };
        let since = |from: Option<Instant>, to: Option<Instant>| {
            to.zip(from)
                .map(|(to, from)| to.saturating_duration_since(from))
                .unwrap_or_default()
        };
        let paths = self.case.paths.specs().len();
        let mut result = RunResult {
            completed: receiver.received == self.case.size.bytes(),
            fct: since(client.started, receiver.last_byte),
            // A byte sent ahead of the transfer may arrive before its start.
            fct_data: since(receiver.first_byte.max(client.started), receiver.last_byte),
            bytes_by_path: vec![0; paths],
            copy_bytes_by_path: vec![0; paths],
            packets_by_path: vec![0; paths],
            copies_by_path: vec![0; paths],
            ..RunResult::default()
        };
        for (at, bytes) in &receiver.arrivals {
            let time = since(client.started, Some(*at));
            result.arrivals.record(time, *bytes);
        }
        for subflow in &sender.subflows {
            let at_client = match self.case.direction {
                Direction::Down => subflow.remote,
                Direction::Up => subflow.local,
            };
            let path = (0..paths).find(|n| IpAddr::V4(client_addr(*n)) == at_client);
            if let Some(path) = path {
                result.bytes_by_path[path] += subflow
                    .bytes_sent
                    .saturating_sub(subflow.bytes_retransmitted);
            }
            result.retransmissions += u64::from(subflow.retransmissions);
        }
        result
    }
}

/// One end's socket, with which it sends and receives the test pattern.
struct End<'s> {
    stream: &'s TcpStream,
    /// Number of bytes sent.
    sent: u64,
    /// True if each arrival is recorded.
    is_recorded: bool,
    deadline: Instant,
}

impl End<'_> {
    /// Sends bytes until `end` bytes have been sent in total.
    fn send(&mut self, end: u64) -> io::Result<()> {
        while self.sent < end {
            let chunk = (end - self.sent).min(CHUNK as u64);
            let bytes: Vec<u8> = (self.sent..self.sent + chunk).map(pattern).collect();
            let sent = self.retry_until_deadline(|mut stream| stream.write(&bytes))?;
            self.sent += sent as u64;
        }
        Ok(())
    }

    /// Receives bytes until `record` has `end` bytes in total, or until the peer ends the stream.
    fn receive(&mut self, end: u64, record: &mut EndRecord) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while record.received < end {
            let read = self.retry_until_deadline(|mut stream| stream.read(&mut buffer))?;
            if read == 0 {
                return Ok(());
            }
            let now = Instant::now();
            record.first_byte.get_or_insert(now);
            record.last_byte = Some(now);
            let mut expected = (record.received..).map(pattern);
            if !buffer[..read]
                .iter()
                .all(|byte| expected.next() == Some(*byte))
            {
                return Err(io::Error::other(
                    "received bytes differ from the sent bytes",
                ));
            }
            record.received += read as u64;
            if self.is_recorded {
                record.arrivals.push((now, record.received));
            }
        }
        Ok(())
    }

    fn receive_all(&mut self, record: &mut EndRecord) -> io::Result<()> {
        self.receive(u64::MAX, record)
    }

    /// Repeats a read or write until it makes progress or fails, or until the deadline. The socket lets a
    /// call return after [`END_CHECK_INTERVAL`] without progress.
    fn retry_until_deadline(
        &self,
        mut operation: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match operation(self.stream) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => check_time(self.deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

fn other_failed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the other end failed")
}

/// Returns an error after the deadline or an interrupt.
fn check_time(deadline: Instant) -> io::Result<()> {
    if fixture::interrupted() {
        return Err(io::Error::other("interrupted"));
    }
    match Instant::now() < deadline {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the transfer did not complete in time",
        )),
    }
}

/// Returns the number of SYNs with MP_JOIN that the namespace has sent, without retransmissions; 0 if
/// the kernel is older than 6.14 and does not count them.
fn join_syns(namespace: &str) -> Result<u64, Error> {
    // The file of the thread, not of the process, because `run_inside` moves only its own thread into the
    // namespace.
    let read = || fs::read_to_string("/proc/thread-self/net/netstat");
    let text = netns::run_inside(namespace, read).map_err(run_error)?;
    // Two lines have this prefix: the names, and the values in the same order.
    let mut lines = text.lines().filter(|line| line.starts_with("MPTcpExt:"));
    let (names, values) = (lines.next(), lines.next());
    let (names, values) = (names.unwrap_or_default(), values.unwrap_or_default());
    let counters = names.split_whitespace().zip(values.split_whitespace());
    let sent = counters
        .into_iter()
        .find(|(name, _)| *name == "MPJoinSynTx");
    Ok(sent.and_then(|(_, value)| value.parse().ok()).unwrap_or(0))
}
