//! The engine and the kernel's Multipath TCP with a middlebox between them that changes single segments:
//! rules of nftables at the kernel's host edit received and sent segments. Everything arrives nevertheless,
//! and the kernel's counters show the changes.

use super::interop::{Interop, RECEIVED, SENT, Side};

/// Bytes that each side sends.
const BYTES: u64 = 5_000_000;

/// A transfer with a rule of nftables in its way.
struct Case {
    name: &'static str,
    /// The hook of the rule: before the kernel receives or behind its sending.
    hook: &'static str,
    rule: &'static str,
    /// DSS checksums are on.
    checksum: bool,
    /// The connection falls back to TCP, as its opener sees it.
    fallback: bool,
    /// Most subflows at once as the engine sees them, including one that is reset later.
    subflows: usize,
    /// Least growth of the kernel's counters; a counter with 0 must not grow.
    counters: &'static [(&'static str, u64)],
}

const PLAIN: Case = Case {
    name: "nothing is changed",
    hook: RECEIVED,
    rule: "accept",
    checksum: false,
    fallback: false,
    subflows: 2,
    counters: &[("MPJoinAckRx", 1)],
};

/// The engine opens the connection.
const ENGINE: [Case; 8] = [
    PLAIN,
    Case {
        name: "options taken from the SYN",
        rule: "tcp flags & (syn|ack) == syn reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[("MPCapableSYNRX", 0), ("MPJoinSynRx", 0)],
        ..PLAIN
    },
    Case {
        name: "options taken from the SYN/ACK",
        hook: SENT,
        rule: "tcp flags & (syn|ack) == (syn|ack) reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[("MPCapableSYNRX", 1), ("MPCapableFallbackACK", 1)],
        ..PLAIN
    },
    Case {
        name: "options taken from the third ACK on",
        rule: "tcp flags & syn == 0 reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[("MPCapableSYNRX", 1), ("MPCapableFallbackACK", 1)],
        ..PLAIN
    },
    Case {
        name: "options taken from the data of one path",
        rule: "iifname link2 meta length > 500 reset tcp option mptcp",
        counters: &[("MPJoinAckRx", 1), ("MPRstTx", 1)],
        ..PLAIN
    },
    Case {
        name: "a join of an unknown token",
        rule: "tcp flags & (syn|ack) == syn tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        counters: &[("MPJoinNoTokenFound", 1), ("MPJoinAckRx", 0)],
        ..PLAIN
    },
    Case {
        name: "a wrong HMAC in the third ACK of a join",
        rule: "tcp flags & (syn|ack) == ack tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        counters: &[("MPJoinAckHMacFailure", 1), ("MPJoinAckRx", 0)],
        ..PLAIN
    },
    Case {
        name: "a wrong HMAC in the SYN/ACK of a join",
        hook: SENT,
        rule: "tcp flags & (syn|ack) == (syn|ack) tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        counters: &[("MPJoinSynRx", 1), ("MPJoinAckRx", 0)],
        ..PLAIN
    },
];

