//! Measurements over emulated links with the kernel's MPTCP at both ends.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_engine::Config;
use braid_engine::stats::Traffic;
use braid_linux::driver::Clock;
use braid_linux::sys::become_realtime;
use braid_sim::traffic::{Role, Stream, pattern};
use braid_sim::transfer::{Direction, REMOTE, SERVER as SERVER_ADDR, client_addr};
use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::mptcp_info::{self, SubflowInfo};
use braid_testbed::netns;

use super::error::Error;
use super::fixture::{ENDPOINT_PRIORITY, Fixture};
use super::setup::{CLIENT, FIRST_TABLE, SERVER, Setup, link_name};
use super::threads::{self, EndGuard, EndSignal, join_thread};
use super::{Session, flow};
use crate::case::{Case, ReceivedBytes, RunResult};
use crate::session_trace::{SAMPLE_INTERVAL, SessionScenario, SessionTrace};

/// Maximum number of subflows of a connection besides the initial one. It is the kernel's own maximum
/// (`MPTCP_PM_ADDR_MAX`), so that it limits no case.
const SUBFLOW_LIMIT: usize = 8;
/// Number of bytes of a read or write. A guess, large enough to make system calls rare.
const CHUNK: usize = 64 * 1024;
/// Interval at which an end checks its number of subflows, and how far the other end is. The kernel reports
/// no event to the application when a subflow opens.
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
pub(super) struct Kernel {
    fixture: Fixture,
    /// The namespaces of client and server.
    hosts: [String; 2],
}

impl Kernel {
    /// Sets up addresses, MPTCP endpoints and routes of client and server for each path. The routes set the
    /// congestion control `cc` and the initial window: an application cannot set an initial window, and a
    /// socket option would not reach the subflows that the path manager opens.
    pub fn open(setup: &Setup<'_>, (cc, initial_window): (&str, u32)) -> Result<Kernel, Error> {
        let fixture = Fixture::build(setup)?;
        let metrics = format!("initcwnd {initial_window} congctl {cc}");
        let limits = format!("mptcp limits set subflows {SUBFLOW_LIMIT}\n");
        let (mut client, mut server) = (limits.clone(), limits);
        server += &format!("addr add {SERVER_ADDR}/32 dev lo\n");
        for n in 0..setup.paths.len() {
            let (address, link, table) = (client_addr(n), link_name(n), FIRST_TABLE + n);
            client += &format!(
                "addr add {address}/32 dev {link}\n\
                 route add default dev {link} src {address} table {table} {metrics}\n\
                 rule add from {address}/32 lookup {table} pref {table}\n\
                 mptcp endpoint add {address} dev {link} subflow\n"
            );
            server += &format!("route add {address}/32 dev {link} src {SERVER_ADDR} {metrics}\n");
        }
        fixture.testbed.ip(CLIENT, &client)?;
        fixture.testbed.ip(SERVER, &server)?;
        Ok(Kernel {
            hosts: [fixture.namespace(CLIENT)?, fixture.namespace(SERVER)?],
            fixture,
        })
    }
}

