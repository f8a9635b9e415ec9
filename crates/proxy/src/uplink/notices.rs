//! Notices: instructions to the driver about interception and forwarding, given once for each change.

use braid_engine::PathId;
use braid_secure::Families;

use super::health::Reach;
use super::log;
use crate::admin::report::BoxCounters;
use crate::admin::status::ProxyStatus;

/// An instruction to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// From now on, send all traffic other than TCP over this link; `None` if no link is up and switched on.
    BestPath(Option<PathId>),
    /// `true`: forwarded traffic may use the link. `false`: forwarded traffic must leave the link, because the link is
    /// switched off, or leads to no server through its own fault.
    Reached(PathId, bool),
    /// Begin (`true`) or stop (`false`) to intercept new connections of users. Interception stops while no server
    /// is reachable or the box is switched off. New connections are then forwarded, and intercepted ones continue.
    Intercept(bool),
    /// The address families in which some server reaches destinations. Refuse new connections of another family at
    /// once, so that programs use a family that works.
    Families(Families),
}

/// The state of the box's switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch {
    /// Intercept new connections while a server is reachable.
    On,
    /// Intercept none, because the operator has switched the box off.
    Off,
    /// The box is being stopped: it intercepts and examines nothing, and the operator's switch has no effect.
    Ending,
}

/// Decides whether new connections are intercepted, and remembers the last notices about interception and the best
/// link. [`Link`](super::links::Link) remembers the last notice about its link, and
/// [`ReachedFamilies`](super::families::ReachedFamilies) the one about address families.
#[derive(Debug)]
pub(super) struct Notices {
    switch: Switch,
    /// True if some server was reachable in the last known state.
    reached: bool,
    /// The value of the last notice about interception; `None` before the first notice, when the driver assumes
    /// `false`.
    notified_interception: Option<bool>,
    /// The value of the last notice about the best link.
    notified_best: Option<PathId>,
}

impl Notices {
    pub(super) fn new() -> Self {
        Notices {
            switch: Switch::On,
            reached: false,
            notified_interception: None,
            notified_best: None,
        }
    }

    /// Switches the box on or off, unless it is ending.
    pub(super) fn switch(&mut self, on: bool) {
        if self.switch != Switch::Ending {
            self.switch = if on { Switch::On } else { Switch::Off };
        }
    }

    /// Stops interception for good, because the box is being stopped. No line is logged.
    pub(super) fn end(&mut self) {
        self.switch = Switch::Ending;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.switch == Switch::Ending
    }

    /// Records the best state of any server over the links in use. An unknown state changes nothing.
    pub(super) fn on_reach(&mut self, reach: Reach) {
        match reach {
            Reach::Up => self.reached = true,
            Reach::Down => self.reached = false,
            Reach::Unknown => {}
        }
    }

    /// Returns whether new connections should be intercepted.
    pub(super) fn intercepts(&self) -> bool {
        self.reached && self.switch == Switch::On
    }

    /// Returns the notice of the best link, if the best link has changed since the last notice.
    pub(super) fn poll_best(
        &mut self,
        best: Option<PathId>,
        counters: &mut BoxCounters,
    ) -> Option<Notice> {
        if self.notified_best == best {
            return None;
        }
        self.notified_best = best;
        counters.best_path_changes += 1;
        Some(Notice::BestPath(best))
    }

    /// Returns the notice about interception, if interception has changed since the last notice.
    pub(super) fn poll_interception(&mut self, counters: &mut BoxCounters) -> Option<Notice> {
        let intercept = self.intercepts();
        if self.notified_interception.unwrap_or(false) == intercept {
            return None;
        }
        self.notified_interception = Some(intercept);
        let switched_on = self.switch == Switch::On;
        counters.interception_stopped += u64::from(switched_on && !intercept);
        if !self.is_ending() {
            log::log_interception(intercept, switched_on);
        }
        Some(Notice::Intercept(intercept))
    }

    /// Records that no server can be used. At the start the driver gets no notice of this state, because
    /// interception has not begun. So this method writes the log line.
    pub(super) fn note_cut_off(&mut self) {
        if self.notified_interception.is_none() && self.switch == Switch::On {
            self.notified_interception = Some(false);
            log::log_interception(false, true);
        }
    }

    pub(super) fn status(&self) -> ProxyStatus {
        ProxyStatus {
            on: self.switch == Switch::On,
            intercepting: self.intercepts(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_gives_one_notice() {
        let mut counters = BoxCounters::default();
        let mut notices = Notices::new();
        let mut poll = |notices: &mut Notices| notices.poll_interception(&mut counters);
        assert_eq!(
            poll(&mut notices),
            None,
            "the driver assumes that interception is off"
        );
        notices.on_reach(Reach::Up);
        assert_eq!(poll(&mut notices), Some(Notice::Intercept(true)));
        notices.on_reach(Reach::Unknown);
        assert_eq!(poll(&mut notices), None);
        notices.switch(false);
        assert_eq!(poll(&mut notices), Some(Notice::Intercept(false)));
        notices.on_reach(Reach::Down);
        notices.switch(true);
        assert_eq!(poll(&mut notices), None);
    }

    #[test]
    fn an_ending_box_intercepts_nothing_even_if_it_is_switched_on() {
        let mut notices = Notices::new();
        notices.on_reach(Reach::Up);
        notices.end();
        notices.switch(true);
        assert!(notices.is_ending() && !notices.intercepts());
    }
}
