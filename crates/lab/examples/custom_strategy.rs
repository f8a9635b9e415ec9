//! A strategy of one's own, in the laboratory and in box and server (docs/strategies.md).
//!
//! ```sh
//! cargo run --profile demo -p braid-lab --example custom_strategy -- fct \
//!     --paths '20mbit,30ms,0%;10mbit,70ms,0%' --size 64k,1M --strategy minrtt,spill
//! ```

use std::process::ExitCode;
use std::time::Duration;

use braid_engine::strategy::{Decision, SendView, Strategy, SubflowView};
use braid_strategy::Registry;
use braid_strategy::parts::again;
use braid_strategy::parts::usable::{by_rtt, progressing, usable};
use braid_wire::Rng;

/// Sends on the path of lowest round-trip time. A slower path gets data only while more is left to send than the
/// fastest one carries within the round trip of the slower one.
#[derive(Debug)]
struct Spill;

impl Strategy for Spill {
    fn name(&self) -> &'static str {
        "spill"
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        // Data of a path that failed has to go on elsewhere.
        if let Some(lost) = again::lost(view) {
            return lost;
        }
        let fastest = progressing(view).min_by_key(|s| by_rtt(s));
        let Some(fastest) = fastest.filter(|_| view.may_send_new) else {
            return Decision::WAIT;
        };
        let worthwhile =
            |s: &SubflowView| s.id == fastest.id || view.unsent > carried(fastest, s.srtt);
        let ready = usable(view).filter(|s| s.ready && worthwhile(s));
        match ready.min_by_key(|s| by_rtt(s)) {
            Some(subflow) => Decision::new_on(subflow.id),
            None => Decision::WAIT,
        }
    }
}

/// Returns the bytes that a subflow sends within `time`: a window in each round trip.
fn carried(subflow: &SubflowView, time: Duration) -> u64 {
    (subflow.cwnd as f64 * time.as_secs_f64() / subflow.srtt.as_secs_f64()) as u64
}

fn main() -> ExitCode {
    let strategies = Registry::default().with("spill", || Box::new(Spill));
    // Before anything else, so that all lookups know the name.
    strategies.install().expect("nothing was looked up before");
    // `braid::main()` here makes box and server: then configurations may say `strategy = "spill"`.
    braid_lab::command::main()
}

#[cfg(test)]
mod tests {
    use braid_engine::SubflowId;
    use braid_links::{Rate, Settings};
    use braid_sim::transfer::{Direction, PathSettings, Transfer, TransferConfig};
    use braid_wire::Instant;

    use super::*;

    #[test]
    fn little_data_waits_for_the_fast_path() {
        let subflow = |id, ms| SubflowView::new(SubflowId(id), Duration::from_millis(ms));
        let mut both = [subflow(0, 30), subflow(1, 70)];
        both[0].ready = false;
        both[0].in_flight = both[0].cwnd;
        let decide = |unsent| {
            let view = SendView::new(Instant::ZERO, &both, unsent);
            Spill.next(&view, &mut Rng::from_seed([0; 32]))
        };
        assert_eq!(decide(10_000), Decision::WAIT);
        assert_eq!(decide(1_000_000), Decision::new_on(SubflowId(1)));
    }

    #[test]
    fn a_transfer_uses_both_paths_in_the_simulator() {
        let strategies = Registry::default().with("spill", || Box::new(Spill));
        strategies.install().expect("nothing was looked up before");
        let path = |mbit: u64, rtt_ms: u64| {
            PathSettings::both(Settings {
                rate: Rate::bits_per_second(mbit * 1_000_000),
                delay: Duration::from_millis(rtt_ms) / 2,
                ..Settings::default()
            })
        };
        let paths = [path(20, 30), path(10, 70)];
        let config = TransferConfig {
            strategy: "spill",
            ..TransferConfig::new(&paths, 4 << 20, Direction::Down)
        };
        let mut transfer = Transfer::start(1, &config).expect("two paths");
        assert!(transfer.run(Duration::from_secs(10)));
        for (_, down) in &transfer.links {
            let delivered = transfer.world.counters(*down).delivered.bytes;
            assert!(delivered > 1 << 20, "{delivered} bytes on one of the paths");
        }
    }
}
