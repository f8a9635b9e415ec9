//! How a direction of a user's connection ends while the connection that carries it goes on.
//!
//! Its bytes come in frames: 2 bytes length, big endian, and so many bytes. A frame without bytes is the
//! end; what follows is not the user's.

use std::io::IoSlice;

/// Before the bytes of a frame: their number.
pub(super) const HEAD: usize = 2;
/// The end.
pub(super) const END: [u8; HEAD] = [0; HEAD];
/// Most bytes of a frame with its head.
pub(super) const MOST: usize = HEAD + u16::MAX as usize;
/// Most frames of which a reader is shown something at a time. A writer makes them as large as it can.
const SHOWN: usize = 64;

/// Writes the head of a frame whose bytes stand behind it; there are some, and [`MOST`] at most.
pub(super) fn seal(frame: &mut [u8]) {
    let len = u16::try_from(frame.len() - HEAD).unwrap_or(u16::MAX);
    debug_assert!(len > 0 && frame.len() <= MOST);
    frame[..HEAD].copy_from_slice(&len.to_be_bytes());
}

/// What is said one way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Messages of box and server, as they are.
    #[default]
    Messages,
    /// The user's bytes, in frames.
    Frames,
    /// Their end was written, and may wait here.
    Ending,
    /// The stack has it.
    Ended,
    /// The other end has it.
    Delivered,
}

impl Outgoing {
    /// Whether nothing more is said.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Outgoing::Messages | Outgoing::Frames)
    }
}

/// How far the other way was read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Messages of box and server, as they are.
    #[default]
    Messages,
    /// The head of a frame is next, or its second byte.
    Head(Option<u8>),
    /// So many bytes of a frame are left.
    Body(usize),
    /// The user's bytes have ended.
    Ended,
}

impl Incoming {
    /// The first frame is next.
    pub(super) const FRAMES: Self = Incoming::Head(None);

    /// Whether more frames have to come.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Incoming::Head(_) | Incoming::Body(_))
    }

    /// Shows `drain` what of `bytes`, which are next, is for a reader, if there is something. Returns how
    /// much it took, and how many bytes are done with.
    pub(super) fn show<E>(
        &mut self,
        bytes: &[u8],
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> (Result<usize, E>, usize) {
        let mut shown = [IoSlice::new(&[]); SHOWN];
        let mut count = 0;
        self.walk(bytes, usize::MAX, |part| {
            if let Some(next) = shown.get_mut(count) {
                *next = IoSlice::new(part);
                count += 1;
            }
            count < SHOWN
        });
        let taken = match count {
            0 => Ok(0),
            _ => drain(&shown[..count]),
        };
        let most = *taken.as_ref().unwrap_or(&0);
        let (state, done) = self.walk(bytes, most, |_| true);
        *self = state;
        (taken, done)
    }

    /// Goes through `bytes`, whose first `most` for a reader are done with, as is what stands around
    /// them; tells `part` of each of these in one piece, until it says to stop.
    fn walk<'a>(
        self,
        bytes: &'a [u8],
        mut most: usize,
        mut part: impl FnMut(&'a [u8]) -> bool,
    ) -> (Incoming, usize) {
        let (mut state, mut at) = (self, 0);
        while let Some(first) = bytes.get(at) {
            let left = match state {
                Incoming::Ended => break,
                Incoming::Head(None) => {
                    (state, at) = (Incoming::Head(Some(*first)), at + 1);
                    continue;
                }
                Incoming::Head(Some(high)) => {
                    let len = u16::from_be_bytes([high, *first]);
                    state = match len {
                        0 => Incoming::Ended,
                        len => Incoming::Body(len.into()),
                    };
                    at += 1;
                    continue;
                }
                Incoming::Body(left) => left,
                Incoming::Messages => usize::MAX,
            };
            let len = left.min(bytes.len() - at).min(most);
            if len == 0 {
                break;
            }
            let goes_on = part(&bytes[at..at + len]);
            (at, most) = (at + len, most - len);
            state = match state {
                Incoming::Body(left) if left == len => Incoming::FRAMES,
                Incoming::Body(left) => Incoming::Body(left - len),
                state => state,
            };
            if !goes_on {
                break;
            }
        }
        (state, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader gets that takes `each` bytes at a time of a stream that comes in pieces of `piece`,
    /// and what is left once the frames have ended.
    fn read(mut stream: &[u8], piece: usize, each: usize) -> (Vec<u8>, Incoming, Vec<u8>) {
        let (mut got, mut state, mut here) = (Vec::new(), Incoming::FRAMES, Vec::new());
        loop {
            let (came, rest) = stream.split_at(piece.min(stream.len()));
            here.extend_from_slice(came);
            stream = rest;
            loop {
                let (taken, done) = state.show(&here, |parts| {
                    let parts = parts.iter().flat_map(|part| part.iter());
                    let before = got.len();
                    got.extend(parts.take(each));
                    Ok::<_, ()>(got.len() - before)
                });
                here.drain(..done);
                if taken == Ok(0) {
                    break;
                }
            }
            if stream.is_empty() {
                return (got, state, here);
            }
        }
    }

    fn framed(parts: &[&[u8]]) -> Vec<u8> {
        let mut stream = Vec::new();
        for part in parts {
            let mut frame = [&[0; HEAD], *part].concat();
            seal(&mut frame);
            stream.extend(frame);
        }
        stream
    }

    #[test]
    fn frames_come_apart_wherever_they_are_cut() {
        let parts: Vec<Vec<u8>> = (1..40).map(|n| vec![n; usize::from(n) * 7]).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let stream = [framed(&parts), END.to_vec(), b"next".to_vec()].concat();
        for (piece, each) in [
            (1, 1),
            (1, 9),
            (3, 2),
            (64, 5),
            (300, 4096),
            (1 << 20, 1 << 20),
        ] {
            let (got, state, rest) = read(&stream, piece, each);
            assert_eq!(got, parts.concat(), "in pieces of {piece}");
            assert_eq!((state, &rest[..]), (Incoming::Ended, &b"next"[..]));
        }
    }

    #[test]
    fn what_is_cut_off_has_not_ended() {
        let stream = [framed(&[b"abc", b"de"]), END.to_vec()].concat();
        for len in 0..stream.len() {
            let (_, state, rest) = read(&stream[..len], 4, 4);
            assert!(state.is_open() && rest.is_empty(), "{len}: {state:?}");
        }
    }

    #[test]
    fn the_largest_frame_is_as_large_as_its_head_can_say() {
        let most = vec![7; MOST - HEAD];
        let stream = framed(&[&most]);
        assert_eq!(read(&stream, 1000, 100_000).0, most);
    }

    #[test]
    fn messages_are_shown_as_they_are() {
        let mut state = Incoming::Messages;
        let (taken, done) = state.show(b"\0\0note", |parts| {
            assert_eq!(&*parts[0], b"\0\0note");
            Ok::<_, ()>(3)
        });
        assert_eq!((taken, done, state), (Ok(3), 3, Incoming::Messages));
    }
}
