//! DSS checksums (RFC 8684 section 3.3.1): computes the checksums of outgoing mappings, and holds received
//! payload back until its mapping is complete and the checksum is verified.

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

/// The maximum number of payload bytes of a mapping sent with a checksum. The receiver holds a mapping back
/// until its last byte has arrived, and discards all of it for one wrong byte, so large mappings add delay and
/// loss. The value is a guess: about six segments.
pub(super) const MAX_CHECKED_MAPPING_LEN: u64 = 8 << 10;

/// The next bytes of a subflow that are verified: their checksum is right, or they need none.
struct VerifiedBytes {
    /// The offset of the first byte in the stream.
    data: u64,
    len: usize,
    /// Set if DATA_FIN follows these bytes.
    fin: bool,
}

/// Returns the sum over the first `len` bytes of `parts`, from which a checksum is made.
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
    /// Runs [`deliver_verified_on`](Self::deliver_verified_on) on all subflows, since reading may have freed
    /// memory.
    pub(super) fn deliver_verified(&mut self, ctx: &mut Ctx<'_>) {
        for i in 0..self.transport.subflows.len() {
            self.deliver_verified_on(ctx, i);
        }
    }

    /// Moves the complete and verified payload that subflow `i` holds to the stream. There may be no place for
    /// payload behind a hole of the stream, because memory is short or the stream has too many gaps. Such
    /// payload is dropped, because the payload that fills the hole may follow it in this subflow. The peer
    /// retransmits data that no DATA_ACK covers, but not soon: a peer that runs Braid does so only once it has
    /// nothing else in flight.
    // Conforms: 8684-3.7-8
    pub(super) fn deliver_verified_on(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let rcv_nxt_before = self.transport.rcv.buf.rcv_nxt();
        while let Some(VerifiedBytes { data, len, fin }) = self.next_verified(ctx, i) {
            if !self.check_stream_end(ctx, i, data + len as u64, fin) {
                return;
            }
            if self
                .transport
                .move_held_to_stream(ctx, i, data, len)
                .is_ok()
            {
                continue;
            }
            // The next bytes of the stream are never dropped: they wait until there is memory.
            if data <= self.transport.rcv.buf.rcv_nxt() {
                self.transport.reset_if_memory_stuck(i);
                break;
            }
            let rcv = &mut self.transport.subflows[i].rcv;
            rcv.advance_held(len, &mut ctx.shared.pool);
        }
        if self.transport.rcv.buf.rcv_nxt() > rcv_nxt_before {
            self.transport.signal_readable(ctx);
        }
    }

    /// Returns the next bytes that subflow `i` holds, if they are complete and verified.
    // Conforms: 8684-3.7-8
    fn next_verified(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<VerifiedBytes> {
        let rcv = &self.transport.subflows[i].rcv;
        let held = rcv.held.as_ref()?;
        let contiguous_len = || held.slices().iter().map(|part| part.len()).sum();
        if matches!(self.transport.mode, Mode::Mptcp(_)) {
            let map = rcv.whole_mapping()?;
            let len = map.len as usize;
            let seq = map.wire_seq(self.transport.subflows[i].syn_data.received);
            if self
                .transport
                .mode
                .verifies_checksum(&map, seq, sum_of(held.slices(), len))
            {
                return Some(VerifiedBytes {
                    data: map.data,
                    len,
                    fin: map.fin,
                });
            }
            self.on_bad_checksum(ctx, i, map.data);
            // After a fallback to regular TCP no checksum is needed any more.
            return match self.transport.mode {
                Mode::Tcp => self.next_verified(ctx, i),
                _ => None,
            };
        }
        // In regular TCP, stream offsets are subflow offsets minus one, for the SYN.
        let next = VerifiedBytes {
            data: held.next() - 1,
            len: contiguous_len(),
            fin: false,
        };
        // Once nothing is held any more, payload goes to the stream directly.
        if next.len == 0 && held.out_of_order_bytes() == 0 {
            let rcv = &mut self.transport.subflows[i].rcv;
            rcv.drop_held(&mut ctx.shared.pool);
        }
        (next.len > 0).then_some(next)
    }

    /// Handles a wrong checksum of the mapping that starts at byte `data` of the stream, on subflow `i` (RFC
    /// 8684 section 3.7). If the connection never had another subflow, and this one carries the stream in order,
    /// the connection falls back to regular TCP, which accepts payload that a middlebox changed. Otherwise the
    /// peer may already have sent data out of order on another subflow. Then this subflow is reset, and other
    /// subflows carry its data.
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
                .fallback_notice
                .send_mp_fail(&mut self.transport.subflows[i], dsn);
        } else {
            self.transport.subflows[i].fail(dsn);
        }
    }
}

impl Transport {
    /// Makes subflow `i` hold payload back until it is verified, if the connection uses checksums.
    pub(super) fn check_mappings(&mut self, ctx: &Ctx<'_>, i: usize) {
        if self.mode.uses_checksums() {
            // The peer respects the window of the connection, so this bound only guards memory. The minimum of 1
            // MiB and the factor of 2 are guesses.
            let window = ctx.shared.config.recv_buffer.max(1 << 20) as u64;
            self.subflows[i].rcv.check_mappings(2 * window);
        }
    }

    /// Moves the first `len` bytes that subflow `i` holds to offset `data` of the stream.
    fn move_held_to_stream(
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
        subflow.rcv.advance_held(len, pool);
        self.note_placed();
        Ok(())
    }

    /// Handles the case that all memory, the reserve included, is exhausted while subflow `i` holds the next
    /// bytes of the stream. If there is data to read, the reader will free memory. Otherwise this connection may
    /// never get any memory, so the subflow is reset. The reset frees the bytes that the subflow holds, and the
    /// peer sends them again (RFC 8684 section 3.6).
    pub(super) fn reset_if_memory_stuck(&mut self, i: usize) {
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

    /// Returns whether a mapping of the peer has a checksum if checksums are in use, and no checksum if they are
    /// not. The checksum of a DATA_FIN without payload is also verified here, because there is no payload to
    /// wait for.
    // Conforms: 8684-3.3-2, 8684-3.3-3, 8684-3.3.3-2
    pub(super) fn is_checkable(&self, map: &Mapping) -> bool {
        let is_sound =
            || map.len > 0 || self.verifies_checksum(map, map.wire_seq(0), Sum::default());
        match self.uses_checksums() {
            true => map.checksum.is_some() && is_sound(),
            false => map.checksum.is_none(),
        }
    }

    /// Returns whether the checksum of a mapping is right; `seq` is its subflow sequence number, and `sum` the
    /// sum over its payload.
    pub(super) fn verifies_checksum(&self, map: &Mapping, seq: u32, sum: Sum) -> bool {
        let dsn = self.mptcp().map(|m| m.remote_dsn(map.data));
        let expected = dsn.map(|dsn| dss_checksum(dsn, seq, map.wire_len(), sum));
        expected.is_some() && expected == map.checksum
    }
}

impl Mptcp {
    /// Returns the checksum of a mapping whose bytes are in `buf`, on a subflow whose SYN carried `in_syn`
    /// bytes; `None` if checksums are not in use.
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

    /// The checksum sums 16-bit words of the mapping, also where the blocks of a buffer cut a word in two.
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
