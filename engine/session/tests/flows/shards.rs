//! The stores that stand-in pollers keep: real ones, on a medium in memory.

use std::sync::{Arc, Mutex, PoisonError};

use kvrail_poller::{Permit, SessionSlot, SpaceRecord, StoreAsk, StoreCall};
use kvrail_store::{
    Begun, Durability, Expect, Hint, Key, MemberTask, Members, Now, Outcome, Phase, Pool, Put,
    SpaceId, Start, Status, Store, StoreConfig, StoreIdentity, TaskMemory, Verb,
};
use kvrail_volume::{StoreMember, StoreShape};

const AREA: u64 = 4 << 20;
/// Namespaces that a store has room for.
pub(crate) const SPACES: u32 = 4;
const VOLUME: u128 = 77;

/// A member's bytes; they outlive the sidecar.
pub(crate) type Medium = Arc<Mutex<Vec<u8>>>;

pub(crate) fn medium() -> Medium {
    Arc::new(Mutex::new(vec![0; usize::try_from(AREA).unwrap()]))
}

pub(crate) fn config() -> StoreConfig {
    let member = StoreMember { area_bytes: AREA, logical_block: 512, spaces: SPACES };
    let shape = StoreShape { segment_bytes: 64 << 10, block_mean: 4096 };
    StoreConfig { puts: 4, writes: 4, holds: 4, images: 4, ..shape.config(member, 65) }
}

pub(crate) fn open(member: u16) -> Start {
    let members = Members::first(2);
    Start::Open(Expect { volume: VOLUME, member, generation: 1, next_generation: 1, members })
}

#[derive(Debug)]
struct Buffers(Vec<Vec<u8>>);

