//! The peer's address on a path, and the proof that the peer receives there (RFC 9000 section 8).

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::{Instant, Rng};

use crate::header::Header;
use crate::seal::TAG_LEN;

/// The time after which a challenge is sent again, until a round trip is known. Doubles with each one. A guess.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Most challenges of the peer that wait for their response. A guess: the peer repeats a challenge that finds no room.
const MAX_RESPONSES: usize = 4;
/// Bytes of a datagram with a response alone.
const RESPONSE_LEN: usize = Header::LEN + RESPONSE_FRAMES + TAG_LEN;
/// Bytes of a response frame.
const RESPONSE_FRAMES: usize = 9;
/// Bytes of a datagram with a challenge, and a response that may go with it.
const CHALLENGE_LEN: usize = Header::LEN + CHALLENGE_FRAMES + TAG_LEN;
/// Bytes of the frames of a datagram with a challenge. A box pads to it, so that the server may answer with a challenge
/// of its own.
pub(crate) const CHALLENGE_FRAMES: usize = 18;

/// A challenge of ours that has no response.
#[derive(Debug, Clone, Copy)]
struct Challenge {
    data: [u8; 8],
    remote: SocketAddr,
    due_at: Instant,
    retry: Duration,
}

/// An answer to a challenge. The answer is not larger than the challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Response {
    pub data: [u8; 8],
    pub remote: SocketAddr,
}

/// The address of the peer on one path.
#[derive(Debug)]
pub(crate) struct Address {
    remote: SocketAddr,
    proved: bool,
    challenge: Option<Challenge>,
    /// Bytes that may be sent to the challenged address before it is proved: as many as came from it. RFC 9000 section
    /// 8.1 allows three times as many, but a box pads its challenges, so once suffices for the answer.
    credit: u64,
    responses: ArrayVec<Response, MAX_RESPONSES>,
}

impl Address {
    /// Creates an address that the configuration names.
    pub fn configured(remote: SocketAddr) -> Self {
        Address {
            remote,
            proved: true,
            challenge: None,
            credit: 0,
            responses: ArrayVec::new(),
        }
    }

    /// Creates an address that a datagram came from.
    pub fn learned(remote: SocketAddr) -> Self {
        Address {
            proved: false,
            ..Address::configured(remote)
        }
    }

    /// Returns the address to which to send.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub fn is_proved(&self) -> bool {
        self.proved
    }

    /// Sends a challenge to the address at `now`, unless one is under way.
    pub fn challenge(&mut self, now: Instant, rng: &mut Rng) {
        if self.challenge.is_none() {
            self.start(now, self.remote, rng);
        }
    }

    fn start(&mut self, now: Instant, remote: SocketAddr, rng: &mut Rng) {
        let mut data = [0; 8];
        rng.fill(&mut data);
        self.credit = 0;
        self.challenge = Some(Challenge {
            data,
            remote,
            due_at: now,
            retry: FIRST_RETRY,
        });
    }

    /// Notes an authentic datagram. `newest` says that its number is the highest so far: a datagram with an old
    /// number may have been delayed by an attacker who has another address.
    pub fn on_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        bytes: usize,
        newest: bool,
        rng: &mut Rng,
    ) {
        if from == self.remote && self.proved {
            // The peer is back at its proved address. A challenge to another address would delay the next challenge to
            // this one, so it is dropped.
            if newest {
                self.challenge = self.challenge.filter(|c| c.remote == from);
            }
            return;
        }
        let known = self.challenge.is_some_and(|c| c.remote == from);
        if !known && newest {
            self.start(now, from, rng);
        }
        if known || newest {
            self.credit += bytes as u64;
        }
    }

    /// Returns true if `bytes` may be sent to `remote`: it is proved, or has the credit.
    fn may_send(&self, remote: SocketAddr, bytes: usize) -> bool {
        let challenged = self.challenge.is_some_and(|c| c.remote == remote);
        remote == self.remote && self.proved || challenged && self.credit >= bytes as u64
    }

    /// Notes that bytes were sent to `remote`.
    pub fn on_sent(&mut self, remote: SocketAddr, bytes: usize) {
        if remote != self.remote || !self.proved {
            self.credit = self.credit.saturating_sub(bytes as u64);
        }
    }

    /// Stores the response to the peer's challenge. Until `from` is proved, all stored responses together are no larger
    /// than the bytes received from it. The peer repeats a challenge that finds no room.
    pub fn on_challenge(&mut self, data: [u8; 8], from: SocketAddr) {
        let waiting = self.responses.iter().filter(|r| r.remote == from).count();
        if self.may_send(from, RESPONSE_LEN * (waiting + 1)) {
            let _ = self.responses.try_push(Response { data, remote: from });
        }
    }

    /// Takes the response to a challenge, which proves the address that it came from. Returns true if the peer has
    /// moved to another host, so that nothing is known of the path (RFC 9000 section 9.4).
    pub fn on_response(&mut self, data: [u8; 8], from: SocketAddr) -> bool {
        let proves = |c: Challenge| c.data == data && c.remote == from;
        if !self.challenge.is_some_and(proves) {
            return false;
        }
        self.challenge = None;
        let old = core::mem::replace(&mut self.remote, from);
        let was_proved = core::mem::replace(&mut self.proved, true);
        was_proved && old.ip() != from.ip()
    }

    /// Takes the response to a challenge that only measures the path: the address stays.
    pub fn on_answer(&mut self, data: [u8; 8]) {
        if self.challenge.is_some_and(|c| c.data == data) {
            self.challenge = None;
        }
    }

    /// Returns a challenge that is due, and its destination. The challenge is
    /// repeated after two round trips, then after twice the time, up to `longest`.
    pub fn take_challenge(
        &mut self,
        now: Instant,
        round_trip: Option<Duration>,
        longest: Duration,
    ) -> Option<([u8; 8], SocketAddr)> {
        if !self.challenge_is_due(now) {
            return None;
        }
        let challenge = self.challenge.as_mut()?;
        let least = round_trip.map_or(FIRST_RETRY, |rtt| rtt * 2);
        challenge.due_at = now + challenge.retry.max(least);
        challenge.retry = (challenge.retry * 2).min(longest);
        Some((challenge.data, challenge.remote))
    }

    fn challenge_is_due(&self, now: Instant) -> bool {
        self.challenge
            .is_some_and(|c| now >= c.due_at && self.may_send(c.remote, CHALLENGE_LEN))
    }

    /// Returns a response that has to be sent. Drops responses whose credit a challenge has used up.
    pub fn take_response(&mut self) -> Option<Response> {
        while let Some(response) = self.responses.pop() {
            if self.may_send(response.remote, RESPONSE_LEN) {
                return Some(response);
            }
        }
        None
    }

    /// Returns true if a challenge or response has to be sent at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.responses.is_empty() || self.challenge_is_due(now)
    }

    /// Returns the time of the next challenge.
    pub fn next_timeout(&self) -> Option<Instant> {
        let challenge = self.challenge?;
        self.may_send(challenge.remote, CHALLENGE_LEN)
            .then_some(challenge.due_at)
    }
}
