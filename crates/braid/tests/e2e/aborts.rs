//! The engine or the kernel's Multipath TCP aborts a connection with two subflows in the middle of a
//! transfer. A single MP_FASTCLOSE (RFC 8684 section 3.5) tells the peer.

use super::interop::{Interop, Side};

/// The side that aborts receives a quarter of what the other one has to send.
fn aborted(client: Side, aborting: Side) {
    let mut interop = Interop::lossless(client, 2);
    let [bytes, quarter] = [interop.bytes, interop.bytes / 4].map(|bytes| bytes.to_string());
    let sends = ["--send", &bytes, "--seed", "1"];
    let aborts = ["--expect", &bytes, "--verify", "1", "--abort", &quarter];
    let (peers, engine_says, kernel_says, [told, untold]) = match aborting {
        Side::Engine => (
            interop.start_as(&aborts, &sends),
            "Aborted",
            "reset by peer",
            ["MPFastcloseRx", "MPFastcloseTx"],
        ),
        Side::Kernel => (
            interop.start_as(&sends, &aborts),
            "Reset",
            "bytes",
            ["MPFastcloseTx", "MPFastcloseRx"],
        ),
    };
    interop.wait_for_join();
    let [engine, kernel] = interop.ends(peers);
    assert_eq!(engine["subflows"], 2, "{engine}");
    for (report, error) in [(&engine, engine_says), (&kernel, kernel_says)] {
        let said = report["error"].as_str().unwrap_or_default();
        assert!(said.contains(error), "{report}");
    }
    assert!(interop.count(told) >= 1, "{told}");
    assert_eq!(interop.count(untold), 0, "{untold}");
    // Nothing of the connection is left at the kernel.
    assert_eq!(interop.count("MPCurrEstab"), 0);
}

// Conforms: 8684-3.5-4
#[test]
#[ignore = "network"]
fn engine_aborts_what_it_opened() {
    aborted(Side::Engine, Side::Engine);
}

// Conforms: 8684-3.5-4
#[test]
#[ignore = "network"]
fn engine_aborts_what_the_kernel_opened() {
    aborted(Side::Kernel, Side::Engine);
}

// Conforms: 8684-3.5-2
#[test]
#[ignore = "network"]
fn kernel_aborts_what_it_opened() {
    aborted(Side::Kernel, Side::Kernel);
}

// Conforms: 8684-3.5-2
#[test]
#[ignore = "network"]
fn kernel_aborts_what_the_engine_opened() {
    aborted(Side::Engine, Side::Kernel);
}
