//! Notices: what the driver is to do outside of streams and packets, told once for each change.

use braid_engine::PathId;
use braid_secure::Families;

use super::health::Reach;
use super::news;
use crate::admin::report::BoxCounters;
use crate::admin::status::ProxyStatus;

/// What the driver is to do outside of streams and packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Everything that is not TCP goes over this link from now on; `None` where no link is up and
    /// on.
    BestPath(Option<PathId>),
    /// Whether the link leads to a server and is on. Where it does not while another one proves that
    /// this is not the server's doing, nothing that is only forwarded is to stay on it.
    Reached(PathId, bool),
    /// Whether new connections of users are to be taken in. `false` when no server is reachable,
    /// or the box was switched off: then they are forwarded unjoined, while those taken in before keep being served.
    Intake(bool),
    /// The address families in which users' connections reach their destinations. Of the other one those that
    /// would be taken in are to be refused at once, so that programs use the one that is left.
    Families(Families),
}

/// The switch of the whole box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch {
    /// New connections are taken in while a server is reached.
    On,
    /// The operator wants none to be taken in.
    Off,
    /// The box is about to end, whatever the operator wants: nothing is taken in or looked into any more.
    Ending,
}

/// Decides whether new connections are taken in, and remembers what the driver was told of that and of the
/// best link. What it was told of one link is in [`Link`](super::links::Link), of families in
/// [`Reached`](super::families::Reached).
#[derive(Debug)]
pub(super) struct Notices {
    switch: Switch,
    /// Some server is reached, as far as is known.
    reached: bool,
    /// Whether new connections are taken in, by the last word to the driver; `None` before the first word to
    /// anybody, which the driver takes for `false`.
    said_intake: Option<bool>,
    told_best: Option<PathId>,
}

impl Notices {
    pub(super) fn new() -> Self {
        Notices {
            switch: Switch::On,
            reached: false,
            said_intake: None,
            told_best: None,
        }
    }

    /// Switches the box on or off, unless it is about to end.
    pub(super) fn switch(&mut self, on: bool) {
        if self.switch != Switch::Ending {
            self.switch = if on { Switch::On } else { Switch::Off };
        }
    }

    /// Takes nothing in from now on, and says nothing of it in the log.
    pub(super) fn end(&mut self) {
        self.switch = Switch::Ending;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.switch == Switch::Ending
    }

    /// Takes in the best that is known of servers over the links in use. While that is unknown nothing
    /// changes.
    pub(super) fn on_reach(&mut self, reach: Reach) {
        match reach {
            Reach::Up => self.reached = true,
            Reach::Down => self.reached = false,
            Reach::Unknown => {}
        }
    }

    /// Returns whether new connections are to be taken in.
    pub(super) fn takes_in(&self) -> bool {
        self.reached && self.switch == Switch::On
    }

    /// The notice of another best link, where the driver was told of `best` not yet.
    pub(super) fn poll_best(
        &mut self,
        best: Option<PathId>,
        counters: &mut BoxCounters,
    ) -> Option<Notice> {
        if self.told_best == best {
            return None;
        }
        self.told_best = best;
        counters.best_path_changes += 1;
        Some(Notice::BestPath(best))
    }

    /// The notice of what becomes of new connections, where that has changed.
    pub(super) fn poll_intake(&mut self, counters: &mut BoxCounters) -> Option<Notice> {
        let intake = self.takes_in();
        if self.said_intake.unwrap_or(false) == intake {
            return None;
        }
        self.said_intake = Some(intake);
        let switched_on = self.switch == Switch::On;
        counters.intake_stopped += u64::from(switched_on && !intake);
        if !self.is_ending() {
            news::log_intake(intake, switched_on);
        }
        Some(Notice::Intake(intake))
    }

    /// No server can be used. Where that has been so since the start it is no change of the driver's, and the
    /// log says so here.
    pub(super) fn note_cut_off(&mut self) {
        if self.said_intake.is_none() && self.switch == Switch::On {
            self.said_intake = Some(false);
            news::log_intake(false, true);
        }
    }

    pub(super) fn status(&self) -> ProxyStatus {
        ProxyStatus {
            on: self.switch == Switch::On,
            taking_in: self.takes_in(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once() {
        let mut counters = BoxCounters::default();
        let mut notices = Notices::new();
        let mut poll = |notices: &mut Notices| notices.poll_intake(&mut counters);
        assert_eq!(poll(&mut notices), None, "the driver knows");
        notices.on_reach(Reach::Up);
        assert_eq!(poll(&mut notices), Some(Notice::Intake(true)));
        notices.on_reach(Reach::Unknown);
        assert_eq!(poll(&mut notices), None);
        notices.switch(false);
        assert_eq!(poll(&mut notices), Some(Notice::Intake(false)));
        notices.on_reach(Reach::Down);
        notices.switch(true);
        assert_eq!(poll(&mut notices), None);
    }

    #[test]
    fn a_box_that_ends_takes_nothing_in_whatever_the_operator_wants() {
        let mut notices = Notices::new();
        notices.on_reach(Reach::Up);
        notices.end();
        notices.switch(true);
        assert!(notices.is_ending() && !notices.takes_in());
    }
}
