//! What a stack tells of all its connections together.

use super::Stack;
use crate::ConnId;
use crate::stats::PathTotals;

impl Stack {
    /// The connections that exist, closing ones included, each with the bytes of its flow that have
    /// arrived so far, both ways. In an order that does not depend on these.
    pub fn conn_bytes(&self) -> impl Iterator<Item = (ConnId, u64)> {
        let conns = self.table.iter();
        conns.map(|c| {
            let (acknowledged, received) = c.flow.moved(&c.transport.snd, &c.transport.rcv);
            (c.transport.id, acknowledged + received)
        })
    }

    /// Each path as it stands, in order of [`add_path`](Stack::add_path). Walks over all
    /// connections.
    pub fn path_totals(&self) -> Vec<PathTotals> {
        let mut totals = self.gone.clone();
        for conn in self.table.iter() {
            conn.transport.subflows.add_moved(&mut totals);
            conn.transport.subflows.add_subflows(&mut totals);
        }
        for (total, before) in totals.iter_mut().zip(&self.renewed) {
            total.take_off(before);
        }
        totals
    }
}
