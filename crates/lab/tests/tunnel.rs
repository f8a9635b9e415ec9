//! Inner flows over paths alone and through the tunnel, in the simulator.

use braid_lab::tunnel::{self, Mode, Row, TunnelCase, TunnelRun};

/// Two paths of 5 Mb/s without loss, 40 and 100 ms, with queues of 100 ms.
const CLEAN: &str = "5mbit,40ms,0%,100ms;5mbit,100ms,0%,100ms";

fn case(paths: &str, inner: &str, size: &str) -> TunnelCase {
    TunnelCase {
        paths: paths.parse().unwrap(),
        inner: inner.parse().unwrap(),
        size: size.parse().unwrap(),
        queue: 50,
        runs: 2,
        seed: 1,
    }
}

fn run(case: &TunnelCase, mode: Mode) -> Vec<TunnelRun> {
    tunnel::run(case, mode, 2, &|| ()).unwrap()
}

/// A download of 1 MiB over QUIC takes a round trip for the handshake and one for the request, and at 5 Mb/s 1.76 s
/// for the payload with headers of 5 %. Slow start and the 200 ms in which BBR measures the round trip
/// cost less than 250 ms.
#[test]
fn a_download_alone_has_the_rate_of_its_path() {
    for inner in ["quic:bbr", "quic:cubic"] {
        let runs = run(&case(CLEAN, inner, "1M"), Mode::Single);
        for result in runs {
            assert!(result.completed);
            let seconds = 8.388_608 / result.goodput;
            assert!((1.80..2.10).contains(&seconds), "{inner}: {seconds} s");
            // The path of 100 ms is slower, so that of 40 ms counts.
            let [first, second] = result.bytes_by_path[..] else {
                panic!("{result:?}");
            };
            assert!(first > 1 << 20 && second == 0, "{first}, {second}");
            assert!(
                result
                    .delays_us
                    .iter()
                    .all(|us| (20_000..125_000).contains(us))
            );
        }
    }
}

/// Threads and earlier runs change nothing, although keys and IDs of QUIC are otherwise random.
#[test]
fn the_same_seed_gives_the_same_runs() {
    for inner in ["quic:bbr", "quic:cubic", "udp:2mbit:1000", "voip"] {
        let lossy = case(
            "5mbit,40ms,1%,jitter=5ms/reorder;5mbit,100ms,0%",
            inner,
            "200k",
        );
        for mode in Mode::ALL {
            let again = tunnel::run(&lossy, mode, 1, &|| ()).unwrap();
            assert_eq!(run(&lossy, mode), again, "{inner} {mode:?}");
        }
    }
}

/// A call over a path of 5 Mb/s: 200 bytes take 0.32 ms and the propagation.
#[test]
fn a_call_alone_has_the_delay_of_its_path() {
    let runs = run(&case(CLEAN, "voip", "20000"), Mode::Single);
    for result in runs {
        assert_eq!((result.packets, result.lost, result.reordered), (100, 0, 0));
        assert_eq!(result.delays_us, [20_320; 100]);
        assert!((result.goodput - 0.08).abs() < 1e-9, "{}", result.goodput);
    }
}

#[test]
fn jitter_reorders_a_flow_alone_and_loss_is_counted() {
    let paths = "5mbit,40ms,10%,jitter=20ms/reorder";
    let [first, _] = &run(&case(paths, "udp:2mbit:1000", "1M"), Mode::Single)[..] else {
        panic!("two runs");
    };
    // 1049 packets: the standard deviation of the losses is sqrt(1049 * 0.1 * 0.9) = 9.7.
    assert_eq!(first.packets, 1049);
    assert!((75..135).contains(&first.lost), "{}", first.lost);
    assert!(first.reordered > 100, "{}", first.reordered);
}

/// In every mode a flow comes through whole, in order, and without a copy; the oracle checks the bytes. The download
/// fills queues until they drop packets.
#[test]
fn every_mode_carries_every_flow() {
    for (inner, size) in [
        ("quic:bbr", "512k"),
        ("udp:2mbit:1000", "200k"),
        ("voip", "20k"),
    ] {
        let case = case(CLEAN, inner, size);
        for mode in Mode::ALL {
            for result in run(&case, mode) {
                assert!(result.completed, "{inner} {mode:?}");
                assert_eq!(result.reordered, 0, "{inner} {mode:?}");
                let is_lossless = result.lost == 0 || inner == "quic:bbr";
                assert!(is_lossless, "{inner} {mode:?}: {}", result.lost);
            }
        }
    }
}

/// Two alike paths together carry more than one.
#[test]
fn aggregate_beats_the_best_path_alone() {
    let alike = case("5mbit,40ms,0%,100ms;5mbit,40ms,0%,100ms", "quic:bbr", "2M");
    let [alone, both] =
        [Mode::Single, Mode::Aggregate].map(|mode| tunnel::goodput(&run(&alike, mode)));
    assert!(both > 1.4 * alone, "{both} and {alone} Mbit/s");
}

#[test]
fn single_takes_the_path_with_the_higher_goodput() {
    let case = case("1mbit,20ms,0%;5mbit,40ms,0%", "quic:cubic", "256k");
    let row = Row::new(&case, Mode::Single, &run(&case, Mode::Single));
    assert_eq!(row.bytes_by_path[0], 0);
    assert!(row.bytes_by_path[1] > 2 * (256 << 10));
}