impl Session for Kernel {
    fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        // The kernel may have a congestion control that the engine lacks.
        let setup = &Setup::of_case(case, index, Config::default());
        let hosts = &self.hosts;
        let paths = setup.paths.len();
        self.fixture.measure(setup, || {
            // The kernel counts SYNs for the namespace, which serves all runs. The count of earlier runs is
            // subtracted.
            let syns_before = join_syns(&hosts[0])?;
            let transfer = Transfer::new(&case.cc, case.opening_path(index), flow::limit(case));
            let ends = transfer.run(hosts, setup, |end| {
                if case.warm_subflows {
                    end.warm_up(paths)?;
                }
                end.play()?;
                end.count_subflows()
            });
            let result = match ends {
                Ok(ends) => result(case, ends),
                // A transfer that took too long has a result in which `completed` is false.
                Err(e) if e.kind() == ErrorKind::TimedOut => {
                    flow::result(case, transfer.clock.now(), None, &flow::traffic(case, None))
                }
                Err(e) => return Err(e.into()),
            };
            Ok(RunResult {
                join_syns: join_syns(&hosts[0])?.saturating_sub(syns_before),
                ..result
            })
        })
    }

    /// Runs the session with the kernel's scheduler. The server sends as fast as the socket takes data. Only
    /// the bytes that the client reads are observed, not the packets.
    fn trace(&mut self, scenario: &SessionScenario<'_>, seed: u64) -> Result<SessionTrace, Error> {
        let hosts = &self.hosts;
        let cc = scenario.engine.congestion.name();
        let setup = &Setup::of_session(scenario, seed);
        self.fixture.measure(setup, || {
            let transfer = Transfer::new(cc, 0, scenario.span);
            let ends = transfer.run(hosts, setup, |end| end.play_until_deadline());
            let [client, _] = ends?;
            let samples = (1..=scenario.samples() as u32).map(|n| SAMPLE_INTERVAL * n);
            let read: Vec<u64> = samples.map(|at| client.arrivals.at(at)).collect();
            Ok(SessionTrace {
                // Acknowledgements of the kernel are not observed. The bytes read stand for them, because
                // the client reads at once.
                acked: read.clone(),
                read,
                ..SessionTrace::default()
            })
        })
    }

    fn fixture(&mut self) -> Option<&mut Fixture> {
        Some(&mut self.fixture)
    }
}

/// A connection between the namespaces of client and server.
struct Transfer<'a> {
    cc: &'a str,
    /// The client's address.
    local: SocketAddr,
    clock: Clock,
    end: EndSignal,
    /// Number of calls of [`End::meet`] by both ends.
    met: AtomicUsize,
}

impl<'a> Transfer<'a> {
    /// Returns a connection that opens on `path` and may take `limit` from now on.
    fn new(cc: &'a str, path: usize, limit: Duration) -> Self {
        Transfer {
            cc,
            local: SocketAddr::new(client_addr(path).into(), 0),
            clock: Clock::new(),
            end: EndSignal::at(Instant::now() + limit),
            met: AtomicUsize::new(0),
        }
    }

    /// Opens the connection with a stream at each end, runs `work` at both ends, and returns them. The
    /// connection ends when they are dropped.
    ///
    /// # Errors
    /// `TimedOut` if an end took too long; otherwise the error of the end that failed first.
    fn run(
        &self,
        [near, far]: &[String; 2],
        setup: &Setup<'_>,
        work: impl Fn(&mut End<'_>) -> io::Result<()> + Sync,
    ) -> io::Result<[End<'_>; 2]> {
        let [reads, sends] = &setup.streams;
        let listen = || kernel_tcp::listen(REMOTE, Transport::Mptcp, self.cc);
        let listener = netns::run_inside(far, listen)?;
        let accept = || self.end.accept(&listener, self.cc);
        let connect = || threads::connect([self.local, REMOTE], Transport::Mptcp, self.cc);
        let results = thread::scope(|scope| {
            let serving = scope.spawn(|| self.run_end(accept, sends, &work));
            let asked = netns::run_inside(near, || self.run_end(connect, reads, &work));
            [asked, join_thread(serving)]
        });
        match results {
            [Ok(client), Ok(server)] => Ok([client, server]),
            results => {
                // A timeout ranks first. `ConnectionAborted` ranks last: it only says that the other end
                // ended, and the error of that end has the cause.
                let rank = |e: &io::Error| match e.kind() {
                    ErrorKind::TimedOut => 0,
                    ErrorKind::ConnectionAborted => 2,
                    _ => 1,
                };
                let errors = results.into_iter().filter_map(Result::err);
                Err(errors.min_by_key(rank).expect("an end failed"))
            }
        }
    }

    /// Runs one end in its own thread. When this end has ended, tells the other end to end too.
    fn run_end(
        &self,
        open: impl FnOnce() -> io::Result<TcpStream>,
        stream: &Stream,
        work: impl Fn(&mut End<'_>) -> io::Result<()>,
    ) -> io::Result<End<'_>> {
        become_realtime(ENDPOINT_PRIORITY);
        let _guard = EndGuard(&self.end);
        let started = self.clock.now();
        let mut end = End {
            transfer: self,
            socket: open()?,
            started,
            stream: stream.clone(),
            arrivals: ReceivedBytes::default(),
            meetings: 0,
            subflows: Vec::new(),
        };
        work(&mut end)?;
        Ok(end)
    }
}

/// One end of the connection, with what it observed.
struct End<'a> {
    transfer: &'a Transfer<'a>,
    socket: TcpStream,
    /// The start of the flow completion time.
    started: braid_wire::Instant,
    /// The role of the end, and the bytes that it has sent and received.
    stream: Stream,
    /// Bytes received so far, by time from the start.
    arrivals: ReceivedBytes,
    /// Number of calls of [`Self::meet`] by this end.
    meetings: usize,
    /// The counters of the subflows at the end of the transfer.
    subflows: Vec<SubflowInfo>,
}

