//! The thread that makes, maps and unmaps arenas: touching the pages of a large one takes seconds,
//! and other clients must not wait for it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use kvrail_memory::{MemoryError, Region, Sealing, place};
use kvrail_ring::{Bell, RegionId};
use rustix::io::Errno;

use crate::config::{Home, PagePolicy};
use crate::error::ServerError;

/// What an arena is made of.
#[derive(Debug)]
pub(crate) enum Recipe {
    /// New memory.
    Create {
        /// At least so many.
        bytes: usize,
        /// Which pages.
        pages: PagePolicy,
    },
    /// A client's memory file, the size it announced, and the seals it must have.
    Import(OwnedFd, u64, Sealing),
}

#[derive(Debug)]
enum Job {
    Make { session: u64, region: RegionId, recipe: Recipe },
    Unmap(Arc<Region>),
}

/// What is not as wished, and why.
pub(crate) type Unfulfilled = (&'static str, MemoryError);

/// Memory, with what the operator should know of it; or why there is none.
pub(crate) type Outcome = Result<(Region, Vec<Unfulfilled>), MemoryError>;

/// An answer.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) session: u64,
    pub(crate) region: RegionId,
    pub(crate) outcome: Outcome,
}

/// The control thread's end. The thread ends when this is dropped and its jobs are done.
#[derive(Debug)]
pub(crate) struct Maker {
    jobs: Sender<Job>,
    made: Receiver<Made>,
}

impl Maker {
    /// Starts the thread; it rings `to_control` after every answer.
    pub(crate) fn start(to_control: Arc<Bell>, home: Home) -> Result<Self, ServerError> {
        let (jobs, job_queue) = channel();
        let (answers, made) = channel();
        let work = move || work(&job_queue, &answers, &to_control, &home);
        thread::Builder::new().name("kvrail-memory".into()).spawn(work).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            ServerError::Loop { step: "spawning the memory thread", errno }
        })?;
        Ok(Self { jobs, made })
    }

    pub(crate) fn make(&self, session: u64, region: RegionId, recipe: Recipe) {
        self.post(Job::Make { session, region, recipe });
    }

    /// Unmaps, if this is the last reference.
    pub(crate) fn unmap(&self, region: Arc<Region>) {
        self.post(Job::Unmap(region));
    }

    fn post(&self, job: Job) {
        self.jobs.send(job).expect("the memory thread lives as long as its queue");
    }

    pub(crate) fn receive(&self) -> Option<Made> {
        self.made.try_recv().ok()
    }
}

fn work(jobs: &Receiver<Job>, answers: &Sender<Made>, to_control: &Bell, home: &Home) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Make { session, region, recipe } => {
                let outcome = cook(&format!("kvrail-arena-{session}"), recipe, home);
                if answers.send(Made { session, region, outcome }).is_err() {
                    return;
                }
                to_control.ring();
            }
            Job::Unmap(region) => drop(region),
        }
    }
}

fn cook(name: &str, recipe: Recipe, home: &Home) -> Outcome {
    let (region, pages) = match recipe {
        Recipe::Create { bytes, pages: PagePolicy::Best } => Region::create_best(name, bytes)?,
        Recipe::Create { bytes, pages: PagePolicy::Exactly(page) } => {
            (Region::create(name, bytes, page)?, None)
        }
        Recipe::Import(fd, bytes, sealing) => {
            return Ok((Region::import_with(fd, bytes, sealing)?, Vec::new()));
        }
    };
    let elsewhere = match home {
        Home::Anywhere => None,
        Home::Near(node, topology) => place(&region, *node, topology).err(),
        Home::On(node, topology) => {
            place(&region, *node, topology)?;
            None
        }
    };
    let pages = pages.map(|why| ("arenas get base pages", why));
    let elsewhere = elsewhere.map(|why| ("arenas lie far from the devices", why));
    Ok((region, pages.into_iter().chain(elsewhere).collect()))
}
