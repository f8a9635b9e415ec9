//! The example of an engine on a TUN device, with the kernel's Multipath TCP as its server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::thread;

use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::mptcp_info;

use crate::support::{TIMEOUT, World, wait_for};

#[expect(dead_code, reason = "a program of its own has a `main`")]
#[path = "../../../linux/examples/fetch.rs"]
mod fetch;

const PAGE: usize = 1 << 20;

/// Answers one request, the second half of the page once the connection has two subflows.
fn serve(listener: &TcpListener) {
    let accepted = kernel_tcp::accept_within(listener, "cubic", TIMEOUT).unwrap();
    let mut stream = accepted.expect("the client connects");
    kernel_tcp::set_stall(&stream, TIMEOUT).unwrap();
    let mut request = [0; 256];
    let read = stream.read(&mut request).unwrap();
    assert!(request[..read].starts_with(b"GET / HTTP/1.0\r\n"));
    stream.write_all(&[b'1'; PAGE / 2]).unwrap();
    let count = || mptcp_info::subflows(stream.as_fd()).map_or(0, |all| all.len());
    let seen = || format!("{} subflows", count());
    wait_for("both addresses have a subflow", seen, || {
        (count() == 2).then_some(())
    });
    stream.write_all(&[b'2'; PAGE / 2]).unwrap();
}

#[test]
#[ignore = "network"]
fn the_example_fetches_over_two_subflows_from_a_kernel() {
    let world = World::new(&["host"]);
    world.ip("host", "addr add 10.9.0.1/32 dev lo");
    world.ip("host", "mptcp limits set subflows 4");
    let server: SocketAddr = ([10, 9, 0, 1], 8080).into();
    let fetched = world.inside("host", || {
        let listener = kernel_tcp::listen(server, Transport::Mptcp, "cubic").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener));
            let addresses = [[10, 9, 1, 2].into(), [10, 9, 2, 2].into()];
            fetch::fetch(server, &addresses).map_err(|e| e.to_string())
        })
    });
    let fetched = fetched.unwrap();
    assert_eq!(fetched.answer.len(), PAGE);
    assert!(fetched.answer.ends_with(&[b'2'; PAGE / 2]));
    assert!(fetched.is_mptcp);
    assert_eq!(fetched.subflows, 2);
}
