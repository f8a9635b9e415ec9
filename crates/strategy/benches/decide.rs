//! Measures the time of one decision with four subflows. The budget is 200 ns (`docs/extending.md`). For
//! comparison, a packet of 1,500 bytes takes 1.2 µs at 10 Gbit/s.

use std::hint::black_box;

use braid_engine::strategy::{FlowSize, SendView, Writer};
use braid_strategy::{by_name, names};
use braid_wire::Rng;
use criterion::{Criterion, criterion_group, criterion_main};

#[expect(dead_code, reason = "the tests need more of it")]
#[path = "../tests/decisions/views.rs"]
mod views;

use views::{full, paced, sent_range, single, subflow, view};

/// Measures the most expensive view: the fastest subflow is full, the pacer holds the next one, and two
/// have room and something to copy.
fn decide(c: &mut Criterion) {
    let data = sent_range(0, 0, 10);
    let subflows = [
        full(subflow(0, 30)),
        paced(subflow(1, 50)),
        single(subflow(2, 70), data),
        single(subflow(3, 90), data),
    ];
    let view = SendView {
        writer: Writer::Done,
        flow_size: FlowSize::Declared(512 << 10),
        oldest: Some(data),
        ..view(&subflows)
    };
    let mut important = view;
    important.unsent_by_urgency[1] = 50_000;
    let mut group = c.benchmark_group("decide");
    let mut measure = |name: &str, label: &str, view: &SendView<'_>| {
        let mut strategy = by_name(name).expect("a strategy that exists");
        let mut rng = Rng::for_component(1, 1);
        group.bench_function(label, |b| {
            b.iter(|| strategy.next(black_box(view), &mut rng));
        });
    };
    for name in names().chain(["maps:single", "maps:plr=measured"]) {
        measure(name, name, &view);
    }
    measure("po", "po, important data", &important);
    group.finish();
}

criterion_group!(benches, decide);
criterion_main!(benches);
