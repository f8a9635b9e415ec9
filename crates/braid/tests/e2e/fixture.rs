//! The testbed of these tests: user, box, two links, a router, server, two content hosts.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::program::BRAID_LAB;
use braid_testbed::fixture::{self, POLL_INTERVAL};
use braid_testbed::render::render_config;
use braid_testbed::{HostLayout, LinkChange, Options, Pattern, RenderConfig, Rendered, Role};

use super::control;
use super::interop::is_soak;

/// Longest wait for a condition. A loaded machine may let a test stand still for seconds.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest duration of a single download, seconds, in curl's form.
pub const MAX_TIME_S: &str = "120";
/// A download without progress for so many seconds hangs.
const STALLED_S: &str = "60";
/// A download with progress may take as long as a loaded machine needs, seconds.
const LONGEST_S: &str = "900";
/// Lines of a log that a failed wait shows.
const LOG_LINES: usize = 12;

/// The aspects of a service that a test judges while it is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Users are served, and nothing hangs: `make test`.
    Service,
    /// Users keep their rate, or are served soon, too. This needs a machine that does nothing else: the soak.
    Clock,
}

/// Returns the size of a large transfer, bytes.
pub fn bulk() -> usize {
    if is_soak() { 50_000_000 } else { 10_000_000 }
}

/// Returns the description of the testbed of these tests, under a test's own name.
pub fn description(name: &str) -> String {
    fixture::description(name, [("100mbit", "5ms"), ("60mbit", "15ms")])
}

/// Returns a name that no other test uses, neither now nor in a run beside this one.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "bt{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Returns the program under test: the one that was built with the tests, or another build of it.
fn braid() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_braid").into();
    std::env::var_os("BRAID_PROGRAM").map_or_else(built, PathBuf::from)
}

/// Returns the laboratory's program, which contains the peers. Every build of the workspace's tests puts it
/// beside the product's.
pub fn laboratory() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_braid")).with_file_name(BRAID_LAB);
    let missing =
        "is missing; run the tests of the whole workspace, which builds it: cargo test --workspace";
    assert!(program.exists(), "{} {missing}", program.display());
    program
}

/// Writes a script that its owner may run.
pub fn write_script(path: &Path, text: &str) {
    fs::write(path, text).expect("a writable directory");
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(path, mode).expect("its owner's");
}

/// A testbed that is up; removed when dropped.
pub struct Fixture(fixture::Fixture);

impl Deref for Fixture {
    type Target = fixture::Fixture;

    fn deref(&self) -> &fixture::Fixture {
        &self.0
    }
}

impl DerefMut for Fixture {
    fn deref_mut(&mut self) -> &mut fixture::Fixture {
        &mut self.0
    }
}

impl Fixture {
    /// Brings it up with box and server running.
    pub fn up() -> Self {
        Fixture::up_with(render_config(None).expect("randomness"))
    }

    /// Does the same with configurations of the test's own.
    pub fn up_with(render: RenderConfig) -> Self {
        let mut bed = Fixture::up_idle(render);
        bed.start("server");
        bed.start("box");
        bed.wait_for_interception();
        bed
    }

    /// Brings it up with neither box nor server running.
    pub fn up_idle(render: RenderConfig) -> Self {
        Fixture::build(&description(&unique_name()), render, braid())
    }

    /// Does the same, with a program of the test's own that runs box and server.
    pub fn up_idle_by(render: RenderConfig, program: PathBuf) -> Self {
        Fixture::build(&description(&unique_name()), render, program)
    }

    /// Brings up another network, without box and server.
    pub fn of(description: &str) -> Self {
        Fixture::of_with(description, Box::new(|_, _| None))
    }

    /// Brings up another network, with neither box nor server running.
    pub fn of_with(description: &str, render: RenderConfig) -> Self {
        let description = description.replace("NAME", &unique_name());
        Fixture::build(&description, render, braid())
    }

    fn build(description: &str, render: RenderConfig, program: PathBuf) -> Self {
        let spec = fixture::spec(description).unwrap_or_else(|e| panic!("{e}"));
        let options = Options {
            executable: Some(program),
            render: Some(render),
            ..Options::default()
        };
        let bed = fixture::Fixture::up(spec, options, || false);
        let bed = Fixture(bed.unwrap_or_else(|e| panic!("testbed up: {e}")));
        fs::create_dir_all(bed.www()).expect("the state directory is writable");
        bed
    }

