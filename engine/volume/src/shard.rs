//! The stores on a volume's members, with plain system calls: made with the volume, and looked at
//! before it is served.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kvrail_ring::Geometry;
use kvrail_store::{
    MemberTask, Members, Now, Outcome, PAGE_BYTES, Phase, Pool, SUPER_AT, Start, Store,
    StoreIdentity, Super, SuperError, TaskMemory, Verb,
};
use rustix::fs::fdatasync;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use uuid::Uuid;

use crate::bytes::{AlignedBytes, read_at, write_at};
use crate::claim::Claim;
use crate::error::{Reason, VolumeError};
use crate::label::Label;
use crate::open::Volume;
use crate::purpose::{StoreMember, StoreShape};

/// Records or buckets of one step.
const BUDGET: u32 = 1024;

/// A store's buffers.
#[derive(Debug)]
struct StoreBuffers(Vec<AlignedBytes>);

impl StoreBuffers {
    /// Buffers in the number and size that the store requires.
    fn of(store: &Store, config: &kvrail_store::StoreConfig) -> Self {
        let bytes = |buffer| if buffer < config.buffers { config.buffer_bytes } else { 8 << 10 };
        let buffers =
            (0..store.pool_buffers()).map(|buffer| AlignedBytes::zeroed(bytes(buffer) as usize));
        Self(buffers.collect())
    }
}

impl Pool for StoreBuffers {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[usize::from(buffer)][at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        self.0[usize::from(buffer)][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Runs a store until it serves, or does not start.
fn run(
    store: &mut Store,
    pool: &mut StoreBuffers,
    (file, area_at): (&Claim, u64),
) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        let now = now(begun);
        store.step(pool, BUDGET, now);
        while let Some(task) = store.next_task(pool) {
            let done = perform(pool, (file, area_at), &task);
            store.finish(task.id, Outcome::Done, now);
            done?;
        }
        match store.phase() {
            Phase::Serving => return Ok(()),
            Phase::Failed(_) => return Err(Errno::IO),
            Phase::Starting | Phase::Warming => {}
        }
    }
}

fn now(begun: Instant) -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Now {
        ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        unix: u32::try_from(unix).unwrap_or(u32::MAX),
    }
}

/// Executes a task of the store. There is no client, so all bytes are the store's own.
fn perform(
    pool: &mut StoreBuffers,
    (file, area_at): (&Claim, u64),
    task: &MemberTask,
) -> Result<(), Errno> {
    let at = area_at + task.offset;
    let bytes = match task.memory {
        TaskMemory::Pool { buffer, at } => {
            let length = usize::try_from(task.length).map_err(|_| Errno::INVAL)?;
            &mut pool.0[usize::from(buffer)][at as usize..][..length]
        }
        TaskMemory::None | TaskMemory::Client { .. } => &mut [],
    };
    match task.verb {
        Verb::Read if read_at(file, bytes, at)? < bytes.len() => Err(Errno::IO),
        Verb::Read | Verb::Discard => Ok(()),
        Verb::Write => write_at(file, bytes, at),
        Verb::WriteDurable => write_at(file, bytes, at).and_then(|()| fdatasync(file)),
        Verb::Flush => fdatasync(file),
    }
}

fn random() -> Result<u128, Errno> {
    let mut bytes = [0; 16];
    // Up to 256 bytes come at once or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u128::from_ne_bytes(bytes))
}

/// A member's place among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberPlace {
    pub(crate) index: u16,
    /// All members, this one too.
    pub(crate) members: Members,
    /// The generation of the others, or 1.
    pub(crate) generation: u64,
}

/// Makes the store of one of a volume's members over whatever is there.
///
/// # Errors
/// `Reason::Io` when the member cannot be written.
pub(crate) fn make(
    (claim, place): (&Claim, MemberPlace),
    (volume, geometry): (Uuid, &Geometry),
    shape: StoreShape,
) -> Result<(), VolumeError> {
    let failed = |errno| claim.failed("making its store", errno);
    let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
    let serving = shape.config(member, 1);
    // An empty store has nothing to look up: the least tables will do.
    let config = kvrail_store::StoreConfig {
        block_mean: u32::MAX,
        buffers: 2,
        buffer_bytes: 8 << 10,
        images: 4,
        holds: 1,
        ..serving
    };
    let mut store = Store::new(&config).map_err(|_| failed(Errno::INVAL))?;
    let mut pool = StoreBuffers::of(&store, &config);
    let identity = StoreIdentity {
        volume: volume.as_u128(),
        instance: random().map_err(failed)?,
        seed: random().map_err(failed)?,
        member: place.index,
        members: place.members,
        generation: place.generation,
    };
    store.start(Start::Create(identity), now(Instant::now()));
    run(&mut store, &mut pool, (claim, geometry.data_offset)).map_err(failed)
}

