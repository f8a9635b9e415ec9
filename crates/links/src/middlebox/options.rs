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
    /// Options that an old middlebox does not know: all but MSS, window scale, SACK and timestamps.
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
    /// All segments but SYN and SYN/ACK.
    Later,
    /// All segments.
    All,
}

/// The change to an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Removes the option. The header becomes shorter.
    Remove,
    /// Overwrites the option with NOPs.
    Blank,
    /// Overwrites the option with zeros, except for kind and length.
    Zero,
}

/// A middlebox that edits TCP options. Honda et al. found such middleboxes in the Internet ("Is it still possible to
/// extend TCP?", IMC 2011).
#[derive(Debug, Clone)]
pub struct OptionEdit {
    target: Target,
    scope: Scope,
    edit: Edit,
    /// The direction of the segments to edit; `None` for both.
    direction: Option<Direction>,
    since: Instant,
    edited: u64,
}

impl OptionEdit {
    /// Creates a middlebox that applies `edit` to the options `target` of the segments in `scope`, in both
    /// directions.
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

    /// Restricts the edits to segments of one direction.
    #[must_use]
    pub fn only(mut self, direction: Direction) -> Self {
        self.direction = Some(direction);
        self
    }

    /// Restricts the edits to packets at `since` or later, as if a route changed at `since` and then led through
    /// this middlebox.
    #[must_use]
    pub fn since(mut self, since: Instant) -> Self {
        self.since = since;
        self
    }

    /// Returns the number of edited segments so far.
    pub fn edited(&self) -> u64 {
        self.edited
    }

    /// Returns whether the options of a segment with `flags` are to be edited.
    fn applies_to(&self, now: Instant, direction: Direction, flags: Flags) -> bool {
        let syn = flags.contains(Flags::SYN);
        let in_scope = match self.scope {
            Scope::Syn => syn,
            Scope::Later => !syn,
            Scope::All => true,
        };
        in_scope && now >= self.since && self.direction.is_none_or(|only| only == direction)
    }

    fn apply(&mut self, packet: &mut Vec<u8>, segment: &Segment) {
        // `others` has the options without the targets, and `edited` has all options with the targets edited.
        // `edit` decides which of the two is used.
        let mut others = Vec::with_capacity(segment.tcp_len - HEADER_LEN);
        let mut edited = segment.options(packet).to_vec();
        let mut found = false;
        for option in segment::options_mut(&mut edited) {
            if !self.target.covers(option[0]) {
                others.extend_from_slice(option);
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
            Edit::Remove => others,
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
            && self.applies_to(now, direction, segment.flags)
        {
            self.apply(&mut packet.bytes, &segment);
        }
        out.push_back((direction, packet));
    }
}
