//! The properties that decide how a connection competes with others: its urgency and its congestion control.

use crate::cc::Algorithm;
use crate::{Class, Config, Urgency};

/// Urgency and congestion control of a connection.
#[derive(Debug, Default)]
pub(crate) struct TransmissionProfile {
    /// The urgency of writes that name none.
    pub urgency: Urgency,
    /// The congestion control set explicitly; `None` to derive it from the urgency.
    pub congestion: Option<Algorithm>,
}

impl TransmissionProfile {
    /// Returns the class of writes that name none.
    pub fn class(&self) -> Class {
        Class {
            urgency: self.urgency,
            ..Class::default()
        }
    }

    /// Returns the congestion control of the subflows.
    pub fn algorithm(&self, config: &Config) -> Algorithm {
        let by_urgency = config.congestion_of(self.urgency);
        self.congestion.unwrap_or(by_urgency)
    }

    /// Sets the urgency. Returns the congestion control that the connection is to run now, if it differs from
    /// the present one: an unchanged congestion control must keep its state.
    pub fn set_urgency(&mut self, config: &Config, urgency: Urgency) -> Option<Algorithm> {
        let before = self.algorithm(config).name();
        self.urgency = urgency;
        let algorithm = self.algorithm(config);
        (algorithm.name() != before).then_some(algorithm)
    }
}
