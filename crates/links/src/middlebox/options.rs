//! Middleboxes that edit TCP options.

use braid_wire::Instant;
use braid_wire::tcp::{Flags, HEADER_LEN, kind};

use super::segment::{self, Segment};
use super::{Direction, Middlebox, Output, Packet};

/// The options to edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Options of this kind.
    Kind(u8),
    /// Options newer than RFC 7323: Multipath TCP, fast open, and all that have no name yet.
    Unknown,
}

impl Target {
    /// The options of Multipath TCP.
    pub const MPTCP: Target = Target::Kind(kind::MPTCP);

    fn covers(self, option: u8) -> bool {
        match self {
            Target::Kind(kind) => option == kind,
            Target::Unknown => !matches!(
                option,
                kind::MSS
                    | kind::WINDOW_SCALE
                    | kind::SACK_PERMITTED
                    | kind::SACK
                    | kind::TIMESTAMPS
            ),
        }
    }
}

/// The segments in which options are edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// SYN and SYN/ACK.
    Syn,
    /// All but SYN and SYN/ACK.
    Later,
    /// All segments.
    All,
}

/// The edit of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Removes the option, which shortens the header.
    Remove,
    /// Overwrites the option with NOPs.
    Blank,
    /// Overwrites all but kind and length with zeros.
    Zero,
}

/// A box that edits TCP options, like those that Honda et al. found ("Is it still possible to extend
/// TCP?", IMC 2011).
#[derive(Debug, Clone)]
pub struct OptionEdit {
    target: Target,
    scope: Scope,
    edit: Edit,
    direction: Option<Direction>,
    since: Instant,
    edited: u64,
}

impl OptionEdit {
    /// Makes a box that does `edit` to the options `target` of segments in `scope`, in both directions.
    pub fn new(target: Target, scope: Scope, edit: Edit) -> Self {
        OptionEdit {
            target,
            scope,
            edit,
            direction: None,
            since: Instant::ZERO,
            edited: 0,
        }
    }

    /// Edits only segments of one direction.
    #[must_use]
    pub fn only(mut self, direction: Direction) -> Self {
        self.direction = Some(direction);
        self
    }

    /// Edits only from `since` on, as when a route changes and leads through another box.
    #[must_use]
    pub fn since(mut self, since: Instant) -> Self {
        self.since = since;
        self
    }

    /// Returns the number of segments edited so far.
    pub fn edited(&self) -> u64 {
        self.edited
    }

    fn concerns(&self, now: Instant, direction: Direction, flags: Flags) -> bool {
        let syn = flags.contains(Flags::SYN);
        let in_scope = match self.scope {
            Scope::Syn => syn,
            Scope::Later => !syn,
            Scope::All => true,
        };
        in_scope && now >= self.since && self.direction.is_none_or(|only| only == direction)
    }

    fn apply(&mut self, packet: &mut Vec<u8>, segment: &Segment) {
        let mut kept = Vec::with_capacity(segment.tcp_len - HEADER_LEN);
        let mut edited = segment.options(packet).to_vec();
        let mut found = false;
        for range in segment::options(segment.options(packet)) {
            let option = &mut edited[range];
            if !self.target.covers(option[0]) {
                kept.extend_from_slice(option);
                continue;
            }
            found = true;
            match self.edit {
                Edit::Remove => {}
                Edit::Blank => option.fill(kind::NOP),
                Edit::Zero => option[2..].fill(0),
            }
        }
        if !found {
            return;
        }
        self.edited += 1;
        let options = match self.edit {
            Edit::Remove => kept,
            Edit::Blank | Edit::Zero => edited,
        };
        segment::replace_options(packet, segment, &options);
    }
}

impl Middlebox for OptionEdit {
    fn process(
        &mut self,
        now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        if let Some(segment) = Segment::find(&mut packet.bytes)
            && self.concerns(now, direction, segment.flags)
        {
            self.apply(&mut packet.bytes, &segment);
        }
        out.push_back((direction, packet));
    }
}
