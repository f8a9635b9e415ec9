//! The exchange of DATA_FINs: the states of an MPTCP connection that closes (RFC 8684 section 3.3.3 and the
//! figure of appendix D). With regular TCP the FINs of the subflow take the place of the DATA_FINs.

use core::time::Duration;

use braid_wire::Instant;

/// The state of the connection, named as in appendix D without the prefix `M_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DataState {
    /// Both directions are open.
    #[default]
    Estab,
    /// This side sends no more; neither the acknowledgement of its DATA_FIN nor the peer's DATA_FIN has
    /// arrived.
    FinWait1,
    /// Our DATA_FIN is acknowledged, and the peer may still send.
    FinWait2,
    /// Both sides send no more. Our DATA_FIN was sent first, and is not acknowledged.
    Closing,
    /// Both DATA_FINs are acknowledged; ours was first.
    TimeWait,
    /// All data of the peer and its DATA_FIN are here; this side may still send.
    CloseWait,
    /// Our DATA_FIN follows the peer's and is not acknowledged.
    LastAck,
    /// Both DATA_FINs are acknowledged; the peer's was first.
    Closed,
}

/// The progress of closing, and the time at which DATA_FIN is repeated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DataClosing {
    state: DataState,
    /// Set while our DATA_FIN is to be sent, for the first time or again, once all data is sent.
    due: bool,
    /// The time at which DATA_FIN is repeated; `tries` counts how often it was sent.
    pub at: Option<Instant>,
    tries: u32,
}

impl DataClosing {
    /// Closes our direction: this side has no more to send.
    pub fn close(&mut self) {
        self.due = true;
        self.state = match self.state {
            DataState::Estab => DataState::FinWait1,
            DataState::CloseWait => DataState::LastAck,
            state => state,
        };
    }

    /// Notes that DATA_FIN is sent. DATA_FIN is repeated after `rto`, and this delay doubles with each try up to
    /// a factor of 32.
    pub fn on_sent(&mut self, now: Instant, rto: Duration) {
        self.due = false;
        let rto = rto * (1 << self.tries.min(5));
        self.tries += 1;
        self.at = Some(now + rto);
    }

    /// Notes that the subflow's FIN is sent in place of DATA_FIN, because the connection is regular TCP.
    pub fn on_sent_plainly(&mut self) {
        self.due = false;
    }

    /// Makes DATA_FIN due again if it is not acknowledged, because the last one may be lost. After a fallback
    /// this makes the subflow's FIN due, because a DATA_FIN has no meaning in regular TCP.
    pub fn repeat(&mut self) {
        self.at = None;
        self.due |= !self.is_open() && !self.is_acked();
    }

    /// Notes that the peer acknowledged our DATA_FIN.
    pub fn on_acked(&mut self) {
        (self.due, self.at) = (false, None);
        self.state = match self.state {
            DataState::FinWait1 => DataState::FinWait2,
            DataState::Closing => DataState::TimeWait,
            DataState::LastAck => DataState::Closed,
            state => state,
        };
    }

    /// Notes that the peer's DATA_FIN and all data before it are here.
    pub fn on_peer_fin(&mut self) {
        self.state = match self.state {
            DataState::Estab => DataState::CloseWait,
            DataState::FinWait1 => DataState::Closing,
            DataState::FinWait2 => DataState::TimeWait,
            state => state,
        };
    }

    /// Takes the peer's DATA_FIN back, because the connection ends before all data was read. The stream must not
    /// look finished then.
    pub fn on_cut_off(&mut self) {
        self.state = match self.state {
            DataState::CloseWait => DataState::Estab,
            DataState::Closing | DataState::LastAck => DataState::FinWait1,
            DataState::TimeWait | DataState::Closed => DataState::FinWait2,
            state => state,
        };
    }

    /// Returns whether this side may still write.
    pub fn is_open(&self) -> bool {
        matches!(self.state, DataState::Estab | DataState::CloseWait)
    }

    /// Returns whether our DATA_FIN is to be sent.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Returns the number of times our DATA_FIN was sent.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns whether our DATA_FIN was sent at least once and is not acknowledged.
    pub fn is_out(&self) -> bool {
        self.tries > 0 && !self.is_acked()
    }

    pub fn is_acked(&self) -> bool {
        self.state == DataState::FinWait2 || self.is_over()
    }

    /// Returns whether all data of the peer and its DATA_FIN are here.
    pub fn is_peer_closed(&self) -> bool {
        !matches!(
            self.state,
            DataState::Estab | DataState::FinWait1 | DataState::FinWait2
        )
    }

    /// Returns whether both directions are closed and acknowledged; data may remain to be read.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DataState::TimeWait | DataState::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::{DataClosing, DataState};

    /// The expected transitions are those of the figure of RFC 8684 appendix D, except for the last column,
    /// the cut-off, which the figure does not have.
    #[test]
    fn the_table_of_transitions_is_that_of_the_rfc() {
        let events: [fn(&mut DataClosing); 4] = [
            DataClosing::close,
            DataClosing::on_acked,
            DataClosing::on_peer_fin,
            DataClosing::on_cut_off,
        ];
        let states = [
            DataState::Estab,
            DataState::FinWait1,
            DataState::FinWait2,
            DataState::Closing,
            DataState::TimeWait,
            DataState::CloseWait,
            DataState::LastAck,
            DataState::Closed,
        ];
        let mut table = String::new();
        for state in states {
            let cells = events.map(|event| {
                let mut closing = DataClosing {
                    state,
                    ..DataClosing::default()
                };
                event(&mut closing);
                match closing.state == state {
                    true => "-".to_owned(),
                    false => format!("{:?}", closing.state),
                }
            });
            table += &format!("{state:?}: {}\n", cells.join(" | "));
        }
        // M_CLOSE | DATA_ACK of DATA_FIN | the peer's DATA_FIN | cut off
        let expected = "\
Estab: FinWait1 | - | CloseWait | -
FinWait1: - | FinWait2 | Closing | -
FinWait2: - | - | TimeWait | -
Closing: - | TimeWait | - | FinWait1
TimeWait: - | - | - | FinWait2
CloseWait: LastAck | - | - | Estab
LastAck: - | Closed | - | FinWait1
Closed: - | - | - | FinWait2
";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_data_fin_is_due_until_it_is_sent_and_again_when_it_is_repeated() {
        use braid_wire::Instant;
        use core::time::Duration;

        let (now, rto) = (Instant::from_millis(1000), Duration::from_millis(200));
        let mut closing = DataClosing::default();
        closing.repeat();
        assert!(!closing.is_due() && !closing.is_out());
        closing.close();
        assert!(closing.is_due() && !closing.is_out());
        closing.on_sent(now, rto);
        assert!(!closing.is_due() && closing.is_out());
        assert_eq!(closing.at, Some(now + rto));
        closing.repeat();
        closing.on_sent(now, rto);
        assert_eq!(closing.at, Some(now + 2 * rto));
        closing.on_acked();
        closing.repeat();
        assert!(!closing.is_due() && !closing.is_out() && closing.at.is_none());
    }
}
