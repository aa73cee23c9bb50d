//! The threads that make, open and close memory, and take in and close what clients send: touching
//! the pages of a large arena takes seconds, a GPU's driver may not answer at all, and other
//! clients must not wait for either. One for each user, so that whoever makes such work waits for
//! it alone, one for all who are turned away, and one for each GPU.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kvrail_gpu::{Fragment, Gpu, GpuHandle, GpuRegion};
use kvrail_memory::{MemoryError, PageSize, Region, Sealing, place};
use kvrail_protocol::{ClientMessage, Packet};
use kvrail_ring::RegionId;
use rustix::io::Errno;

use crate::asks::Failure;
use crate::config::{Home, PagePolicy};
use crate::error::ServerError;
use crate::gpus::refusal;
use crate::hand::{Hand, Tools};
use crate::kept::Kept;

/// How long the end of the sidecar waits for jobs that nobody waits for any more.
const PATIENCE: Duration = Duration::from_secs(1);

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
    Import(Kept<Vec<OwnedFd>>, u64, Sealing),
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

/// Whose memory it is: session and region.
pub(crate) type Whose = (u64, RegionId);

/// What is not as wished, and why.
pub(crate) type Unfulfilled = (&'static str, MemoryError);

/// Memory, with what the operator should know of it; or why there is none.
pub(crate) type Outcome = Result<(Memory, Vec<Unfulfilled>), Failure>;

/// A message with its descriptors, or why it has none.
pub(crate) type Fetched = Result<Packet<ClientMessage>, Unfetched>;

/// Why a message could not be taken in with its descriptors.
#[derive(Debug)]
pub(crate) enum Unfetched {
    /// The ask of this number failed.
    Failed(u64, Failure),
    /// The session cannot go on.
    Broken(String),
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Made {
    /// It is there, or not.
    Opened(Whose, Outcome),
    /// This process has let go of it.
    Closed(Whose),
    /// What a session said with descriptors.
    Fetched(u64, Fetched),
}

/// All threads. They end when this and what is kept for them are dropped, and their jobs are done.
#[derive(Debug)]
pub(crate) struct Maker {
    tools: Tools,
    gpus: Vec<Hand>,
    users: BTreeMap<u32, Hand>,
    /// Whose users have no session.
    strangers: Hand,
    made: Receiver<Made>,
    /// Last: dropped when all that keeps a thread is.
    _ended: Ended,
}

/// Never spoken through: it ends with the last thread.
#[derive(Debug)]
struct Ended(Receiver<()>);

impl Drop for Ended {
    /// Lets them finish: what clients sent must not be left to be closed by the end of the process.
    fn drop(&mut self) {
        let _ended = self.0.recv_timeout(PATIENCE);
    }
}

impl Maker {
    /// Starts those of GPUs and strangers. `tools` gets the other end of their answers.
    pub(crate) fn start(
        tools: impl FnOnce(Sender<Made>, Sender<()>) -> Tools,
        gpus: usize,
    ) -> Result<Self, ServerError> {
        let ((answers, made), (living, ended)) = (channel(), channel());
        let tools = tools(answers, living);
        let failed = |errno| ServerError::Loop { step: "spawning a memory thread", errno };
        let gpu = |at: usize| Hand::start(&format!("kvrail-import-{at}"), &tools);
        let gpus = (0..gpus).map(gpu).collect::<Result<_, _>>().map_err(failed)?;
        let strangers = Hand::start("kvrail-close", &tools).map_err(failed)?;
        let (users, ended) = (BTreeMap::new(), Ended(ended));
        Ok(Self { tools, gpus, users, strangers, made, _ended: ended })
    }

    /// The thread of this user, from now until nothing is kept for it.
    pub(crate) fn hire(&mut self, uid: u32) -> Result<Hand, Errno> {
        if let Some(hand) = self.users.get(&uid) {
            return Ok(hand.clone());
        }
        let hand = Hand::start(&format!("kvrail-u{uid}"), &self.tools)?;
        self.users.insert(uid, hand.clone());
        Ok(hand)
    }

    /// Lets threads end whose users have no session, and nothing to be closed.
    pub(crate) fn retain(&mut self, has_session: impl Fn(u32) -> bool) {
        self.users.retain(|uid, hand| has_session(*uid) || hand.is_closing());
    }

    pub(crate) fn strangers(&self) -> &Hand {
        &self.strangers
    }

    /// Connections of this user that have ended, and whose close waits.
    pub(crate) fn waiting_of(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, Hand::waiting)
    }

    /// The same of all.
    pub(crate) fn waiting(&self) -> usize {
        self.users.values().map(Hand::waiting).sum::<usize>() + self.strangers.waiting()
    }

    /// The thread of this GPU.
    pub(crate) fn of_gpu(&self, at: usize) -> &Hand {
        &self.gpus[at]
    }

    pub(crate) fn receive(&self) -> Option<Made> {
        self.made.try_recv().ok()
    }
}

/// Makes it.
pub(crate) fn cook(name: &str, recipe: Recipe, home: &Home) -> Outcome {
    match recipe {
        Recipe::Create { bytes, pages } => {
            let (region, unfulfilled) = create(name, bytes, pages, home).map_err(failure)?;
            Ok((Memory::Host(Arc::new(region)), unfulfilled))
        }
        Recipe::Import(fds, bytes, sealing) => {
            let fd = fds.take().pop().expect("as many descriptors as the ask has");
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
