//! A box with a choice of servers shows them, and takes a command which to use. Both are the same machine, by
//! its two addresses.

use braid_proxy::status::ServerStatus;
use braid_testbed::Role;

use super::control::{ask, expect_text, status};
use super::fixture::{Fixture, render_changed, stderr};

/// Returns the configuration with the box's one `[[server]]` split in two: `four` and `six`.
fn split(text: &str) -> String {
    let (rest, server) = text.split_once("[[server]]").expect("a server");
    let (_, server) = server.split_once("\naddress = [").expect("addresses");
    let (list, login) = server.split_once("]\n").expect("a login");
    let (four, six) = list.split_once(", ").expect("two addresses");
    let entry =
        |name, address| format!("[[server]]\nname = \"{name}\"\naddress = {address}\n{login}\n");
    format!("{rest}{}{}", entry("four", four), entry("six", six))
}

fn up() -> Fixture {
    let mut bed = Fixture::up_with(render_changed(Role::Box, |text| split(&text)));
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=10mbit");
    bed.wait_for("both servers to answer over both links", |bed| {
        let known = |s: &ServerStatus| s.measured.paths.iter().all(|p| p.delay_ms.is_some());
        status(bed, "box").servers.iter().all(known)
    });
    bed
}

#[test]
#[ignore = "network"]
fn servers_are_measured_when_somebody_asks() {
    let mut bed = up();
    let table = expect_text(&bed, "box", &["servers"]);
    assert!(
        !table.contains("Mbit/s"),
        "nobody has sent anything: {table}"
    );
    let table = expect_text(&bed, "box", &["servers", "--probe"]);
    println!("{table}");
    let mut lines = table.lines();
    let heads: Vec<&str> = lines.next().expect("heads").split_whitespace().collect();
    let expected = [
        "server", "state", "B_1", "D_1", "B_2", "D_2", "B_s", "D_s", "chosen",
    ];
    assert_eq!(heads, expected);
    assert_eq!(lines.count(), 2, "{table}");
    // The soak judges the measured rates: a train that a busy machine delays measures the machine.
    bed.wait_for("two servers to be measured over two links", |bed| {
        expect_text(bed, "box", &["servers", "--probe"]);
        measured(bed).len() == 4
    });
}

/// Returns the measured rates of servers over links, as shares of the links' rates.
fn measured(bed: &Fixture) -> Vec<f64> {
    let servers = status(bed, "box").servers.into_iter();
    let shares = servers.flat_map(|server| {
        let paths = server.measured.paths.into_iter().zip([20e6, 10e6]);
        paths.filter_map(|(path, rate)| Some(path.bandwidth? / rate))
    });
    shares.collect()
}

#[test]
#[ignore = "network"]
fn a_server_is_used_by_name_and_left_to_the_box_again() {
    let mut bed = up();
    let current = |bed: &Fixture| {
        let servers = status(bed, "box").servers.into_iter();
        let current = servers.filter(|s| s.current).map(|s| s.name);
        current.collect::<Vec<_>>()
    };
    assert_eq!(current(&bed), ["four"], "the order of the file");
    let said = expect_text(&bed, "box", &["server", "six"]);
    assert_eq!(said, "new connections go to six while it answers\n");
    assert_eq!(current(&bed), ["six"]);
    let expected = bed.offer("large", 4_000_000);
    let download = bed.curl("large?rate=500k");
    let six = bed.v6("server");
    bed.wait_for("some of it to come that way", |bed| {
        let connections = status(bed, "box").connections;
        let users = connections.iter().filter(|c| c.destination.is_some());
        users.flat_map(|c| &c.paths).any(|path| path.remote == six)
    });
    download.expect_bytes(&expected);
    let said = expect_text(&bed, "box", &["server", "auto"]);
    assert_eq!(said, "the box chooses the server\n");
    let wanted = status(&bed, "box").select.expect("of a box").wanted;
    assert_eq!(wanted, None);
    let unknown = ask(&bed, "box", &["server", "paris"]);
    assert_eq!(unknown.status.code(), Some(2));
    let why = "braid: the box refuses the command: there is no server \"paris\"; \
               the servers are four, six, or auto\n";
    assert_eq!(stderr(&unknown), why);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn measured_rates_are_those_of_the_links() {
        let bed = up();
        // A train that a busy machine delays measures the machine, so further ones are permitted.
        let plausible = (0..5).any(|_| {
            expect_text(&bed, "box", &["servers", "--probe"]);
            let shares = measured(&bed);
            println!("{shares:?}");
            shares.len() == 4 && shares.iter().all(|share| (0.6..1.2).contains(share))
        });
        assert!(plausible, "{:?}", measured(&bed));
    }
}
