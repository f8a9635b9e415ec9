//! The exchange of FINs: the states of a connection that closes (RFC 9293 section 3.3.2).

/// Where the closing of a subflow stands. The handshake before it has states of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Both directions are open. `close` says that a CLOSE is queued until everything is sent.
    Established { close: bool },
    /// Our FIN was sent; neither its acknowledgement nor the peer's FIN came.
    FinWait1,
    /// Our FIN is acknowledged, and the peer may go on sending.
    FinWait2,
    /// Both FINs were sent, ours first, and ours is not acknowledged.
    Closing,
    /// Our FIN came first, and both are acknowledged: a peer that missed our last ACK sends its FIN again.
    TimeWait,
    /// The peer's FIN is here. `close` says that a CLOSE is queued until everything is sent.
    CloseWait { close: bool },
    /// Our FIN followed the peer's and is not acknowledged.
    LastAck,
    /// The peer's FIN came first, and ours is acknowledged: the peer has nothing left to repeat.
    Closed,
}

impl Default for Closing {
    fn default() -> Self {
        Closing::Established { close: false }
    }
}

impl Closing {
    /// Queues a FIN behind what is still to be sent.
    pub fn close(&mut self) {
        *self = match *self {
            Closing::Established { .. } => Closing::Established { close: true },
            Closing::CloseWait { .. } => Closing::CloseWait { close: true },
            closing => closing,
        };
    }

    /// Our FIN leaves for the first time.
    pub fn on_fin_sent(&mut self) {
        *self = match *self {
            Closing::Established { .. } => Closing::FinWait1,
            Closing::CloseWait { .. } => Closing::LastAck,
            closing => closing,
        };
    }

    /// The peer has our FIN.
    pub fn on_fin_acked(&mut self) {
        *self = match *self {
            Closing::FinWait1 => Closing::FinWait2,
            Closing::Closing => Closing::TimeWait,
            Closing::LastAck => Closing::Closed,
            closing => closing,
        };
    }

    /// The peer's FIN is here, and everything before it.
    pub fn on_peer_fin(&mut self) {
        *self = match *self {
            Closing::Established { close } => Closing::CloseWait { close },
            Closing::FinWait1 => Closing::Closing,
            Closing::FinWait2 => Closing::TimeWait,
            closing => closing,
        };
    }

    /// Returns whether nothing new may be put on the subflow: its FIN is queued or was sent.
    pub fn is_closed_here(self) -> bool {
        self.owes_fin() || self.is_fin_sent()
    }

    /// Returns whether a FIN is queued and not sent yet.
    pub fn owes_fin(self) -> bool {
        matches!(
            self,
            Closing::Established { close: true } | Closing::CloseWait { close: true }
        )
    }

    pub fn is_fin_sent(self) -> bool {
        !matches!(
            self,
            Closing::Established { .. } | Closing::CloseWait { .. }
        )
    }

    pub fn is_fin_acked(self) -> bool {
        self == Closing::FinWait2 || self.is_over()
    }

    /// Returns whether both FINs were sent and acknowledged.
    pub fn is_over(self) -> bool {
        matches!(self, Closing::TimeWait | Closing::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::Closing;

    const STATES: [Closing; 10] = [
        Closing::Established { close: false },
        Closing::Established { close: true },
        Closing::FinWait1,
        Closing::FinWait2,
        Closing::Closing,
        Closing::TimeWait,
        Closing::CloseWait { close: false },
        Closing::CloseWait { close: true },
        Closing::LastAck,
        Closing::Closed,
    ];

    fn after(state: Closing, event: fn(&mut Closing)) -> String {
        let mut next = state;
        event(&mut next);
        match next == state {
            true => "-".to_owned(),
            false => name(next),
        }
    }

    fn name(state: Closing) -> String {
        match state {
            Closing::Established { close: true } => "Established, queued".to_owned(),
            Closing::CloseWait { close: true } => "CloseWait, queued".to_owned(),
            Closing::Established { .. } => "Established".to_owned(),
            Closing::CloseWait { .. } => "CloseWait".to_owned(),
            state => format!("{state:?}"),
        }
    }

    /// The figure of RFC 9293 section 3.3.2, from ESTABLISHED on, with a CLOSE that is queued.
    #[test]
    fn the_table_of_transitions_is_that_of_the_rfc() {
        let mut table = String::new();
        for state in STATES {
            let cells = [
                after(state, Closing::close),
                after(state, Closing::on_fin_sent),
                after(state, Closing::on_fin_acked),
                after(state, Closing::on_peer_fin),
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
        let names = |says: fn(Closing) -> bool| {
            let states = STATES.into_iter().filter(|state| says(*state));
            states.map(name).collect::<Vec<_>>().join(" ")
        };
        let queued = "Established, queued CloseWait, queued";
        assert_eq!(names(Closing::owes_fin), queued);
        let sent = "FinWait1 FinWait2 Closing TimeWait LastAck Closed";
        assert_eq!(names(Closing::is_fin_sent), sent);
        assert_eq!(names(Closing::is_fin_acked), "FinWait2 TimeWait Closed");
        assert_eq!(names(Closing::is_over), "TimeWait Closed");
    }
}
