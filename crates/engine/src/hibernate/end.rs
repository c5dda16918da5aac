//! Behind the commit: the processes end, and the dozing image goes.

use rustix::io::Errno;

use super::{Captured, HibernateError, Hibernating};
use crate::sleep::{Failure, remove_image};
use crate::target::Phase;
use crate::warm::Warm;
use torpor_process::step::Step;
use torpor_restore::run::wait_for_ids;

impl Hibernating<'_> {
    /// Ends all processes.
    pub(super) fn end(&mut self, captured: Captured) -> Result<Warm, HibernateError> {
        self.try_end(&captured.segments).map_err(|error| HibernateError::Ending(Box::new(error)))?;
        Ok(Warm {
            image: self.request.image.clone(),
            image_bytes: captured.image_bytes,
            wake_at: self.asleep.wake_at,
            warnings: captured.warnings,
        })
    }

    fn try_end(&mut self, segments: &[i32]) -> Result<(), Failure> {
        self.target.freezer.end_processes().map_err(Failure::End)?;
        let ids: Vec<i32> = self.stopped.iter().map(|process| process.pid).collect();
        for mut process in std::mem::take(&mut self.stopped).into_iter().filter_map(|one| one.alive) {
            // The first thread's end is told only when the others' has been taken; init is told behind that.
            while process.threads.pop().is_some() {}
        }
        // A packet may come at once, and the ids are taken until init has asked for them.
        wait_for_ids(ids.into_iter());
        self.remove(segments)?;
        self.reached(Step::Ended)?;
        let phase = Phase::Warm { generation: self.request.image.generation(), wake_at: self.asleep.wake_at };
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        remove_image(&self.asleep.image)?;
        Ok(self.reached(Step::Warm)?)
    }

    /// Removes System V segments; those that were marked to go have gone already.
    fn remove(&self, segments: &[i32]) -> Result<(), Failure> {
        if segments.is_empty() {
            return Ok(());
        }
        let gone = [Errno::INVAL.raw_os_error(), Errno::IDRM.raw_os_error()];
        let removed = torpor_process::view::enter(&self.request.home.init, || {
            segments.iter().try_for_each(|id| match torpor_linux::shm::remove(*id) {
                Err(error) if error.raw_os_error().is_some_and(|number| gone.contains(&number)) => Ok(()),
                other => other,
            })
        });
        removed.and_then(|result| result).map_err(Failure::End)
    }
}
