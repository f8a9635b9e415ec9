//! The engine against the kernel's own Multipath TCP, to the same kernel peer, over two veth links
//! without emulation: interleaved pairs, median of their ratios, processor time for each Gbit.
//!
//! `make bench`, or `cargo bench -p braid --bench speed -- PAIRS`. It measures; it fails only
//! where a transfer does.

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use more of it"
)]
#[path = "../tests/e2e/bed.rs"]
mod bed;

use std::fs;

use serde_json::Value;

use self::bed::{Background, Bed};

const DESCRIPTION: &str = r#"
name = "NAME"
congestion = "cubic"

[[host]]
name = "near"
role = "router"
gateway = "far"

[[host]]
name = "far"
role = "router"

[[lan]]
name = "veth1"
hosts = ["near", "far"]

[[lan]]
name = "veth2"
hosts = ["near", "far"]
"#;

const PORT: u16 = 7006;
const BYTES: u64 = 4_000_000_000;
const PAIRS: usize = 5;

/// Who the near end is; the far end is always kernel sockets.
#[derive(Clone, Copy)]
enum Near {
    Engine,
    Kernel,
}

/// Which way the bytes go, as the near end sees it.
#[derive(Clone, Copy)]
enum Way {
    Sends,
    Receives,
}

struct Measured {
    gbit_s: f64,
    /// Of the near end, where it is the engine.
    cpu_per_gbit: Option<f64>,
}

fn main() {
    let pairs = std::env::args()
        .filter_map(|word| word.parse().ok())
        .next()
        .unwrap_or(PAIRS);
    let bench = Bench::new();
    println!(
        "{:<10}{:>12}{:>12}{:>8}{:>22}",
        "engine", "Gbit/s", "kernel", "ratio", "engine CPU s/Gbit"
    );
    for (way, name, goal) in [(Way::Sends, "sends", 1.5), (Way::Receives, "receives", 0.8)] {
        let mut ratios = Vec::new();
        for _ in 0..pairs {
            let engine = bench.transfer(Near::Engine, way);
            let kernel = bench.transfer(Near::Kernel, way);
            ratios.push(engine.gbit_s / kernel.gbit_s);
            println!(
                "{name:<10}{:>12.2}{:>12.2}{:>8.2}{:>22.4}",
                engine.gbit_s,
                kernel.gbit_s,
                engine.gbit_s / kernel.gbit_s,
                engine.cpu_per_gbit.unwrap_or(f64::NAN)
            );
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "{name:<10} median ratio {:.2} (goal {goal})\n",
            ratios[ratios.len() / 2]
        );
    }
}

struct Bench {
    bed: Bed,
    config: String,
}

impl Bench {
    fn new() -> Self {
        let bed = Bed::of(DESCRIPTION);
        let gateways = [bed.v4_of("far", 0), bed.v4_of("far", 1)];
        let mut text = "lan = \"lo\"\n".to_owned();
        for (link, gateway) in ["veth1", "veth2"].into_iter().zip(gateways) {
            text.push_str(&format!(
                "[[link]]\ninterface = \"{link}\"\ngateway = \"{gateway}\"\n"
            ));
        }
        text.push_str(&format!(
            "[[server]]\naddress = \"{}\"\nsecret = \"vXbm2Kx1VQk0pQm7cSg0o3Yd8nq4cT5zRfWl6uJh9Ae=\"\n",
            gateways[0]
        ));
        let config = bed.testbed.state_dir().join("engine.toml");
        fs::write(&config, text).expect("the state directory is writable");
        // The kernel's client chooses the link by the source address of a subflow.
        let second = bed.v4_of("near", 1).to_string();
        let gateway = gateways[1].to_string();
        bed.run(
            "near",
            "ip",
            &[
                "mptcp", "endpoint", "add", &second, "dev", "veth2", "subflow",
            ],
        );
        bed.run(
            "near",
            "ip",
            &[
                "route", "add", "default", "via", &gateway, "dev", "veth2", "table", "102",
                "congctl", "cubic",
            ],
        );
        // Answers come in by a link the main table would not take to their source.
        bed.run("near", "sysctl", &["-qw", "net.ipv4.conf.all.rp_filter=2"]);
        bed.run(
            "near",
            "ip",
            &["rule", "add", "from", &second, "table", "102"],
        );
        Bench {
            bed,
            config: config.display().to_string(),
        }
    }

    fn transfer(&self, near: Near, way: Way) -> Measured {
        let bytes = BYTES.to_string();
        let address = format!("{}:{PORT}", self.bed.v4_of("far", 0));
        let sending = ["--fast", "--send", &bytes];
        let receiving = ["--fast", "--expect", &bytes];
        let (near_does, far_does) = match way {
            Way::Sends => (sending, receiving),
            Way::Receives => (receiving, sending),
        };
        let far = self
            .bed
            .kernel_peer("far", &[&["listen", &address], &far_does[..]].concat());
        let near = match near {
            Near::Engine => {
                let connect = ["connect", "-c", &self.config, &address];
                self.bed
                    .engine_peer("near", &[&connect[..], &near_does[..]].concat())
            }
            Near::Kernel => self
                .bed
                .kernel_peer("near", &[&["connect", &address], &near_does[..]].concat()),
        };
        let (near, far) = (lines(near), lines(far));
        for report in [&near[0], &far[0]] {
            assert_eq!(report["fallback"], false, "{report}");
            assert_eq!(report["subflows"], 2, "{report}");
        }
        let receiver = match way {
            Way::Sends => &far[0],
            Way::Receives => &near[0],
        };
        let seconds = receiver["received"]["seconds"].as_f64().expect("a number");
        let gbit = BYTES as f64 * 8.0 / 1e9;
        let cpu = near.get(1).and_then(|cost| cost["cpu_seconds"].as_f64());
        Measured {
            gbit_s: gbit / seconds,
            cpu_per_gbit: cpu.map(|cpu| cpu / gbit),
        }
    }
}

/// The lines of JSON a peer printed, its address left out.
fn lines(mut peer: Background) -> Vec<Value> {
    let output = peer.wait();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", bed::stderr(&output));
    printed
        .lines()
        .filter(|line| !line.contains("listening"))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}
