//! The exchange of FINs: the states of a connection that closes (RFC 9293 section 3.3.2).

/// The state of a subflow after the handshake (RFC 9293 section 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinState {
    /// Both directions are open. `close` is set if a CLOSE is queued until everything is sent.
    Established { close: bool },
    /// Our FIN was sent; neither its acknowledgement nor the peer's FIN has arrived.
    FinWait1,
    /// Our FIN is acknowledged, and the peer may still send data.
    FinWait2,
    /// Both FINs were sent, ours first, and ours is not acknowledged.
    Closing,
    /// Our FIN was sent before the peer's FIN arrived, and both are acknowledged. The state remains because a peer
    /// that missed our last ACK retransmits its FIN.
    TimeWait,
    /// The peer's FIN has arrived. `close` is set if a CLOSE is queued until everything is sent.
    CloseWait { close: bool },
    /// Our FIN followed the peer's and is not acknowledged.
    LastAck,
    /// The peer's FIN arrived before ours was sent, and ours is acknowledged: the peer has nothing to retransmit.
    Closed,
}

impl Default for FinState {
    fn default() -> Self {
        FinState::Established { close: false }
    }
}

impl FinState {
    /// Queues a FIN after the data that is still to be sent.
    pub fn close(&mut self) {
        *self = match *self {
            FinState::Established { .. } => FinState::Established { close: true },
            FinState::CloseWait { .. } => FinState::CloseWait { close: true },
            closing => closing,
        };
    }

    /// Notes that our FIN is sent for the first time.
    pub fn on_fin_sent(&mut self) {
        *self = match *self {
            FinState::Established { .. } => FinState::FinWait1,
            FinState::CloseWait { .. } => FinState::LastAck,
            closing => closing,
        };
    }

    /// Notes that the peer acknowledged our FIN.
    pub fn on_fin_acked(&mut self) {
        *self = match *self {
            FinState::FinWait1 => FinState::FinWait2,
            FinState::Closing => FinState::TimeWait,
            FinState::LastAck => FinState::Closed,
            closing => closing,
        };
    }

    /// Notes that the peer's FIN and all data before it have arrived.
    pub fn on_peer_fin(&mut self) {
        *self = match *self {
            FinState::Established { close } => FinState::CloseWait { close },
            FinState::FinWait1 => FinState::Closing,
            FinState::FinWait2 => FinState::TimeWait,
            closing => closing,
        };
    }

    /// Returns whether no new data may be sent on the subflow, because its FIN is queued or was sent.
    pub fn is_closed_here(self) -> bool {
        !matches!(
            self,
            FinState::Established { close: false } | FinState::CloseWait { close: false }
        )
    }

    /// Returns whether our FIN is queued and not sent yet.
    pub fn owes_fin(self) -> bool {
        matches!(
            self,
            FinState::Established { close: true } | FinState::CloseWait { close: true }
        )
    }

    pub fn is_fin_sent(self) -> bool {
        !matches!(
            self,
            FinState::Established { .. } | FinState::CloseWait { .. }
        )
    }

    pub fn is_fin_acked(self) -> bool {
        self == FinState::FinWait2 || self.is_over()
    }

    /// Returns whether both FINs were sent and acknowledged.
    pub fn is_over(self) -> bool {
        matches!(self, FinState::TimeWait | FinState::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::FinState;

    const STATES: [FinState; 10] = [
        FinState::Established { close: false },
        FinState::Established { close: true },
        FinState::FinWait1,
        FinState::FinWait2,
        FinState::Closing,
        FinState::TimeWait,
        FinState::CloseWait { close: false },
        FinState::CloseWait { close: true },
        FinState::LastAck,
        FinState::Closed,
    ];

    fn after(state: FinState, event: fn(&mut FinState)) -> String {
        let mut next = state;
        event(&mut next);
        match next == state {
            true => "-".to_owned(),
            false => name(next),
        }
    }

    fn name(state: FinState) -> String {
        match state {
            FinState::Established { close: true } => "Established, queued".to_owned(),
            FinState::CloseWait { close: true } => "CloseWait, queued".to_owned(),
            FinState::Established { .. } => "Established".to_owned(),
            FinState::CloseWait { .. } => "CloseWait".to_owned(),
            state => format!("{state:?}"),
        }
    }

    /// The transitions are those in the figure of RFC 9293 section 3.3.2 after ESTABLISHED. The states with a
    /// queued CLOSE are added.
    #[test]
    fn the_table_of_transitions_is_that_of_the_rfc() {
        let mut table = String::new();
        for state in STATES {
            let cells = [
                after(state, FinState::close),
                after(state, FinState::on_fin_sent),
                after(state, FinState::on_fin_acked),
                after(state, FinState::on_peer_fin),
            ];
            table += &format!("{}: {}\n", name(state), cells.join(" | "));
        }
        // CLOSE | FIN sent | FIN acknowledged | the peer's FIN
        let expected = "\
Established: Established, queued | FinWait1 | - | CloseWait
Established, queued: - | FinWait1 | - | CloseWait, queued
FinWait1: - | - | FinWait2 | Closing
FinWait2: - | - | - | TimeWait
Closing: - | - | TimeWait | -
TimeWait: - | - | - | -
CloseWait: CloseWait, queued | LastAck | - | -
CloseWait, queued: - | LastAck | - | -
LastAck: - | - | Closed | -
Closed: - | - | - | -
";
        assert_eq!(table, expected);
    }

    #[test]
    fn what_a_state_says_of_either_fin() {
        let names = |says: fn(FinState) -> bool| {
            let states = STATES.into_iter().filter(|state| says(*state));
            states.map(name).collect::<Vec<_>>().join(" ")
        };
        let queued = "Established, queued CloseWait, queued";
        assert_eq!(names(FinState::owes_fin), queued);
        let sent = "FinWait1 FinWait2 Closing TimeWait LastAck Closed";
        assert_eq!(names(FinState::is_fin_sent), sent);
        assert_eq!(names(FinState::is_fin_acked), "FinWait2 TimeWait Closed");
        assert_eq!(names(FinState::is_over), "TimeWait Closed");
    }
}
