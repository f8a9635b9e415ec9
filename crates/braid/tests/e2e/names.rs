//! Names that an attacker has pointed at addresses a server must not connect to. Each answer is judged as it
//! is used, so an answer that changes at the next look-up gains nothing (DNS rebinding).

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_proxy::socks::Destination;
use braid_testbed::Role;

use super::attacks::{Client, counters, grown, inside, keep_pace, namespace};
use super::fixture::{Fixture, Judge, render_changed, unique_name, write_script};
use super::load::{Load, USERS};
use super::reload::{SocksFixture, allowing_plaintext};

/// A directory that a process of the testbed sees in place of `/etc`, and the program that arranges that.
/// Removed when dropped.
struct Etc(PathBuf);

impl Etc {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("{}-etc", unique_name()));
        fs::create_dir_all(directory.join("etc")).expect("a writable directory");
        let script = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -c \
             'mount --bind \"$0\" /etc && exec \"$@\"' {}/etc {} \"$@\"\n",
            directory.display(),
            env!("CARGO_BIN_EXE_braid")
        );
        let etc = Etc(directory);
        write_script(&etc.program(), &script);
        etc
    }

    fn program(&self) -> PathBuf {
        self.0.join("braid")
    }

    /// Makes names be looked up at `server`.
    fn ask(&self, server: IpAddr) {
        let resolver = format!("nameserver {server}\noptions timeout:5 attempts:2\n");
        let write = |name: &str, text: &str| {
            fs::write(self.0.join("etc").join(name), text).expect("a writable directory");
        };
        write("resolv.conf", &resolver);
        write("nsswitch.conf", "hosts: files dns\n");
        write("hosts", "");
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        // The system clears the directory of temporary files too.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An attacker's name server. It ends when dropped.
struct Rebinding {
    ending: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Rebinding {
    /// Serves on the thread's host, which is at `good`.
    fn serve(good: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((good, 53))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        let server = thread::spawn(move || {
            let (mut looks, mut query) = (0, [0; 512]);
            while !told.load(Ordering::Acquire) {
                let Ok((len, from)) = socket.recv_from(&mut query) else {
                    continue;
                };
                let answer = answer(&query[..len], |name| addresses(name, good, &mut looks));
                if let Some(answer) = answer {
                    // The client that asked may be gone.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Rebinding {
            ending,
            server: Some(server),
        })
    }
}

impl Drop for Rebinding {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Some(server) = self.server.take() {
            let ended = server.join();
            debug_assert!(ended.is_ok());
        }
    }
}

/// Returns private addresses, and for two names a good one too: at every other look-up, or beside them.
fn addresses(name: &str, good: Ipv4Addr, looks: &mut u64) -> Vec<Ipv4Addr> {
    let private = [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::new(192, 168, 1, 1),
        Ipv4Addr::new(169, 254, 169, 254),
    ];
    match name {
        "alternating.test" => {
            *looks += 1;
            vec![if *looks % 2 == 1 { good } else { private[0] }]
        }
        "mixed.test" => [&private[..], &[good]].concat(),
        _ => private.to_vec(),
    }
}

/// Returns the answer to a query (RFC 1035 section 4), which must not be cached; none to other packets.
fn answer(query: &[u8], addresses: impl FnOnce(&str) -> Vec<Ipv4Addr>) -> Option<Vec<u8>> {
    let (mut labels, mut at) = (Vec::new(), 12);
    while let len @ 1.. = usize::from(*query.get(at)?) {
        labels.push(core::str::from_utf8(query.get(at + 1..=at + len)?).ok()?);
        at += 1 + len;
    }
    let question = query.get(12..at + 5)?;
    // Type A; there are no others.
    let addresses = match question[question.len() - 4..] {
        [0, 1, 0, 1] => addresses(&labels.join(".")),
        _ => Vec::new(),
    };
    let flags = [0x81, 0x80];
    let counts = [0, 1, 0, addresses.len() as u8, 0, 0, 0, 0];
    let mut answer = [&query[..2], &flags, &counts, question].concat();
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

const NAMES: [&str; 3] = ["private.test", "alternating.test", "mixed.test"];

fn names_that_lead_astray(judge: Judge) {
    let etc = Etc::new();
    let render = render_changed(Role::Server, allowing_plaintext);
    let bed = Fixture::up_idle_by(render, etc.program());
    let IpAddr::V4(good) = bed.v4("content") else {
        unreachable!("the address of IPv4");
    };
    etc.ask(good.into());
    let names = inside(&namespace(&bed, "content"), || Rebinding::serve(good));
    let _names = names.expect("a name server");
    // A program on the server itself.
    let trap = inside(&namespace(&bed, "server"), || {
        TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80)))
    });
    let trap = trap.expect("it listens");
    trap.set_nonblocking(true).expect("a socket");
    let mut world = SocksFixture::of(bed).knowing_socks_client();
    let client = Client::of_fixture(&world);
    let mut load = Load::start(&mut world.bed, judge);
    let before = counters(&world.bed);
    // By name: the number of connections, and the number of refusals.
    let mut heard = [[0u64; 2]; NAMES.len()];
    let kept = load.during(&mut world.bed, |attack| {
        keep_pace(attack, 4 * NAMES.len(), |n| {
            let name = Destination::Name(NAMES[n % NAMES.len()].to_owned(), 80);
            let answer = client.answer(&client.asks(&name), 14);
            match answer.get(4..6) {
                Some([5, 0]) => heard[n % NAMES.len()][0] += 1,
                Some([5, 2]) => heard[n % NAMES.len()][1] += 1,
                _ => panic!("{}: {answer:?}", NAMES[n % NAMES.len()]),
            }
        });
    });
    println!("{heard:?}");
    kept.expect_enough("names");
    let expected = [[false, true], [true, true], [true, false]];
    assert_eq!(heard.map(|h| h.map(|n| n > 0)), expected, "{heard:?}");
    let after = counters(&world.bed);
    let [served, forbidden] = [0, 1].map(|which| heard.iter().map(|h| h[which]).sum::<u64>());
    assert_eq!(grown(&before, &after, "forbidden"), forbidden);
    assert_eq!(grown(&before, &after, "connected"), served + USERS as u64);
    let came = trap.accept().map(|(_, from)| from);
    let nobody = came.as_ref().err().map(io::Error::kind);
    assert_eq!(nobody, Some(io::ErrorKind::WouldBlock), "{came:?}");
    load.expect_memory_back(&mut world.bed);
}

#[test]
#[ignore = "network"]
fn names_that_lead_astray_lead_nowhere() {
    names_that_lead_astray(Judge::Service);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn names_that_lead_astray_cost_users_no_rate() {
        names_that_lead_astray(Judge::Clock);
    }
}
