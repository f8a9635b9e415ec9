//! The testbed of a session over emulated links.

use std::thread;

use braid_links::Schedule;
use braid_testbed::emulator::Course;

use super::Scene;
use super::others::Others;
use crate::backend::Error;
use crate::backend::fixture::Fixture;

/// Namespaces and links of a scene, with its background traffic if it has any.
pub(super) struct Ground<'a> {
    pub fixture: Fixture,
    courses: Vec<[Course; 2]>,
    others: Option<Others<'a>>,
}

impl<'a> Ground<'a> {
    pub fn build(scene: &'a Scene<'_>) -> Result<Self, Error> {
        let paths = scene.paths.len();
        let join: &[_] = match scene.background {
            Some(_) => &Others::LINKS,
            None => &[],
        };
        let fixture = Fixture::build(paths, join)?;
        let background = scene.background.as_ref();
        let others = background.map(|others| Others::join(others, &fixture, paths));
        let others = others.transpose()?;
        let course = |n: usize| {
            let schedule = match n {
                0 => scene.first.clone(),
                _ => Schedule::default(),
            };
            [&scene.paths[n].up, &scene.paths[n].down].map(|settings| Course {
                settings: settings.clone(),
                schedule: schedule.clone(),
            })
        };
        let mut courses: Vec<_> = (0..paths).map(course).collect();
        courses.extend(others.iter().flat_map(|_| Others::courses()));
        Ok(Ground {
            fixture,
            courses,
            others,
        })
    }

    /// Runs `measure` while links take their courses and background traffic flows. Repeats it if the
    /// emulator was late.
    pub fn measured<T>(
        &mut self,
        seed: u64,
        mut measure: impl FnMut(u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let others = &self.others;
        self.fixture.measured(&self.courses, seed, |seed| {
            thread::scope(|scope| {
                let busy = others.as_ref().map(|o| o.start(scope, seed)).transpose()?;
                let measured = measure(seed);
                drop(busy);
                measured
            })
        })
    }
}
