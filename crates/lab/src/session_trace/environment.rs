//! The network namespaces and emulated links of a session, and its background traffic.

use std::thread;

use braid_links::Schedule;
use braid_testbed::emulator::ScheduledSettings;

use super::SessionScenario;
use super::background::BackgroundTraffic;
use crate::backend::Error;
use crate::backend::fixture::Fixture;

/// Namespaces and links of a scenario, with its background traffic if it has any.
pub(super) struct Environment<'a> {
    pub fixture: Fixture,
    link_settings: Vec<[ScheduledSettings; 2]>,
    background: Option<BackgroundTraffic<'a>>,
}

impl<'a> Environment<'a> {
    pub fn build(scenario: &'a SessionScenario<'_>) -> Result<Self, Error> {
        let paths = scenario.paths.len();
        let extra_links: &[_] = match scenario.background {
            Some(_) => &BackgroundTraffic::LINKS,
            None => &[],
        };
        let fixture = Fixture::build(paths, extra_links)?;
        let background = scenario.background.as_ref();
        let background = background.map(|b| BackgroundTraffic::configure(b, &fixture, paths));
        let background = background.transpose()?;
        // Only the first path changes over time.
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

    /// Runs `measure` while the links follow their schedules and background traffic flows. Repeats the run if
    /// the emulator delivered packets too late.
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
                        .map(|b| b.start(scope, seed))
                        .transpose()?;
                    let measured = measure(seed);
                    // The scope waits for the traffic's threads, so they must stop first.
                    drop(guard);
                    measured
                })
            })
    }
}