/// Makes an open store empty, whatever its members' stores have come to: no block, no namespace,
/// other secrets. The labels stay as they are. Repeated, it finishes what was cut short.
///
/// # Errors
/// `Reason::Raw` when the volume is no store; `Reason::Io` when a member cannot be written, and
/// those before it are empty.
pub fn erase(volume: &Volume) -> Result<(), VolumeError> {
    let Some(shape) = volume.purpose.store() else {
        return Err(VolumeError::new(format!("volume {}", volume.name), Reason::Raw));
    };
    let of = (volume.uuid, &volume.geometry);
    let members = volume.present;
    let mut all = members.iter().zip(&volume.members);
    all.try_for_each(|(index, it)| {
        make((&it.claim, MemberPlace { index, members, generation: 1 }), of, shape)
    })
}

/// A member's superblock. A copy that cannot be read counts as missing.
fn read_super(file: impl AsFd, area_at: u64) -> Result<Super, SuperError> {
    let mut copies = [[0; PAGE_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip(SUPER_AT) {
        let mut page = AlignedBytes::zeroed(PAGE_BYTES);
        if read_at(&file, &mut page, area_at + at) == Ok(PAGE_BYTES) {
            copy.copy_from_slice(&page);
        }
    }
    Super::choose(&copies).map(|(chosen, _)| chosen)
}

/// The generation of the store on a member that another process may have.
///
/// # Errors
/// `VolumeError` when it cannot be read, or has no store.
pub(crate) fn generation_at(path: &Path, area_at: u64) -> Result<u64, VolumeError> {
    let refuse = |reason| VolumeError::at(path, reason);
    let file = File::open(path).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        refuse(Reason::Open { errno })
    })?;
    let found = read_super(&file, area_at).map_err(|why| refuse(Reason::NoStore { why }))?;
    Ok(found.generation)
}

/// Whether a member that is labelled as a store's has one.
pub(crate) fn check_super(claim: &Claim, label: &Label) -> Result<(), VolumeError> {
    if label.purpose.store().is_none() {
        return Ok(());
    }
    let found = read_super(claim, label.data_offset);
    found.map(drop).map_err(|why| VolumeError::at(claim.path(), Reason::NoStore { why }))
}

/// Records in the members' superblocks that they are part of this start of their store. All records
/// are written before any of the members is served, so that a member without the record of a start
/// at which another one was served is an older copy of itself.
///
/// # Errors
/// `VolumeError` names the member that cannot be written.
pub fn begin_start<'a>(
    members: impl IntoIterator<Item = (&'a Claim, &'a Super)>,
    geometry: &Geometry,
    start: u64,
) -> Result<(), VolumeError> {
    members.into_iter().try_for_each(|(claim, known)| {
        let mut page = AlignedBytes::zeroed(PAGE_BYTES);
        let image = (&mut page[..]).try_into().expect("a page");
        Super { begun: start, serial: known.serial + 1, ..*known }.encode(0, image);
        let written = write_at(claim, &page, geometry.data_offset + SUPER_AT[0]);
        let written = written.and_then(|()| fdatasync(claim));
        written.map_err(|errno| claim.failed("writing its store's super", errno))
    })
}

/// The superblocks of the stores on a volume's members, in the order of their numbers.
///
/// # Errors
/// `VolumeError` names the member whose store cannot be opened, and why: both supers damaged,
/// another format, another volume's, or made with other sizes.
pub fn supers(
    members: &[&Claim],
    (volume, geometry, numbers): (Uuid, &Geometry, Members),
    shape: StoreShape,
) -> Result<Vec<Super>, VolumeError> {
    let check = |(index, member): (u16, &&Claim)| {
        let refuse = |reason| Err(VolumeError::at(member.path(), reason));
        let found = match read_super(member, geometry.data_offset) {
            Ok(found) => found,
            Err(why) => return refuse(Reason::NoStore { why }),
        };
        let place = found.member;
        if (found.volume, place) != (volume.as_u128(), index) {
            return refuse(Reason::ForeignStore { index, place });
        }
        let same = found.area_bytes == geometry.member_bytes
            && found.logical_block == geometry.logical_block
            && found.segment_bytes == shape.segment_bytes;
        if same { Ok(found) } else { refuse(Reason::OtherStore) }
    };
    numbers.iter().zip(members).map(check).collect()
}