/// The kernel opens the connection.
const KERNEL: [Case; 8] = [
    Case {
        counters: &[("MPJoinSynAckRx", 1)],
        ..PLAIN
    },
    Case {
        name: "options taken from the SYN",
        hook: SENT,
        rule: "tcp flags & (syn|ack) == syn reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[
            ("MPCapableSYNTX", 1),
            ("MPCapableFallbackSYNACK", 1),
            ("MPJoinSynTx", 0),
        ],
        ..PLAIN
    },
    Case {
        name: "options taken from the SYN/ACK",
        rule: "tcp flags & (syn|ack) == (syn|ack) reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[("MPCapableSYNACKRX", 0), ("MPCapableFallbackSYNACK", 1)],
        ..PLAIN
    },
    Case {
        name: "options taken from the third ACK on",
        hook: SENT,
        rule: "tcp flags & syn == 0 reset tcp option mptcp",
        fallback: true,
        subflows: 1,
        counters: &[("MPCapableSYNACKRX", 1)],
        ..PLAIN
    },
    Case {
        name: "options taken from the data of one path",
        hook: SENT,
        rule: "oifname link2 meta length > 500 reset tcp option mptcp",
        counters: &[("MPJoinSynAckRx", 1), ("MPRstRx", 1)],
        ..PLAIN
    },
    Case {
        name: "a join of an unknown token",
        hook: SENT,
        rule: "tcp flags & (syn|ack) == syn tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        counters: &[("MPJoinSynTx", 1), ("MPJoinSynAckRx", 0)],
        ..PLAIN
    },
    Case {
        name: "a wrong HMAC in the third ACK of a join",
        hook: SENT,
        rule: "tcp flags & (syn|ack) == ack tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        // A subflow that waits for the fourth ACK does not accept our RST as an answer: the kernel resets it
        // itself.
        counters: &[("MPJoinSynAckRx", 1), ("MPRstTx", 1)],
        ..PLAIN
    },
    Case {
        name: "a wrong HMAC in the SYN/ACK of a join",
        rule: "tcp flags & (syn|ack) == (syn|ack) tcp option mptcp subtype 1 tcp option @30,32,32 set 0x12345678",
        subflows: 1,
        counters: &[("MPJoinSynAckHMacFailure", 1)],
        ..PLAIN
    },
];

/// Either side opens the connection.
const EITHER: [Case; 2] = [
    Case {
        name: "a segment to the kernel is changed",
        rule: "iifname link2 meta length > 500 limit rate 1/hour burst 1 packets @ih,0,32 set 0x01020304",
        checksum: true,
        counters: &[("DataCsumErr", 1), ("MPFailTx", 1)],
        ..PLAIN
    },
    Case {
        name: "a segment to the engine is changed",
        hook: SENT,
        rule: "oifname link2 meta length > 500 limit rate 1/hour burst 1 packets @ih,0,32 set 0x01020304",
        checksum: true,
        counters: &[("MPFailRx", 1)],
        ..PLAIN
    },
];

impl Case {
    fn run(&self, interop: &mut Interop) {
        interop.checksum = self.checksum;
        interop.edit_segments(self.hook, self.rule);
        let count = |interop: &Interop| -> Vec<u64> {
            let names = self.counters.iter().map(|(name, _)| *name);
            names.map(|name| interop.count(name)).collect()
        };
        let before = count(interop);
        let name = self.name;
        interop.hold();
        let peers = interop.start();
        // The transfer goes on until all has happened.
        for ((counter, least), before) in self.counters.iter().zip(&before) {
            interop.wait_until(&format!("{counter} to grow: {name}"), || {
                interop.count(counter) >= before + least
            });
        }
        let [engine, kernel] = interop.reports(peers);
        let opener = match interop.client {
            Side::Engine => &engine,
            Side::Kernel => &kernel,
        };
        assert_eq!(opener["fallback"], self.fallback, "{name}: {opener}");
        assert_eq!(engine["subflows"], self.subflows, "{name}: {engine}");
        for ((counter, least), (after, before)) in
            self.counters.iter().zip(count(interop).iter().zip(before))
        {
            let grew = after - before;
            let expected = if *least == 0 {
                0..=0
            } else {
                *least..=u64::MAX
            };
            assert!(expected.contains(&grew), "{name}: {counter} grew by {grew}");
        }
        let delete = ["delete", "table", "inet", "middlebox"];
        interop.bed.run("kernel", "nft", &delete);
    }
}

/// Runs `cases`, and then those that do not depend on the side that opens the connection.
fn transfer_through(client: Side, cases: &[Case]) {
    let mut interop = Interop::lossless(client, 2);
    interop.bytes = BYTES;
    for case in cases.iter().chain(&EITHER) {
        case.run(&mut interop);
    }
}

#[test]
#[ignore = "network"]
fn engine_to_kernel_through_a_middlebox() {
    transfer_through(Side::Engine, &ENGINE);
}

#[test]
#[ignore = "network"]
fn kernel_to_engine_through_a_middlebox() {
    transfer_through(Side::Kernel, &KERNEL);
}
