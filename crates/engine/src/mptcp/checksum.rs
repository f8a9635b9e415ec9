//! DSS checksums (RFC 8684 section 3.3.1): a mapping is sent with one, and what it carries is handed
//! on when all of it is here and the sum is right.

use braid_wire::checksum::{Sum, sum_at};
use braid_wire::mptcp::{ResetReason, dss_checksum};

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::mode::{Mode, Mptcp};
use super::transport::Transport;
use crate::FallbackCause;
use crate::buffer::{InsertError, RecvBuffer, SendBuffer};
use crate::event::SubflowCloseReason;
use crate::tcp::scoreboard::Mapping;

/// Most payload of a mapping that we send with a checksum: its last byte keeps all of it waiting, and
/// one wrong byte costs all of it.
pub(super) const MAX_CHECKED_MAPPING: u64 = 8 << 10;

/// The next bytes that a subflow holds, found right.
struct Sound {
    /// Where in the stream they belong.
    data: u64,
    len: usize,
    /// DATA_FIN follows them.
    fin: bool,
}

/// The sum of the first `len` bytes of `parts`.
fn sum_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>, len: usize) -> Sum {
    let mut at = 0;
    parts.into_iter().fold(Sum::default(), |sum, part| {
        let part = &part[..part.len().min(len - at)];
        let sum = sum_at(sum, at, part);
        at += part.len();
        sum
    })
}

impl Connection {
    /// As [`pass_checked_on`](Self::pass_checked_on), on all subflows: there may be memory again.
    pub(super) fn pass_checked(&mut self, ctx: &mut Ctx<'_>) {
        for i in 0..self.transport.subflows.len() {
            self.pass_checked_on(ctx, i);
        }
    }

    /// Hands on what subflow `i` holds and is whole and sound. What lies behind a hole of the stream
    /// and finds no place, for want of memory or in too many pieces, is dropped: what fills the hole may
    /// wait behind it. The peer sends again what no DATA_ACK covers, but not soon: our own engine only
    /// when it has nothing else in flight.
    // Conforms: 8684-3.7-8
    pub(super) fn pass_checked_on(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let before = self.transport.rcv.buf.rcv_nxt();
        while let Some(Sound { data, len, fin }) = self.next_sound(ctx, i) {
            if !self.reach(ctx, i, data + len as u64, fin) {
                return;
            }
            if self.transport.place_held(ctx, i, data, len).is_ok() {
                continue;
            }
            if data <= self.transport.rcv.buf.rcv_nxt() {
                self.transport.let_go(i);
                break;
            }
            let rcv = &mut self.transport.subflows[i].rcv;
            rcv.pass_held(len, &mut ctx.shared.pool);
        }
        if self.transport.rcv.buf.rcv_nxt() > before {
            self.transport.signal_readable(ctx);
        }
    }

    /// The next bytes that subflow `i` may hand on.
    // Conforms: 8684-3.7-8
    fn next_sound(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Sound> {
        let rcv = &self.transport.subflows[i].rcv;
        let held = rcv.held.as_ref()?;
        let all = || held.slices().iter().map(|part| part.len()).sum();
        if matches!(self.transport.mode, Mode::Mptcp(_)) {
            let map = rcv.whole_mapping()?;
            let len = map.len as usize;
            let seq = map.wire_seq(self.transport.subflows[i].syn_data.received);
            if self
                .transport
                .mode
                .is_sound(&map, seq, sum_of(held.slices(), len))
            {
                return Some(Sound {
                    data: map.data,
                    len,
                    fin: map.fin,
                });
            }
            self.on_bad_checksum(ctx, i, map.data);
            return match self.transport.mode {
                Mode::Tcp => self.next_sound(ctx, i),
                _ => None,
            };
        }
        // After a fallback the numbers of the subflow are those of the stream.
        let next = Sound {
            data: held.next() - 1,
            len: all(),
            fin: false,
        };
        if next.len == 0 && held.out_of_order_bytes() == 0 {
            let rcv = &mut self.transport.subflows[i].rcv;
            rcv.drop_held(&mut ctx.shared.pool);
        }
        (next.len > 0).then_some(next)
    }

    /// The mapping of byte `data` arrived changed on subflow `i` (RFC 8684 section 3.7). If that is
    /// all the connection ever had, and its bytes are those of the stream in order, both go on as
    /// regular TCP, which would not have noticed. Otherwise the subflow ends and others carry its
    /// data: with others there were before, the peer may already have sent what is not in order.
    // Conforms: 8684-3.7-7, 8684-3.7-9
    fn on_bad_checksum(&mut self, ctx: &mut Ctx<'_>, i: usize, data: u64) {
        let Some(mptcp) = self.transport.mode.mptcp() else {
            return;
        };
        let dsn = mptcp.remote_dsn(data);
        if !mptcp.joined && self.transport.is_contiguous(i) {
            self.transport.fall_back(ctx, FallbackCause::BadChecksum);
            self.on_plain_ack(ctx, i);
            self.transport
                .farewell
                .say_fail(&mut self.transport.subflows[i], dsn);
        } else {
            self.transport.subflows[i].fail(dsn);
        }
    }
}

impl Transport {
    /// From now on subflow `i` holds payload back until it is checked, where that was agreed on.
    pub(super) fn check_mappings(&mut self, ctx: &Ctx<'_>, i: usize) {
        if self.mode.uses_checksums() {
            let window = ctx.shared.config.recv_buffer.max(1 << 20) as u64;
            self.subflows[i].rcv.check_mappings(2 * window);
        }
    }

