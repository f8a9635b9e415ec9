use super::*;

const MS: Duration = Duration::from_millis(1);

/// A flow over paths that deliver late by the given milliseconds, with the packets lost and given up.
struct Script {
    flow: ReceiveFlow,
    view: PathsView,
    now: Instant,
    lost: Vec<(u64, u8)>,
    missing: u64,
}

impl Script {
    fn new(lateness: &[u64]) -> Self {
        let mut view = PathsView {
            alive: [None; MAX_PATHS],
            round_trip: MS * 40,
            bound: MS * 200,
        };
        for (alive, late) in view.alive.iter_mut().zip(lateness) {
            *alive = Some(Duration::from_millis(*late));
        }
        Script {
            flow: ReceiveFlow::default(),
            view,
            now: Instant::from_millis(1000),
            lost: Vec::new(),
            missing: 0,
        }
    }

    fn take(&mut self, path: usize, sequence: u64, sole: bool, again: bool) -> Outcome {
        let arrival = Arrival {
            path,
            sequence,
            sole,
            hides_losses: true,
            again,
            packet: vec![sequence as u8],
        };
        self.flow.insert(self.now, arrival, &self.view)
    }

    /// Takes packets on a path, which arrive now.
    fn on(&mut self, path: usize, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            assert!(matches!(
                self.take(path, sequence, false, false),
                Outcome::Placed
            ));
        }
    }

    /// Delivers what can be delivered, and returns the numbers.
    fn out(&mut self) -> Vec<u8> {
        let lost = &mut self.lost;
        self.flow
            .prove(self.now, &self.view, |l| lost.push((l.sequence, l.count)));
        let mut out = Vec::new();
        while let Some(packet) = self.flow.pop(self.now, &self.view, &mut self.missing) {
            out.extend(packet);
        }
        self.flow.invariants();
        out
    }

    fn pass(&mut self, millis: u32) {
        self.now += MS * millis;
    }
}

#[test]
fn packets_in_order_are_delivered_at_once() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, 0..3);
    assert_eq!(script.out(), [0, 1, 2]);
    assert!(script.flow.is_settled());
    assert_eq!(script.flow.next_timeout(&script.view), None);
}

#[test]
fn a_packet_on_the_slower_path_is_waited_for() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, [0, 2, 3]);
    assert_eq!(script.out(), [0]);
    assert_eq!(script.lost, []);
    script.on(1, [1]);
    assert_eq!(script.out(), [1, 2, 3]);
    assert_eq!(script.missing, 0);
}

#[test]
fn a_packet_that_every_path_has_passed_is_lost() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, [0, 3]);
    assert_eq!(script.out(), [0]);
    script.on(1, [4]);
    assert_eq!(script.out(), []);
    assert_eq!(script.lost, [(1, 2)]);
    // One of the two comes again.
    script.pass(30);
    assert!(matches!(script.take(0, 1, false, true), Outcome::Placed));
    assert_eq!(script.out(), [1]);
    // The other one is given up a round trip after the request.
    assert_eq!(
        script.flow.next_timeout(&script.view),
        Some(script.now + MS * 10)
    );
    script.pass(10);
    assert_eq!(script.out(), [3, 4]);
    assert_eq!((script.missing, script.lost.len()), (1, 1));
}

#[test]
fn an_idle_path_proves_by_statement() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, [0, 2]);
    assert_eq!(script.out(), [0]);
    script.flow.on_frontier(script.now, 1, 2, &script.view);
    script.out();
    assert_eq!(script.lost, [(1, 1)]);
}

#[test]
fn the_last_packets_of_a_burst_are_found_lost() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, [0]);
    assert_eq!(script.out(), [0]);
    for path in 0..2 {
        script.flow.on_frontier(script.now, path, 3, &script.view);
    }
    script.out();
    assert_eq!(script.lost, [(1, 2)]);
}

#[test]
fn a_flow_on_one_path_waits_for_no_other() {
    let mut script = Script::new(&[0, 0]);
    script.take(0, 0, true, false);
    script.take(0, 2, true, false);
    assert_eq!(script.out(), [0]);
    assert_eq!(script.lost, [(1, 1)]);
}

#[test]
fn a_path_that_reorders_is_given_its_time() {
    let mut script = Script::new(&[8]);
    script.on(0, [0, 2]);
    assert_eq!(script.out(), [0]);
    assert_eq!(script.lost, []);
    assert_eq!(
        script.flow.next_timeout(&script.view),
        Some(script.now + MS * 8)
    );
    script.pass(7);
    assert_eq!(script.out(), []);
    assert_eq!(script.lost, []);
    script.pass(1);
    assert_eq!(script.out(), []);
    assert_eq!(script.lost, [(1, 1)]);
}

#[test]
fn a_path_that_is_not_alive_proves_nothing_and_is_not_waited_for() {
    let mut script = Script::new(&[0, 0]);
    script.view.alive[1] = None;
    script.on(0, [0, 2]);
    assert_eq!(script.out(), [0]);
    assert_eq!(script.lost, [(1, 1)]);
}

#[test]
fn the_bound_ends_waiting_without_proof() {
    let mut script = Script::new(&[0, 0]);
    script.on(0, [0, 2]);
    assert_eq!(script.out(), [0]);
    assert_eq!(
        script.flow.next_timeout(&script.view),
        Some(script.now + MS * 200)
    );
    script.pass(200);
    assert_eq!(script.out(), [2]);
    assert_eq!(script.missing, 1);
    // A packet that was given up is still delivered once if it arrives.
    assert!(matches!(script.take(1, 1, false, false), Outcome::Late(_)));
    assert!(matches!(
        script.take(1, 1, false, false),
        Outcome::Duplicate(_)
    ));
    assert!(matches!(
        script.take(1, 0, false, false),
        Outcome::Duplicate(_)
    ));
}

#[test]
fn a_flow_has_few_slots() {
    let mut script = Script::new(&[0, 0]);
    assert!(!script.flow.is_beyond(MAX_SLOTS as u64 - 1));
    assert!(script.flow.is_beyond(MAX_SLOTS as u64));
    for path in 0..2 {
        script
            .flow
            .on_frontier(script.now, path, u64::MAX, &script.view);
    }
    script.on(0, [0]);
    assert_eq!(script.out(), [0]);
    // The statements name more missing packets than are kept, and arrive before any packet.
    assert!(script.flow.slots() <= MAX_STATED as usize);
    assert!(script.lost.iter().map(|l| u64::from(l.1)).sum::<u64>() <= MAX_STATED);
    script.flow.give_up(&mut script.missing);
    script.flow.jump(1 << 40);
    assert_eq!(script.flow.next(), 1 << 40);
    assert!(script.flow.is_settled());
}