impl End<'_> {
    /// Sends and receives by the role of the stream.
    fn play(&mut self) -> io::Result<()> {
        match self.stream.role {
            Role::Fetch { request } => {
                self.send(request)?;
                self.receive(u64::MAX)
            }
            Role::Answer { request, size } => {
                self.receive(request)?;
                self.send(size)?;
                self.socket.shutdown(Shutdown::Write)
            }
            Role::Upload { size } => {
                self.send(size)?;
                self.socket.shutdown(Shutdown::Write)
            }
            Role::Greedy { .. } => self.send(u64::MAX),
            _ => self.receive(u64::MAX),
        }
    }

    /// Sends and receives until the deadline.
    fn play_until_deadline(&mut self) -> io::Result<()> {
        use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut};
        // If the client has ended too early, the client reports that.
        let over: &[ErrorKind] = match self.stream.role {
            Role::Sink => &[TimedOut],
            _ => &[TimedOut, BrokenPipe, ConnectionAborted, ConnectionReset],
        };
        match self.play() {
            Ok(()) => {
                let after = self.transfer.clock.now().saturating_since(self.started);
                let text = format!("the server's connection ended {after:.1?} after the start");
                Err(io::Error::new(ErrorKind::UnexpectedEof, text))
            }
            Err(e) if over.contains(&e.kind()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Waits until both ends have a subflow on every path, and starts the flow completion time.
    fn warm_up(&mut self, paths: usize) -> io::Result<()> {
        if self.stream.awaiting_release {
            // The kernel opens further subflows only after data has been acknowledged, so the client sends
            // one byte ahead of the transfer.
            self.send(1)?;
        }
        while mptcp_info::mptcp_info(self.socket.as_fd())?
            .is_none_or(|info| usize::from(info.subflows) < paths)
        {
            self.transfer.end.check()?;
            thread::sleep(POLL_INTERVAL);
        }
        self.meet()?;
        self.started = self.transfer.clock.now();
        Ok(())
    }

    /// Waits for the end of the transfer and reads the counters. A reset removes the peer's subflows and their
    /// counters, so [`Transfer::run`] drops no socket before both ends have read them.
    fn count_subflows(&mut self) -> io::Result<()> {
        self.meet()?;
        self.subflows = mptcp_info::subflows(self.socket.as_fd())?;
        Ok(())
    }

    /// Waits until the other end has called this function as often as this end. The ends meet in this process,
    /// because packets between them would disturb the measurement.
    fn meet(&mut self) -> io::Result<()> {
        self.meetings += 1;
        self.transfer.met.fetch_add(1, Ordering::AcqRel);
        loop {
            // The other end may call this function and then end. Its end is therefore checked before the number
            // of calls is read, and is no error if that number is high enough.
            let may_go_on = self.transfer.end.check();
            if self.transfer.met.load(Ordering::Acquire) >= 2 * self.meetings {
                return Ok(());
            }
            may_go_on?;
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends bytes until `end` bytes have been sent in total.
    fn send(&mut self, end: u64) -> io::Result<()> {
        while self.stream.sent < end {
            let from = self.stream.sent;
            let chunk = (end - from).min(CHUNK as u64);
            let bytes: Vec<u8> = (from..from + chunk).map(pattern).collect();
            let mut socket = &self.socket;
            let sent = self.transfer.end.repeat(|| socket.write(&bytes))?;
            self.stream.sent += sent as u64;
        }
        Ok(())
    }

    /// Receives bytes until `end` bytes have been received in total, or until the peer ends the stream.
    fn receive(&mut self, end: u64) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while self.stream.received < end {
            let mut socket = &self.socket;
            let read = self.transfer.end.repeat(|| socket.read(&mut buffer))?;
            if read == 0 {
                return Ok(());
            }
            let now = self.transfer.clock.now();
            let stream = &mut self.stream;
            stream.first_byte_at.get_or_insert(now);
            stream.last_byte_at = Some(now);
            let expected = (stream.received..).map(pattern);
            if !buffer[..read].iter().copied().eq(expected.take(read)) {
                let text = "received bytes differ from the sent bytes";
                return Err(io::Error::other(text));
            }
            stream.received += read as u64;
            let time = now.saturating_since(self.started);
            self.arrivals.record(time, stream.received);
        }
        Ok(())
    }
}

/// Returns the result of a transfer. Numbers of packets and copies stay 0, because the kernel does not count
/// them.
fn result(case: &Case, ends: [End<'_>; 2]) -> RunResult {
    let started = ends[0].started;
    let [sender, receiver] = flow::sender_first(case.direction, ends);
    let mut traffic = vec![Traffic::default(); case.paths.specs().len()];
    for subflow in &sender.subflows {
        let at_client = match case.direction {
            Direction::Down => subflow.remote,
            Direction::Up => subflow.local,
        };
        let mut paths = traffic.iter_mut().enumerate();
        let on_path = paths.find(|(n, _)| IpAddr::V4(client_addr(*n)) == at_client);
        if let Some((_, traffic)) = on_path {
            let sent_again = subflow.bytes_retransmitted;
            traffic.bytes_sent += subflow.bytes_sent.saturating_sub(sent_again);
        }
    }
    RunResult {
        retransmissions: sender
            .subflows
            .iter()
            .map(|s| u64::from(s.retransmissions))
            .sum(),
        arrivals: match case.outage {
            Some(_) => receiver.arrivals,
            None => ReceivedBytes::default(),
        },
        ..flow::result(case, started, [&receiver.stream], &traffic)
    }
}

/// Returns the number of SYNs with MP_JOIN that the namespace has sent, without retransmissions; 0 if
/// the kernel is older than 6.14 and does not count them.
fn join_syns(namespace: &str) -> Result<u64, Error> {
    // The file of the thread, not of the process, because `run_inside` moves only its own thread into the
    // namespace.
    let read = || fs::read_to_string("/proc/thread-self/net/netstat");
    let text = netns::run_inside(namespace, read)?;
    // Two lines have this prefix: the names, and the values in the same order.
    let lines = text.lines().filter(|line| line.starts_with("MPTcpExt:"));
    let mut lines = lines.map(str::split_whitespace);
    let (names, values) = (lines.next(), lines.next());
    let mut counters = names
        .into_iter()
        .flatten()
        .zip(values.into_iter().flatten());
    let sent = counters.find(|(name, _)| *name == "MPJoinSynTx");
    Ok(sent.and_then(|(_, value)| value.parse().ok()).unwrap_or(0))
}
