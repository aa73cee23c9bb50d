//! The threads that make, open and close memory: touching the pages of a large arena takes
//! seconds, a GPU's driver may not answer at all, and other clients must not wait for either. One
//! for host memory, and one for each GPU.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use kvrail_gpu::{Fragment, Gpu, GpuHandle, GpuRegion};
use kvrail_memory::{MemoryError, PageSize, Region, Sealing, place};
use kvrail_ring::{Bell, RegionId};
use rustix::io::Errno;

use crate::asks::Failure;
use crate::config::{Home, PagePolicy};
use crate::error::ServerError;
use crate::gpus::refusal;

/// What an arena or a region is made of.
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
    /// A client's memory on a GPU.
    Open(Arc<dyn Gpu>, GpuRecipe),
}

/// What a client says of its memory on a GPU.
#[derive(Debug)]
pub(crate) struct GpuRecipe {
    pub(crate) handles: Vec<GpuHandle>,
    pub(crate) fragments: Vec<Fragment>,
    pub(crate) blocks: u32,
}

/// Memory that clients and hardware use.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// An arena.
    Host(Arc<Region>),
    /// A region on a GPU.
    Gpu(Arc<GpuRegion>),
}

/// Which thread does it: 0 for host memory, one more than its place in the list for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hand(usize);

impl Hand {
    pub(crate) const HOST: Self = Self(0);

    /// The one of this GPU.
    pub(crate) const fn of_gpu(gpu: usize) -> Self {
        Self(gpu + 1)
    }
}

/// Whose memory it is: session and region.
pub(crate) type Whose = (u64, RegionId);

#[derive(Debug)]
enum Job {
    Make(Whose, Recipe),
    Close(Whose, Memory),
}

/// What is not as wished, and why.
pub(crate) type Unfulfilled = (&'static str, MemoryError);

/// Memory, with what the operator should know of it; or why there is none.
pub(crate) type Outcome = Result<(Memory, Vec<Unfulfilled>), Failure>;

/// An answer.
#[derive(Debug)]
pub(crate) enum Made {
    /// It is there, or not.
    Made(Whose, Outcome),
    /// This process has let go of it.
    Closed(Whose),
}

/// The control thread's end. The threads end when this is dropped and their jobs are done.
#[derive(Debug)]
pub(crate) struct Maker {
    hands: Vec<Sender<Job>>,
    made: Receiver<Made>,
}

impl Maker {
    /// Starts the threads; they ring `to_control` after every answer.
    pub(crate) fn start(
        to_control: &Arc<Bell>,
        home: &Home,
        gpus: usize,
    ) -> Result<Self, ServerError> {
        let (answers, made) = channel();
        let hand = |at: usize| {
            let (jobs, queue) = channel();
            let (answers, to_control, home) =
                (answers.clone(), Arc::clone(to_control), home.clone());
            let name = match at.checked_sub(1) {
                None => "kvrail-memory".to_owned(),
                Some(gpu) => format!("kvrail-import-{gpu}"),
            };
            let work = move || work(&queue, &answers, &to_control, &home);
            thread::Builder::new().name(name).spawn(work).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                ServerError::Loop { step: "spawning a memory thread", errno }
            })?;
            Ok(jobs)
        };
        let hands = (0..=gpus).map(hand).collect::<Result<_, ServerError>>()?;
        Ok(Self { hands, made })
    }

    /// Answer: `Made`.
    pub(crate) fn make(&self, hand: Hand, whose: Whose, recipe: Recipe) {
        self.post(hand, Job::Make(whose, recipe));
    }

    /// Closes it, if this is the last reference. Answer: `Closed`.
    pub(crate) fn close(&self, hand: Hand, whose: Whose, memory: Memory) {
        self.post(hand, Job::Close(whose, memory));
    }

    fn post(&self, hand: Hand, job: Job) {
        self.hands[hand.0].send(job).expect("a memory thread lives as long as its queue");
    }

    pub(crate) fn receive(&self) -> Option<Made> {
        self.made.try_recv().ok()
    }
}

fn work(jobs: &Receiver<Job>, answers: &Sender<Made>, to_control: &Bell, home: &Home) {
    while let Ok(job) = jobs.recv() {
        let answer = match job {
            Job::Make(whose, recipe) => {
                Made::Made(whose, cook(&format!("kvrail-arena-{}", whose.0), recipe, home))
            }
            Job::Close(whose, memory) => {
                drop(memory);
                Made::Closed(whose)
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
        to_control.ring();
    }
}

fn cook(name: &str, recipe: Recipe, home: &Home) -> Outcome {
    match recipe {
        Recipe::Create { bytes, pages } => {
            let (region, unfulfilled) = create(name, bytes, pages, home).map_err(failure)?;
            Ok((Memory::Host(Arc::new(region)), unfulfilled))
        }
        Recipe::Import(fd, bytes, sealing) => {
            let region = Region::import_with(fd, bytes, sealing).map_err(failure)?;
            Ok((Memory::Host(Arc::new(region)), Vec::new()))
        }
        Recipe::Open(gpu, GpuRecipe { handles, fragments, blocks }) => {
            let region = gpu.import(handles, fragments, blocks).map_err(|error| refusal(&error))?;
            Ok((Memory::Gpu(region), Vec::new()))
        }
    }
}

fn create(
    name: &str,
    bytes: usize,
    pages: PagePolicy,
    home: &Home,
) -> Result<(Region, Vec<Unfulfilled>), MemoryError> {
    let (region, pages) = match pages {
        PagePolicy::Best => Region::create_best(name, bytes)?,
        PagePolicy::Exactly(page) => (Region::create(name, bytes, page)?, None),
    };
    let elsewhere = match home {
        Home::Anywhere => None,
        Home::Near(node, topology) => place(&region, *node, topology).err(),
        Home::On(node, topology) => {
            place(&region, *node, topology)?;
            None
        }
    };
    let got = match region.page() {
        PageSize::Transparent2MiB => "arenas get transparent 2 MiB pages",
        _ => "arenas get base pages",
    };
    let pages = pages.map(|why| (got, why));
    let elsewhere = elsewhere.map(|why| ("arenas lie far from the devices", why));
    Ok((region, pages.into_iter().chain(elsewhere).collect()))
}

fn failure(error: MemoryError) -> Failure {
    let status = match error {
        // What was brought cannot be written.
        MemoryError::Map { errno: Errno::ACCESS | Errno::PERM } => kvrail_ring::Status::Invalid,
        MemoryError::NoPages { .. } | MemoryError::Map { .. } | MemoryError::Place { .. } => {
            kvrail_ring::Status::NoSpace
        }
        _ => kvrail_ring::Status::Invalid,
    };
    (status, error.to_string())
}