impl Pool for Buffers {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[usize::from(buffer)][at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        self.0[usize::from(buffer)][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// A member of a store.
#[derive(Debug)]
pub(crate) struct Shard {
    store: Store,
    pool: Buffers,
    medium: Medium,
    /// Meanings of sessions' handles, with the uid at that time.
    pub(crate) grants: Vec<(SessionSlot, u16, SpaceId, u64)>,
    /// Permissions of requests under them.
    pub(crate) permits: Vec<Permit>,
}

impl Shard {
    /// Opens what is on a medium, or makes a store there.
    pub(crate) fn start(medium: &Medium, member: u16) -> Self {
        let blank = medium.lock().unwrap_or_else(PoisonError::into_inner)[0] == 0;
        let identity = StoreIdentity {
            volume: VOLUME,
            instance: u128::from(member) + 1,
            seed: 5,
            member,
            members: Members::first(2),
            generation: 1,
        };
        let start = if blank { Start::Create(identity) } else { open(member) };
        let mut store = Store::new(&config()).unwrap();
        let pool = (0..store.pool_buffers()).map(|_| vec![0; config().buffer_bytes as usize]);
        let pool = Buffers(pool.collect());
        store.start(start, Now::default());
        let medium = Arc::clone(medium);
        let (grants, permits) = (Vec::new(), Vec::new());
        let mut shard = Self { store, pool, medium, grants, permits };
        while shard.store.phase() != Phase::Serving {
            assert!(!matches!(shard.store.phase(), Phase::Failed(_)), "{:?}", shard.store.phase());
            shard.turn();
        }
        shard
    }

    fn turn(&mut self) {
        self.store.step(&self.pool, 1000, Now::default());
        while let Some(task) = self.store.next_task(&mut self.pool) {
            self.perform(&task);
            self.store.finish(task.id, Outcome::Done, Now::default());
        }
    }

    fn perform(&mut self, task: &MemberTask) {
        let TaskMemory::Pool { buffer, at } = task.memory else { return };
        let [length, place] =
            [task.length, task.offset].map(|number| usize::try_from(number).unwrap());
        let mut medium = self.medium.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, on) = (
            &mut self.pool.0[usize::from(buffer)][at as usize..][..length],
            &mut medium[place..place + length],
        );
        match task.verb {
            Verb::Read => bytes.copy_from_slice(on),
            Verb::Write | Verb::WriteDurable => on.copy_from_slice(bytes),
            Verb::Flush | Verb::Discard => {}
        }
    }

    fn until_answered(&mut self, begun: Begun) -> Status {
        match begun {
            Begun::Done(answer) => answer.status,
            Begun::Taken | Begun::Confirms => loop {
                self.turn();
                if let Some(reply) = self.store.next_reply() {
                    return reply.answer.status;
                }
            },
        }
    }

    pub(crate) fn create(&mut self, name: &str, document: &str, uid: u64) -> Status {
        let (name, document) = (name.as_bytes(), document.as_bytes());
        let begun = self.store.create_space((0, 0), name, document, uid, Now::default());
        self.until_answered(begun)
    }

    /// Puts a block into a namespace.
    pub(crate) fn put(&mut self, name: &str) {
        let space = self.store.spaces().find(|space| space.name == name.as_bytes()).unwrap().id;
        let put = Put {
            chain: kvrail_store::Chain::Extends,
            user: 0,
            owner: 0,
            space,
            key: Key::of(1, 2),
            length: 512,
            at: 0,
            bytes: 512,
            check: 3,
            depth: 0,
            hint: Hint::default(),
            durability: Durability::Soon,
            metadata: &[],
        };
        let begun = self.store.put(&put, Now::default());
        assert_eq!(self.until_answered(begun), Status::Ok);
    }

    /// Executes a call.
    pub(crate) fn answer(&mut self, call: &mut StoreCall) {
        call.status = match &call.ask {
            StoreAsk::Survey => {
                for space in self.store.spaces() {
                    let mut record = call.spare.pop().expect("room for all");
                    record.name.push_str(std::str::from_utf8(space.name).unwrap());
                    record.document.extend_from_slice(space.document);
                    let SpaceRecord { id, uid, blocks, .. } = &mut record;
                    (*id, *uid, *blocks) = (space.id, space.uid, space.blocks);
                    call.spaces.push(record);
                }
                Status::Ok
            }
            StoreAsk::Create { name, document, uid } => {
                let document = std::str::from_utf8(document).unwrap();
                self.create(name, document, *uid)
            }
            StoreAsk::Clear { space, uid } => {
                let begun = self.store.clear_space((0, 0), *space, *uid, Now::default());
                self.until_answered(begun)
            }
            StoreAsk::Remove { space } => {
                let begun = self.store.remove_space((0, 0), *space, Now::default());
                self.until_answered(begun)
            }
            StoreAsk::Grant { session, handle, space, permit } => {
                let uid = self.uid(*space).expect("a namespace that is there");
                self.grants.push((*session, *handle, *space, uid));
                self.permits.push(*permit);
                Status::Ok
            }
            // Stand-ins report the end of their work.
            StoreAsk::List { .. } | StoreAsk::Explain { .. } => Status::Ok,
            StoreAsk::Restart(_) | StoreAsk::Budget(_) | StoreAsk::Pools(_) => {
                unreachable!("no device comes back here, and no budget changes")
            }
        };
        call.uid_mark = self.store.uid_mark();
    }

    fn uid(&self, id: SpaceId) -> Option<u64> {
        self.store.spaces().find(|space| space.id == id).map(|space| space.uid)
    }

    /// The present meaning of a session's handle: the namespace's uid, or `None` where it was
    /// cleared or removed since.
    pub(crate) fn meaning(&self, handle: u16) -> Option<u64> {
        let grant = self.grants.iter().rev().find(|grant| grant.1 == handle)?;
        self.uid(grant.2)
    }

    /// The uid of a name.
    pub(crate) fn uid_of(&self, name: &str) -> Option<u64> {
        self.store.space(name.as_bytes()).map(|space| space.uid)
    }
}