    /// Starts box or server and waits until it serves.
    pub fn start(&mut self, host: &str) {
        let started = self.0.start(host, WAIT_TIMEOUT);
        started.unwrap_or_else(|e| panic!("start {host}: {e}\n{}", self.seen()));
    }

    /// Waits until the box intercepts connections.
    pub fn wait_for_interception(&mut self) {
        let open = self.0.wait_for_interception(WAIT_TIMEOUT);
        open.unwrap_or_else(|e| panic!("{e}\n{}", self.seen()));
    }

    /// Waits until the tunnel carries packets of the user, over IPv4 and IPv6.
    pub fn wait_for_tunnel(&mut self) {
        for content in [self.v4("content"), self.v6("content")] {
            self.wait_for("a ping through the tunnel", |bed| {
                let arrived = |bed: &Self| {
                    let tunnel = control::status(bed, "box").tunnel.expect("it has one");
                    tunnel.sessions.first().map_or(0, |s| s.packets_in)
                };
                let before = arrived(bed);
                let content = content.to_string();
                let mut ping = bed.exec("user", "ping");
                let ping = ping.args(["-n", "-c", "1", "-W", "1", &content]);
                ping.output().expect("ping runs").status.success() && arrived(bed) > before
            });
        }
    }

    /// Takes the testbed down.
    pub fn down(self) {
        self.0.testbed.down().expect("all of it goes");
    }

