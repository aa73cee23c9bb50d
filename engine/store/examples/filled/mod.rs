//! The store that the examples fill, and its blocks.

use kvrail_store::{
    Chain, Durability, Expect, Hint, Key, Members, Now, Put, SpaceId, Start, Store, StoreConfig,
    StoreIdentity,
};

/// Makes the store.
pub(crate) fn create() -> Start {
    Start::Create(StoreIdentity {
        volume: 1,
        instance: 2,
        seed: 3 << 70 | 9,
        member: 0,
        members: Members::first(1),
        generation: 1,
    })
}

/// Opens the store that `create` made.
pub(crate) fn open() -> Start {
    Start::Open(Expect {
        volume: 1,
        member: 0,
        generation: 1,
        next_generation: 1,
        members: Members::first(1),
    })
}

pub(crate) fn started(config: &StoreConfig, start: Start) -> (Store, Now) {
    let mut store = Store::new(config).expect("sizes that fit");
    let now = Now { ns: 1, unix: 1 };
    store.start(start, now);
    (store, now)
}

pub(crate) fn key(number: u64) -> Key {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::of(mixed ^ 5, mixed.rotate_left(31) ^ number)
}

/// The put of a block of this length.
pub(crate) fn put(space: SpaceId, number: u64, length: u32) -> Put<'static> {
    Put {
        user: number,
        owner: 0,
        space,
        key: key(number),
        length,
        at: 0,
        bytes: length,
        check: number,
        chain: Chain::Extends,
        depth: 0,
        hint: Hint::default(),
        durability: Durability::Soon,
        metadata: &[],
    }
}
