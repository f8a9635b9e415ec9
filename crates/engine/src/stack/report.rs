//! Statistics over all connections of a stack.

use super::Stack;
use crate::ConnId;
use crate::stats::PathTotals;

impl Stack {
    /// Returns all connections, closing ones included, in order of their slots. The number beside a connection is
    /// the number of bytes of its flow that have arrived so far, in both directions together.
    pub fn conn_bytes(&self) -> impl Iterator<Item = (ConnId, u64)> {
        let conns = self.table.iter();
        conns.map(|c| {
            let (acknowledged, received) = c.flow.moved(&c.transport.snd, &c.transport.rcv);
            (c.transport.id, acknowledged + received)
        })
    }

    /// Returns the current totals of each path, in order of [`add_path`](Stack::add_path). A call looks at all
    /// connections, so it is costly.
    pub fn path_totals(&self) -> Vec<PathTotals> {
        let mut moved = self.gone.clone();
        let mut totals = vec![PathTotals::default(); moved.len()];
        for conn in self.table.iter() {
            conn.transport.subflows.add_moved(&mut moved);
            conn.transport.subflows.add_subflows(&mut totals);
        }
        for ((total, moved), before) in totals.iter_mut().zip(&moved).zip(&self.renewed) {
            total.moved = moved.since(before);
        }
        totals
    }
}
