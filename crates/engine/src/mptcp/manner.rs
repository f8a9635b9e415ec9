//! The standing of a connection among others: its urgency, and the congestion control that follows from it.

use crate::cc::Algorithm;
use crate::{Class, Config, Urgency};

/// Urgency and congestion control of a connection.
#[derive(Debug, Default)]
pub(crate) struct Manner {
    /// Of writes that name none.
    pub urgency: Urgency,
    /// Congestion control, where it is not what the urgency says.
    pub congestion: Option<Algorithm>,
}

impl Manner {
    /// The class of writes that name none.
    pub fn class(&self) -> Class {
        Class {
            urgency: self.urgency,
            ..Class::default()
        }
    }

    /// Congestion control of the subflows.
    pub fn algorithm(&self, config: &Config) -> Algorithm {
        let usual = config.congestion_of(self.urgency);
        self.congestion.unwrap_or(usual)
    }

    /// Stands back behind other connections, or no longer does, as `urgency` says. Returns the congestion
    /// control that this asks for, where it is another one.
    pub fn set_urgency(&mut self, config: &Config, urgency: Urgency) -> Option<Algorithm> {
        let before = self.algorithm(config).name();
        self.urgency = urgency;
        let algorithm = self.algorithm(config);
        (algorithm.name() != before).then_some(algorithm)
    }
}
