//! Tests of testbeds within this process.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed as testbed;
use braid_testbed::{Options, Role, Spec, Testbed};
use braid_testbed::{kernel_tcp, netns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// Bound on every wait: other work may delay a machine for seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

const DEMO: &str = include_str!("../../../examples/testbed/demo.toml");

/// Brings up the demonstration's testbed without box and server, under a name of its own; `None` if
/// namespaces cannot be made.
fn up(suffix: &str) -> Option<Testbed> {
    if let Err(reason) = netns::ensure_capable() {
        reason.announce("testbed tests");
        return None;
    }
    let name = format!("bt{}{suffix}", std::process::id());
    let text = DEMO.replace("name = \"demo\"", &format!("name = \"{name}\""));
    let spec = Spec::parse(&text, Path::new("demo.toml")).unwrap();
    let options = Options {
        start_nothing: true,
        ..Options::default()
    };
    Some(Testbed::up(spec, options).unwrap())
}

fn addresses(testbed: &Testbed, host: &str, interface: &str) -> [IpAddr; 2] {
    let host = testbed.layout().host(host).unwrap();
    let interface = host
        .interfaces
        .iter()
        .find(|i| i.name == interface)
        .unwrap();
    [interface.address4.into(), interface.address6.into()]
}

/// Returns nginx's answer on `host` to a request from `from`.
fn fetch(testbed: &Testbed, from: &str, address: IpAddr, path: &str) -> io::Result<String> {
    let namespace = &testbed.layout().host(from).unwrap().namespace;
    let address = SocketAddr::new(address, 80);
    netns::run_inside(namespace, || {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: content\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

#[test]
#[ignore = "network"]
fn a_user_reaches_nginx_through_the_box_over_ipv4_and_ipv6() {
    let Some(mut testbed) = up("web") else { return };
    testbed.start("content").unwrap();
    let www = testbed.state_dir().join("content/www");
    std::fs::write(www.join("greeting"), "hello from afar").unwrap();
    for address in addresses(&testbed, "content", "web") {
        let start = Instant::now();
        let answer = fetch(&testbed, "user", address, "/greeting").unwrap();
        assert!(answer.ends_with("\r\n\r\nhello from afar"), "{answer}");
        // Two round trips of 30 ms each over link 1; a busy machine makes it longer, never shorter.
        assert!(
            start.elapsed() >= Duration::from_millis(60),
            "{:?}",
            start.elapsed()
        );
    }
    let carried = |link: &str| testbed.link_status(link).unwrap().reverse.bytes_delivered;
    assert!(
        carried("link1") > 500,
        "{} bytes over link 1",
        carried("link1")
    );

    let first = testbed.pid("content").unwrap();
    testbed.kill("content").unwrap();
    assert_eq!(testbed.pid("content"), None);
    let [address, _] = addresses(&testbed, "content", "web");
    let refused = fetch(&testbed, "user", address, "/greeting").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    testbed.restart("content").unwrap();
    assert!(testbed.pid("content").is_some_and(|pid| pid != first));
    assert!(fetch(&testbed, "user", address, "/greeting").is_ok());
    testbed.down().unwrap();
}

#[test]
#[ignore = "network"]
fn nothing_is_left_of_a_testbed() {
    let Some(mut testbed) = up("left") else {
        return;
    };
    testbed.start("content").unwrap();
    let nginx = testbed.pid("content").unwrap();
    let state = testbed.state_dir().to_owned();
    let namespaces: Vec<_> = testbed
        .layout()
        .hosts
        .iter()
        .map(|h| h.namespace.clone())
        .collect();
    let mut sleeper = testbed
        .exec("user", "sleep")
        .unwrap()
        .arg("infinity")
        .spawn()
        .unwrap();
    assert!(namespaces.iter().all(|n| netns::exists(n)));
    testbed.down().unwrap();
    assert!(!namespaces.iter().any(|n| netns::exists(n)));
    assert!(!state.exists());
    assert!(!Path::new(&format!("/proc/{nginx}")).exists());
    // Processes that were started there are killed rather than left in a namespace that nobody can reach.
    assert!(!sleeper.wait().unwrap().success());
}

#[test]
#[ignore = "network"]
fn a_name_is_taken_while_its_testbed_lives() {
    let Some(testbed) = up("twice") else { return };
    let name = testbed.layout().name.clone();
    let text = DEMO.replace("name = \"demo\"", &format!("name = \"{name}\""));
    let spec = || Spec::parse(&text, Path::new("demo.toml")).unwrap();
    let options = || Options {
        start_nothing: true,
        ..Options::default()
    };
    assert!(matches!(
        Testbed::up(spec(), options()),
        Err(testbed::Error::Busy(_))
    ));
    drop(testbed);
    Testbed::up(spec(), options()).unwrap().down().unwrap();
}

#[test]
#[ignore = "network"]
fn addresses_and_routes_are_given_again_after_an_interface_was_down() {
    let Some(testbed) = up("plug") else { return };
    let route = |to: IpAddr| {
        let mut command = testbed.exec("box", "ip").unwrap();
        command
            .args(["route", "get", &to.to_string()])
            .output()
            .unwrap()
            .stdout
    };
    let link = |state: &str| {
        let mut command = testbed.exec("box", "ip").unwrap();
        assert!(
            command
                .args(["link", "set", "link1", state])
                .status()
                .unwrap()
                .success()
        );
    };
    for content in addresses(&testbed, "content", "web") {
        let before = route(content);
        assert!(
            String::from_utf8_lossy(&before).contains("dev link1"),
            "{before:?}"
        );
        link("down");
        let without = String::from_utf8(route(content)).unwrap();
        assert!(without.contains("dev link2"), "{without}");
        link("up");
        testbed.reconfigure("box").unwrap();
        let after = route(content);
        assert!(
            String::from_utf8_lossy(&after).contains("dev link1"),
            "{after:?}"
        );
    }
    testbed.down().unwrap();
}

/// The baseline: kernel sockets at both ends, box to server, over both links.
#[test]
#[ignore = "network"]
fn kernel_mptcp_uses_both_links_with_the_congestion_control_of_the_file() {
    const SHARE: u64 = 1_000_000;
    let Some(testbed) = up("mptcp") else { return };
    let carried = || {
        let carried = |link| testbed.link_status(link).unwrap().reverse.bytes_delivered;
        ["link1", "link2"].map(carried)
    };
    for address in addresses(&testbed, "server", "cloud") {
        let at = SocketAddr::new(address, 4000);
        let (server, client) = (
            mptcp_socket(&testbed, "server", at),
            mptcp_socket(&testbed, "box", at),
        );
        server.set_reuse_address(true).unwrap();
        server.bind(&at.into()).unwrap();
        server.listen(1).unwrap();
        let (before, enough) = (carried(), AtomicBool::new(false));
        client.connect_timeout(&at.into(), TIMEOUT).unwrap();
        let client = TcpStream::from(client);
        assert_eq!(kernel_tcp::congestion(&client).unwrap(), "cubic");
        let server = accept(&server);
        for stream in [&client, &server] {
            kernel_tcp::set_stall(stream, TIMEOUT).unwrap();
        }
        thread::scope(|scope| {
            let deadline = Instant::now() + TIMEOUT;
            let enough = &enough;
            let sender = scope.spawn(move || {
                let (mut stream, block, mut sent) = (server, [7; 64 << 10], 0);
                // The deadline ends the sender if the loop below panics.
                while !enough.load(Ordering::Relaxed) && Instant::now() < deadline {
                    stream.write_all(&block).unwrap();
                    sent += block.len() as u64;
                }
                sent
            });
            let reader = scope.spawn(move || io::copy(&mut &client, &mut io::sink()).unwrap());
            let mut shares = [0; 2];
            while shares.iter().any(|share| *share <= SHARE) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
                let now = carried();
                shares = [0, 1].map(|link| now[link] - before[link]);
            }
            // Before the assertions, since the scope waits for the sender.
            enough.store(true, Ordering::Relaxed);
            assert_eq!(reader.join().unwrap(), sender.join().unwrap());
            assert!(
                shares.iter().all(|share| *share > SHARE),
                "{at}: {shares:?} bytes over the links within {TIMEOUT:?}"
            );
        });
    }
    testbed.down().unwrap();
}

/// Opens a Multipath TCP socket of the family of `at` on `host`.
fn mptcp_socket(testbed: &Testbed, host: &str, at: SocketAddr) -> Socket {
    let namespace = &testbed.layout().host(host).unwrap().namespace;
    let open = || Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::MPTCP));
    netns::run_inside(namespace, open).unwrap()
}

/// Accepts the connection that a client has opened.
fn accept(listener: &Socket) -> TcpStream {
    let timeout = Timespec::try_from(TIMEOUT).unwrap();
    let mut waiting = [PollFd::new(listener, PollFlags::IN)];
    assert_eq!(poll(&mut waiting, Some(&timeout)), Ok(1), "no connection");
    listener.accept().unwrap().0.into()
}

#[test]
#[ignore = "network"]
fn lans_of_three_hosts_have_a_switch() {
    if let Err(reason) = netns::ensure_capable() {
        reason.announce("testbed tests");
        return;
    }
    let text = format!(
        r#"
        name = "bt{}sw"
        host = [
            {{ name = "a", role = "user" }},
            {{ name = "b", role = "user" }},
            {{ name = "c", role = "content" }},
        ]
        lan = [{{ name = "office", hosts = ["a", "b", "c"] }}]
        "#,
        std::process::id()
    );
    let testbed = Testbed::up(
        Spec::parse(&text, Path::new("x.toml")).unwrap(),
        Options::default(),
    )
    .unwrap();
    for from in ["a", "b"] {
        for address in addresses(&testbed, "c", "office") {
            assert!(
                fetch(&testbed, from, address, "/")
                    .unwrap()
                    .contains("200 OK")
            );
        }
    }
    testbed.down().unwrap();
}

#[test]
fn mistakes_are_answered_by_place_and_remedy() {
    let hosts = "name = \"t\"\n[[host]]\nname = \"a\"\nrole = \"user\"\n\
                 [[host]]\nname = \"b\"\nrole = \"router\"\n";
    for (text, line, read, remedy) in [
        ("nam = \"t\"", 1, "nam = \"t\"", "unknown field `nam`"),
        (
            "name = \"t\"\n[[host]]\nname = \"a\"\nrole = \"boks\"",
            4,
            "role = \"boks\"",
            "`user`, `box`, `router`, `server`, `content`",
        ),
        (
            &format!("{hosts}[[link]]\nname = \"l\"\nfrom = \"a\"\nto = \"b\"\nrate = \"fast\""),
            12,
            "rate = \"fast\"",
            "20Mbit/s",
        ),
        (
            &format!("{hosts}[[link]]\nname = \"l\"\nfrom = \"a\"\nto = \"c\""),
            11,
            "to = \"c\"",
            "the hosts are: a, b",
        ),
        (
            &format!("{hosts}[[lan]]\nname = \"l\"\nhosts = [\"a\"]"),
            9,
            "name = \"l\"",
            "at least two hosts",
        ),
        (
            &format!("{hosts}[[lan]]\nname = \"a-name-far-too-long\"\nhosts = [\"a\", \"b\"]"),
            9,
            "name = \"a-name-far-too-long\"",
            "1 to 15 letters",
        ),
        (
            &format!(
                "{hosts}[[lan]]\nname = \"l\"\nhosts = [\"a\", \"b\"]\nsubnet4 = \"10.0.0.1/24\""
            ),
            11,
            "subnet4 = \"10.0.0.1/24\"",
            "10.0.0.0/24",
        ),
        (
            "name = \"t\"\n[[host]]\nname = \"a\"\nrole = \"user\"\ngateway = \"a\"",
            5,
            "gateway = \"a\"",
            "no neighbour",
        ),
        (
            "name = \"t\"\n[[host]]\nname = \"a\"\nrole = \"user\"\ngateway = [\"a\", 5]",
            5,
            "gateway = [\"a\", 5]",
            "expected a string",
        ),
        (
            &format!("{hosts}[[host]]\nname = \"a\"\nrole = \"user\""),
            9,
            "name = \"a\"",
            "another host named `a`",
        ),
    ] {
        assert_mistake(text, line, read, remedy);
    }
}

#[test]
fn mistakes_in_a_link_are_answered_by_place_and_remedy() {
    let link = "name = \"t\"\n[[host]]\nname = \"a\"\nrole = \"user\"\n\
                [[host]]\nname = \"b\"\nrole = \"router\"\n\
                [[link]]\nname = \"l\"\nfrom = \"a\"\nto = \"b\"\n";
    for (text, line, read, remedy) in [
        (
            &format!("{link}trace = \"no/such.trace\"\nloss = 0.1"),
            12,
            "trace = \"no/such.trace\"",
            "a time in milliseconds on each line",
        ),
        (
            &format!("{link}delay = \"1ms\"\n[link.reverse]\nrate = \"1M\"\ntrace = \"x\""),
            15,
            "trace = \"x\"",
            "a rate or a trace",
        ),
        (
            &format!("{link}loss = \"1%/a few\""),
            12,
            "loss = \"1%/a few\"",
            "1%/4",
        ),
        (
            &format!("{link}schedule = [\n  \"5s loss=1%\",\n  \"4s down\",\n]"),
            14,
            "\"4s down\",",
            "in order of time",
        ),
        (
            &format!("{link}schedule = [\n  \"5s speed=1\",\n]"),
            13,
            "\"5s speed=1\",",
            "write rate=…, trace=…",
        ),
    ] {
        assert_mistake(text, line, read, remedy);
    }
}

fn assert_mistake(text: &str, line: usize, read: &str, remedy: &str) {
    let error = Spec::parse(text, Path::new("bed.toml")).unwrap_err();
    let at = error.position.map(|(line, _)| line);
    let found = error.read.as_deref().map(str::trim);
    assert_eq!((at, found), (Some(line), Some(read)), "{error}");
    assert!(error.message.contains(remedy), "{error}");
    assert!(error.to_string().starts_with("bed.toml:"), "{error}");
}

#[test]
fn the_demonstration_is_laid_out_as_it_says() {
    let spec = Spec::parse(DEMO, Path::new("demo.toml")).unwrap();
    let layout = testbed::Layout::resolve(&spec).unwrap();
    let the_box = layout.host("box").unwrap();
    assert_eq!(the_box.role, Role::Box);
    let links: Vec<_> = the_box.links().map(|l| l.name.as_str()).collect();
    assert_eq!(
        (the_box.namespace.as_str(), links),
        ("demo.box", vec!["link1", "link2"])
    );
    let link1 = the_box.links().next().unwrap();
    assert_eq!(link1.address4.to_string(), "198.18.4.1");
    assert_eq!(link1.gateway4.unwrap().to_string(), "198.18.4.2");
    assert_eq!(link1.gateway6.unwrap().to_string(), "2001:db8:4::2");
    assert_eq!(
        the_box.lans().next().unwrap().address4.to_string(),
        "192.168.77.1"
    );
}

#[test]
fn a_file_that_is_not_there_is_a_mistake_of_the_caller() {
    let error = Spec::read(Path::new("/nonexistent/bed.toml")).unwrap_err();
    assert!(matches!(error, testbed::Error::Spec(_)), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("/nonexistent/bed.toml: cannot read the file"),
        "{error}"
    );
}

#[test]
fn every_example_is_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/testbed");
    let mut read = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let spec = Spec::read(&path).unwrap_or_else(|e| panic!("{e}"));
        assert!(testbed::Layout::resolve(&spec).is_ok());
        read += 1;
    }
    assert!(read >= 2, "{read} examples");
}
