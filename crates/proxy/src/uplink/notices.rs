//! Notices: instructions to the driver outside of streams and packets, given once for each change.

use braid_engine::PathId;
use braid_secure::Families;

use super::health::Reach;
use super::log;
use crate::admin::report::BoxCounters;
use crate::admin::status::ProxyStatus;

/// An instruction to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Send everything that is not TCP over this link from now on; `None` where no link is up and switched on.
    BestPath(Option<PathId>),
    /// The link leads to a server and is switched on (`true`), or not. Where another link proves that the server
    /// is not the cause, forwarded traffic must leave this link.
    Reached(PathId, bool),
    /// Intercept new connections of users, or stop. Interception stops while no server is reachable or the box is
    /// switched off: new connections are then forwarded, while intercepted ones continue.
    Intercept(bool),
    /// The address families in which users' connections reach their destinations. New connections of another
    /// family must be refused at once, so that programs use a family that works.
    Families(Families),
}

/// The state of the box's switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch {
    /// Intercept new connections while a server is reachable.
    On,
    /// Intercept none, as the operator decided.
    Off,
    /// The box is about to end, whatever the operator wants: it intercepts nothing and examines nothing.
    Ending,
}

/// Decides whether new connections are intercepted, and remembers what the driver was told about that and about
/// the best link. [`Link`](super::links::Link) remembers this for its link,
/// [`ReachedFamilies`](super::families::ReachedFamilies) for families.
#[derive(Debug)]
pub(super) struct Notices {
    switch: Switch,
    /// The last known state: some server is reachable.
    reached: bool,
    /// The last instruction to the driver about interception; `None` before the first, which equals `false`.
    notified_interception: Option<bool>,
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

    /// Stops interception for good, without a line in the log.
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

    /// Returns whether new connections are to be intercepted.
    pub(super) fn intercepts(&self) -> bool {
        self.reached && self.switch == Switch::On
    }

    /// Returns the notice of the best link, unless the driver knows it.
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

    /// Returns the notice about interception, where that has changed.
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

    /// Records that no server can be used. At the start this is no change for the driver, so it is logged here.
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
    fn a_change_is_told_once() {
        let mut counters = BoxCounters::default();
        let mut notices = Notices::new();
        let mut poll = |notices: &mut Notices| notices.poll_interception(&mut counters);
        assert_eq!(poll(&mut notices), None, "the driver knows");
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
    fn a_box_that_ends_takes_nothing_in_whatever_the_operator_wants() {
        let mut notices = Notices::new();
        notices.on_reach(Reach::Up);
        notices.end();
        notices.switch(true);
        assert!(notices.is_ending() && !notices.intercepts());
    }
}