    /// Waits up to [`WAIT_TIMEOUT`] until `condition` holds; a failure shows the state of the testbed.
    pub fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + WAIT_TIMEOUT;
        while !condition(self) {
            if Instant::now() > end {
                panic!("waited in vain for {what}\n{}", self.seen());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the state of the testbed for the message of a failed test: bytes and drops of each link, and
    /// of box and server the status and the end of the log.
    pub fn seen(&mut self) -> String {
        let mut seen = String::new();
        let status = self.testbed.status();
        for link in status.map(|status| status.links).unwrap_or_default() {
            seen += &format!("{link:?}\n");
        }
        for role in ["box", "server"] {
            if self.testbed.layout().host(role).is_err() {
                continue;
            }
            let status = control::ask(self, role, &["status"]);
            seen += &format!("== status of the {role}\n{}", stdout(&status));
            seen += &stderr(&status);
            let log = self.log(role);
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            seen += &format!("== log of the {role}\n{}\n", last.join("\n"));
        }
        seen
    }

    /// Waits until downloads use both links (again).
    pub fn expect_both_links(&mut self) {
        self.narrow();
        let expected = self.offer("again", 5_000_000);
        self.wait_for("both links to carry a download", |bed| {
            let before = bed.carried();
            bed.curl("again").expect_bytes(&expected);
            let after = bed.carried();
            (0..2).all(|link| after[link] - before[link] > 500_000)
        });
        self.release();
    }

    /// Returns a command on a host.
    pub fn exec(&self, host: &str, program: &str) -> Command {
        self.0
            .exec(host, program)
            .unwrap_or_else(|e| panic!("exec on {host}: {e}"))
    }

    /// Returns the output of a command on a host.
    pub fn print(&self, host: &str, program: &str, arguments: &[&str]) -> String {
        let output = self
            .exec(host, program)
            .args(arguments)
            .output()
            .expect("it runs");
        stdout(&output)
    }

    /// Runs a command on a host, which must succeed.
    pub fn run(&self, host: &str, program: &str, arguments: &[&str]) {
        let output = self
            .exec(host, program)
            .args(arguments)
            .output()
            .expect("it runs");
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            stderr(&output)
        );
    }

    /// Starts the kernel peer on a host. A peer that listens does so already on return.
    pub fn kernel_peer(&self, host: &str, arguments: &[&str]) -> Background {
        self.peer(host, "kernel-peer", arguments)
    }

    /// Starts the engine peer, which has the engine in place of kernel sockets.
    pub fn engine_peer(&self, host: &str, arguments: &[&str]) -> Background {
        self.peer(host, "engine-peer", arguments)
    }

    fn peer(&self, host: &str, kind: &str, arguments: &[&str]) -> Background {
        let mut command = self.exec(host, &laboratory().to_string_lossy());
        let mut child = command
            .arg(kind)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdout = child.stdout.take().map(BufReader::new).expect("piped");
        if arguments[0] == "listen" {
            stdout
                .read_line(&mut String::new())
                .expect("it tells where it listens");
        }
        Background {
            child: Some(child),
            stdout: Some(stdout),
        }
    }

    /// Returns the first IPv4 address of a host.
    pub fn v4(&self, host: &str) -> IpAddr {
        self.host(host).interfaces[0].address4.into()
    }

    /// Returns the IPv4 address of a host on its interface number `index`.
    pub fn v4_of(&self, host: &str, index: usize) -> IpAddr {
        self.host(host).interfaces[index].address4.into()
    }

    /// Returns the first IPv6 address of a host.
    pub fn v6(&self, host: &str) -> IpAddr {
        self.host(host).interfaces[0].address6.into()
    }

    /// Returns the IPv6 address of a host on its interface number `index`.
    pub fn v6_of(&self, host: &str, index: usize) -> IpAddr {
        self.host(host).interfaces[index].address6.into()
    }

    fn host(&self, host: &str) -> &HostLayout {
        self.testbed.layout().host(host).expect("a known host")
    }

    /// Changes both directions of a link.
    pub fn set_link(&mut self, link: &str, change: &str) {
        let change = LinkChange::parse(change.split(' ')).expect("a good change");
        self.testbed
            .set(link, None, &change)
            .unwrap_or_else(|e| panic!("set: {e}"));
    }

    /// Slows both links down, so that 10 MB take 13 s: the steps of a test come before the end of such a
    /// download, however busy the machine is. [`Fixture::release`] ends it quickly.
    pub fn slow_down(&mut self) {
        self.set_links(["rate=3mbit"; 2]);
    }

    /// Gives both links less than a busy processor can send: with more, the better link would carry all.
    pub fn narrow(&mut self) {
        self.set_links(["rate=12mbit"; 2]);
    }

    /// Speeds the links up, so that the rest arrives in a moment.
    pub fn release(&mut self) {
        self.set_links(["rate=100mbit", "rate=60mbit"]);
    }

    fn set_links(&mut self, changes: [&str; 2]) {
        for (link, change) in ["link1", "link2"].into_iter().zip(changes) {
            self.set_link(link, change);
        }
    }

    /// Returns the bytes that the links have carried towards the user.
    pub fn carried(&self) -> [u64; 2] {
        ["link1", "link2"].map(|link| {
            let stats = self
                .testbed
                .link_status(link)
                .unwrap_or_else(|e| panic!("stats: {e}"));
            stats.reverse.bytes_delivered
        })
    }

    /// Lets one link go dark and come back, and then the other one, and waits each time until `moved` bytes or
    /// messages have grown by `step`.
    pub fn darken_each_link(&mut self, step: u64, moved: impl Fn() -> u64) {
        let go_on = |bed: &mut Self, what: &str| {
            let before = moved();
            bed.wait_for(what, |_| moved() >= before + step);
        };
        go_on(self, "the first progress");
        for link in ["link1", "link2"] {
            self.set_link(link, "down");
            go_on(self, &format!("progress without {link}"));
            self.set_link(link, "up");
            self.wait_for(&format!("{link} to work again"), |bed| {
                let tunnel = control::status(bed, "box").tunnel.expect("it has one");
                let mut paths = tunnel.sessions.iter().flat_map(|s| &s.paths);
                paths.any(|path| path.name == link && path.usable)
            });
            go_on(self, &format!("progress with {link}"));
        }
    }

    /// Fails unless both links have carried more than `bytes` each since `before`.
    pub fn expect_carried(&self, before: [u64; 2], bytes: u64) {
        for (link, (after, before)) in (1..).zip(self.carried().iter().zip(before)) {
            let carried = after - before;
            assert!(carried > bytes, "link{link} carried {carried} bytes");
        }
    }

    /// Fails unless a download of `size` bytes spares a link (0 or 1). The other link may be silent for a
    /// moment just because this machine stands still, so one of three downloads has to spare it.
    pub fn expect_spared(&self, link: usize, size: usize) {
        let mut carried = [0; 3];
        for bytes in &mut carried {
            let before = self.carried()[link];
            self.fetch(size);
            *bytes = self.carried()[link] - before;
            if *bytes < 50_000 {
                return;
            }
        }
        panic!("link{} carried {carried:?} bytes", link + 1);
    }

    /// Returns the directory that the content host serves.
    pub fn www(&self) -> PathBuf {
        self.testbed.state_dir().join("content/www")
    }

    /// Puts a file of `size` bytes on the content host.
    pub fn offer(&self, name: &str, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        Pattern::new(size as u64).fill(&mut bytes);
        fs::write(self.www().join(name), &bytes).expect("the state directory is writable");
        bytes
    }

    /// Starts a download on the user host.
    pub fn curl(&self, name: &str) -> Download {
        self.curl_from(self.v4("content"), name)
    }

    /// Starts a download from a content host's other address.
    pub fn curl_from(&self, content: IpAddr, name: &str) -> Download {
        let host = match content {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        self.curl_by(&["--noproxy", "*"], &format!("http://{host}/{name}"))
    }

    /// Starts a download on the user host, with curl's options `way`.
    pub fn curl_by(&self, way: &[&str], url: &str) -> Download {
        self.download(self.exec("user", "curl"), way, url)
    }

    /// Starts a download by `curl`, on the host of that command.
    pub fn download(&self, mut curl: Command, way: &[&str], url: &str) -> Download {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let to = self.testbed.state_dir().join(format!("fetched{number}"));
        let child = curl
            .args(["-q", "-sS", "--fail"])
            .args(["--speed-limit", "1", "--speed-time", STALLED_S])
            .args(["--max-time", LONGEST_S, "-o"])
            .arg(&to)
            .args(way)
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("curl starts");
        Download {
            curl: Background {
                child: Some(child),
                stdout: None,
            },
            to,
        }
    }

    /// Puts a file of `size` zero bytes on the content host, where it takes no room.
    pub fn offer_zeros(&self, name: &str, size: u64) {
        let file = fs::File::create(self.www().join(name));
        let sized = file.and_then(|file| file.set_len(size));
        sized.expect("the state directory is writable");
    }

    /// Downloads a file of `size` bytes and fails unless every byte is right.
    pub fn fetch(&self, size: usize) {
        let expected = self.offer("one", size);
        self.curl("one").expect_bytes(&expected);
    }
}

/// A download under way; ended when dropped.
pub struct Download {
    curl: Background,
    to: PathBuf,
}

impl Download {
    /// Returns the bytes received so far.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.to).map_or(0, |file| file.len())
    }

    /// Waits for the end, whatever it is; returns whether curl succeeded, and curl's error message.
    pub fn end(mut self) -> (bool, String) {
        let output = self.curl.wait();
        (output.status.success(), stderr(&output))
    }

    /// Waits for the end and fails unless exactly `expected` arrived.
    pub fn expect_bytes(self, expected: &[u8]) {
        let (well, said) = self.end_as(expected);
        assert!(well, "curl: {said}");
    }

    /// Waits for the end and fails if curl takes other bytes than `expected` for the whole file. Returns
    /// whether curl succeeded, and its error message.
    pub fn end_as(mut self, expected: &[u8]) -> (bool, String) {
        let output = self.curl.wait();
        if !output.status.success() {
            return (false, stderr(&output));
        }
        let came = fs::read(&self.to).expect("curl wrote a file");
        assert_eq!(came.len(), expected.len(), "the length differs");
        let differs = came.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "a byte differs");
        fs::remove_file(&self.to).expect("the state directory is writable");
        (true, stderr(&output))
    }
}