    /// Moves the first `len` bytes that subflow `i` holds to byte `data` of the stream and on.
    fn place_held(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        data: u64,
        len: usize,
    ) -> Result<(), InsertError> {
        let subflow = &mut self.subflows[i];
        let pool = &mut ctx.shared.pool;
        let mut done = 0;
        for part in subflow.rcv.held.iter().flat_map(RecvBuffer::slices) {
            let part = &part[..part.len().min(len - done)];
            let inserted = self.rcv.insert(data + done as u64, part.into(), pool)?;
            subflow.duplicate += inserted.duplicate;
            done += part.len();
        }
        subflow.rcv.pass_held(len, pool);
        self.note_placed();
        Ok(())
    }

    /// Even the reserve is used up where subflow `i` has the next bytes of the stream. If there is
    /// something to read, they wait for the reader. If not, nothing may ever give memory back: this
    /// one does, and the peer sends again what it held (RFC 8684 section 3.6).
    pub(super) fn let_go(&mut self, i: usize) {
        let holds = self.subflows[i].rcv.held.as_ref();
        let holds = holds.is_some_and(|held| held.readable() > 0);
        if self.mode.mptcp().is_some() && self.rcv.buf.readable() == 0 && holds {
            self.subflows[i].begin_reset(
                ResetKind::Subflow(ResetReason::LackOfResources),
                SubflowCloseReason::LackOfResources,
            );
        }
    }
}

impl Mode {
    pub(super) fn uses_checksums(&self) -> bool {
        self.mptcp().is_some_and(|m| m.checksum)
    }

    /// Returns whether a mapping of the peer's has a checksum if and only if that was agreed on; if it carries
    /// nothing but DATA_FIN, whether that is right too.
    // Conforms: 8684-3.3-2, 8684-3.3-3, 8684-3.3.3-2
    pub(super) fn is_checkable(&self, map: &Mapping) -> bool {
        let sound = || map.len > 0 || self.is_sound(map, map.wire_seq(0), Sum::default());
        match self.uses_checksums() {
            true => map.checksum.is_some() && sound(),
            false => map.checksum.is_none(),
        }
    }

    /// Returns whether the checksum of a mapping with the subflow sequence number `seq` is that of `sum`.
    pub(super) fn is_sound(&self, map: &Mapping, seq: u32, sum: Sum) -> bool {
        let dsn = self.mptcp().map(|m| m.remote_dsn(map.data));
        let right = dsn.map(|dsn| dss_checksum(dsn, seq, map.wire_len(), sum));
        right.is_some() && right == map.checksum
    }
}

impl Mptcp {
    /// The checksum of a mapping of our stream, of which `buf` has the bytes, on a subflow whose SYN carried
    /// `in_syn` bytes; `None` where none were agreed on.
    pub(super) fn checksum_of(&self, buf: &SendBuffer, map: &Mapping, in_syn: u64) -> Option<u16> {
        if !self.checksum {
            return None;
        }
        let parts = buf.slices(map.data..map.data + u64::from(map.len));
        let sum = sum_of(parts, map.len as usize);
        let dsn = self.dsn(map.data);
        Some(dss_checksum(dsn, map.wire_seq(in_syn), map.wire_len(), sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum is over 16-bit words of the mapping, wherever the blocks of a buffer cut them.
    #[test]
    fn the_sum_is_the_same_however_payload_is_cut() {
        let payload: Vec<u8> = (1..=9).collect();
        let dsn = braid_wire::Dsn64(1);
        let checksum = |parts: [&[u8]; 3]| dss_checksum(dsn, 1, 9, sum_of(parts, payload.len()));
        let whole = checksum([&payload, &[], &[]]);
        for first in 0..=9 {
            for second in first..=9 {
                let parts = [
                    &payload[..first],
                    &payload[first..second],
                    &payload[second..],
                ];
                assert_eq!(checksum(parts), whole, "{first}, {second}");
            }
        }
    }
}
