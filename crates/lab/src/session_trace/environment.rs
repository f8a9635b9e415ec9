//! The testbed of a session over emulated links.

use std::thread;

use braid_links::Schedule;
use braid_testbed::emulator::ScheduledSettings;

use super::SessionScenario;
use super::background::BackgroundTraffic;
use crate::backend::Error;
use crate::backend::fixture::Fixture;

/// The namespaces and links of a scenario, and its background traffic.
pub(super) struct Environment<'a> {
    pub fixture: Fixture,
    link_settings: Vec<[ScheduledSettings; 2]>,
    background: Option<BackgroundTraffic<'a>>,
}

impl<'a> Environment<'a> {
    /// Builds the testbed.
    pub fn build(scenario: &'a SessionScenario<'_>) -> Result<Self, Error> {
        let paths = scenario.paths.len();
        let other_hosts: &[_] = match scenario.background {
            Some(_) => &BackgroundTraffic::LINKS,
            None => &[],
        };
        let fixture = Fixture::build(paths, other_hosts)?;
        let background = scenario.background.as_ref();
        let background =
            background.map(|others| BackgroundTraffic::set_up(others, &fixture, paths));
        let background = background.transpose()?;
        let scheduled = |n: usize| {
            let schedule = match n {
                0 => scenario.first.clone(),
                _ => Schedule::default(),
            };
            [&scenario.paths[n].up, &scenario.paths[n].down].map(|settings| ScheduledSettings {
                settings: settings.clone(),
                schedule: schedule.clone(),
            })
        };
        let mut link_settings: Vec<_> = (0..paths).map(scheduled).collect();
        link_settings.extend(
            background
                .iter()
                .flat_map(|_| BackgroundTraffic::link_settings()),
        );
        Ok(Environment {
            fixture,
            link_settings,
            background,
        })
    }

    /// Runs `measure` while the links follow their schedules and background traffic flows. Repeats all of it
    /// if the emulator was late.
    pub fn measure_on_time<T>(
        &mut self,
        seed: u64,
        mut measure: impl FnMut(u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let background = &self.background;
        self.fixture
            .measure_on_time(&self.link_settings, seed, |seed| {
                thread::scope(|scope| {
                    let guard = background
                        .as_ref()
                        .map(|o| o.start(scope, seed))
                        .transpose()?;
                    let result = measure(seed);
                    // The traffic must end here, or the scope would wait for its threads forever.
                    drop(guard);
                    result
                })
            })
    }
}