/// A process that ends when this is dropped.
pub struct Background {
    child: Option<Child>,
    /// Its standard output, if some of it was read already.
    stdout: Option<BufReader<ChildStdout>>,
}

impl Background {
    /// Waits for its end and returns its output.
    pub fn wait(&mut self) -> Output {
        let mut printed = Vec::new();
        if let Some(mut stdout) = self.stdout.take() {
            stdout.read_to_end(&mut printed).expect("a readable pipe");
        }
        let child = self.child.take().expect("waited for once");
        let mut output = child.wait_with_output().expect("it ends");
        output.stdout.append(&mut printed);
        output
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sets a flag when it is dropped, even by a test that fails: the threads that look at the flag end.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Returns what a process wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns what a process wrote to standard output.
fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns configurations as the demo has them, changed by `change` for hosts of the role.
pub fn render_changed(
    role: Role,
    change: impl Fn(String) -> String + Send + Sync + 'static,
) -> RenderConfig {
    changed(render_config(None).expect("randomness"), role, change)
}

/// Returns the configurations of `render`, changed by `change` for hosts of the role.
pub fn changed(
    render: RenderConfig,
    role: Role,
    change: impl Fn(String) -> String + Send + Sync + 'static,
) -> RenderConfig {
    Box::new(move |layout, host| {
        let Rendered { text, key } = render(layout, host)?;
        let text = match host.role == role {
            true => change(text),
            false => text,
        };
        Some(Rendered { text, key })
    })
}
