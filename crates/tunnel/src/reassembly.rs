//! The joining of packets that were cut in two.

use std::collections::VecDeque;

use crate::frame::Label;
use crate::pool::Pool;

/// Maximum number of pieces on a path that wait for their other piece. Only loss and reordering leave any.
const MAX_PIECES: usize = 64;

/// One piece, by the number of the datagram that had the head.
#[derive(Debug)]
enum Piece {
    Head(u64, Label, Vec<u8>),
    Tail(u64, Vec<u8>),
}

/// The pieces on one path whose other piece has not come.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    pieces: VecDeque<Piece>,
}

impl Reassembly {
    /// Takes the head in the datagram `number`. Returns the packet if its tail came before.
    pub fn on_head(
        &mut self,
        number: u64,
        label: Label,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Option<(Label, Vec<u8>)> {
        let tail = |piece: &Piece| matches!(piece, Piece::Tail(of, _) if *of == number);
        let mut packet = pool.copy(bytes);
        if let Some(Piece::Tail(_, tail)) = self.take(tail) {
            packet.extend_from_slice(&tail);
            pool.recycle(tail);
            return Some((label, packet));
        }
        self.keep(Piece::Head(number, label, packet), pool);
        None
    }

    /// Takes the tail in the datagram `number`. Returns the packet if its head came before.
    pub fn on_tail(
        &mut self,
        number: u64,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Option<(Label, Vec<u8>)> {
        let of = number.checked_sub(1)?;
        let head = |piece: &Piece| matches!(piece, Piece::Head(number, ..) if *number == of);
        if let Some(Piece::Head(_, label, mut packet)) = self.take(head) {
            packet.extend_from_slice(bytes);
            return Some((label, packet));
        }
        self.keep(Piece::Tail(of, pool.copy(bytes)), pool);
        None
    }

    fn take(&mut self, wanted: impl Fn(&Piece) -> bool) -> Option<Piece> {
        // The other piece is usually the latest.
        let at = self.pieces.iter().rposition(wanted)?;
        self.pieces.remove(at)
    }

    fn keep(&mut self, piece: Piece, pool: &mut Pool) {
        if self.pieces.len() == MAX_PIECES
            && let Some(Piece::Head(_, _, buffer) | Piece::Tail(_, buffer)) =
                self.pieces.pop_front()
        {
            pool.recycle(buffer);
        }
        self.pieces.push_back(piece);
    }

    pub fn invariants(&self) {
        assert!(self.pieces.len() <= MAX_PIECES);
    }
}
