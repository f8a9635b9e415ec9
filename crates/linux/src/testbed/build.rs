//! Making and removing what a testbed consists of.

use super::Testbed;
use super::error::Error;
use super::status::{LinkStatus, Status};
use super::units::LinkChange;
use crate::emulator::Direction;

impl Testbed {
    pub(super) fn build(&mut self) -> Result<(), Error> {
        todo!()
    }
    pub(super) fn tear_down(&mut self) -> Result<(), Error> {
        todo!()
    }
    pub(super) fn change_link(
        &self,
        _link: &str,
        _direction: Option<Direction>,
        _change: &LinkChange,
    ) -> Result<(), Error> {
        todo!()
    }
    pub(super) fn link_status(&self, _link: &str) -> Result<LinkStatus, Error> {
        todo!()
    }
    pub(super) fn collect_status(&mut self) -> Result<Status, Error> {
        todo!()
    }
}

/// Removes what a testbed named `name` left behind.
pub(super) fn remove_leftovers(_name: &str) -> Result<(), Error> {
    todo!()
}
