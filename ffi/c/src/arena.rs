//! Arenas: made by the sidecar or imported by the program, named by number.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kvrail_client::{Arena, Pages};

use crate::boundary::{call, duplicate, store};
use crate::client::{Client, Memory, Session, session};
use crate::code::Failure;
use crate::sized::{SizedStruct, read, write};

/// Pages of the sidecar's configuration: 2 MiB where there are enough, else base pages.
pub const KVRAIL_PAGES_AUTO: u32 = 0;
/// Base pages of the machine.
pub const KVRAIL_PAGES_BASE: u32 = 1;
/// 2 MiB hugepages or an error.
pub const KVRAIL_PAGES_2MIB: u32 = 2;
/// 1 GiB hugepages or an error.
pub const KVRAIL_PAGES_1GIB: u32 = 3;

/// Options of an arena.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArenaOptions {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_PAGES_...
    pub pages: u32,
    /// Bytes at least.
    pub bytes: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for ArenaOptions {
    const NAME: &'static str = "kvrail_arena_options";
    const LEAST: usize = 16;
}

/// An arena.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArenaInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Its number, for requests; never 0.
    pub region: u32,
    /// First byte, until the arena is detached and the client closed.
    pub base: *mut c_void,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of the pages behind it.
    pub page_bytes: u64,
}

// SAFETY: integers and a pointer without padding, the size first; zeroes are a value of it.
unsafe impl SizedStruct for ArenaInfo {
    const NAME: &'static str = "kvrail_arena_info";
    const LEAST: usize = 16;
}

impl From<&Arena> for ArenaInfo {
    fn from(arena: &Arena) -> Self {
        Self {
            size: 0,
            // Numbers of the sidecar count from 0, and in requests 0 means no memory.
            region: arena.region().0.wrapping_add(1),
            base: arena.pool().memory().base().as_ptr().cast(),
            bytes: arena.bytes() as u64,
            page_bytes: arena.page_bytes(),
        }
    }
}

/// Gives an arena its number and fills in the caller's structure.
unsafe fn hand_out(session: &Session, arena: Arena, info: *mut ArenaInfo) -> Result<(), Failure> {
    let value = ArenaInfo::from(&arena);
    // SAFETY: the caller's structure.
    let written = unsafe { write(info, &value) };
    match written {
        Ok(()) => session.add(value.region, Memory::Arena(Arc::new(arena))),
        // Its number is unknown, so it could never be detached.
        Err(_) => arena.detach()?,
    }
    written
}

/// Makes the sidecar create an arena, registered with all devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_arena_create(
    client: *const Client,
    options: *const ArenaOptions,
    info: *mut ArenaInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's structure.
        let ArenaOptions { pages, bytes, .. } = unsafe { read(options) }?;
        let pages = match pages {
            KVRAIL_PAGES_AUTO => Pages::Auto,
            KVRAIL_PAGES_BASE => Pages::Base,
            KVRAIL_PAGES_2MIB => Pages::Huge2MiB,
            KVRAIL_PAGES_1GIB => Pages::Huge1GiB,
            other => {
                let text = format!("kvrail_arena_options.pages is {other}; use KVRAIL_PAGES_...");
                return Err(Failure::argument(text));
            }
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let arena = session.client.create_arena(bytes, pages)?;
        // SAFETY: the caller's structure.
        unsafe { hand_out(session, arena, info) }
    })
}

/// Registers memory of the program's own with all devices: a memfd of exactly `bytes` bytes, fully
/// allocated, sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL. The descriptor stays the
/// caller's. The memory is mapped once more, at `info->base`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_arena_import(
    client: *const Client,
    fd: c_int,
    bytes: u64,
    info: *mut ArenaInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        let arena = session.client.import_arena(duplicate(fd)?, bytes)?;
        // SAFETY: the caller's structure.
        unsafe { hand_out(session, arena, info) }
    })
}

/// The arena that an address of this process lies in, and where: by the arena's own mapping, or by
/// another one of the same file. Memory that is in no arena yet and in a file that is mapped
/// shared, as a memfd or one of /dev/shm, becomes an arena: the whole file, once.
/// KVRAIL_E_MEMORY: others cannot map it; copy the bytes through an arena of the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_region_of(
    client: *const Client,
    address: *const c_void,
    info: *mut ArenaInfo,
    position: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable.
        unsafe { store(position, 0, "position") }?;
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        let address = address.addr();
        // One at a time: two threads must not bring the same file.
        let _looking = session.look_for_memory();
        let arenas = session.memories().into_iter().rev();
        let mut arenas = arenas.filter_map(|(_, memory)| memory.arena());
        let known = arenas.find_map(|arena| Some((arena.position_of(address)?, arena)));
        let at = if let Some((at, arena)) = known {
            // SAFETY: the caller's structure.
            unsafe { write(info, &ArenaInfo::from(&*arena)) }?;
            at
        } else {
            let (arena, at) = session.client.import_mapping(address)?;
            // SAFETY: the caller's structure.
            unsafe { hand_out(session, arena, info) }?;
            at
        };
        // SAFETY: as above.
        unsafe { store(position, at as u64, "position") }
    })
}

/// Takes an arena away from the sidecar. Blocks until nothing can touch the memory any more;
/// requests in flight are finished first. The program must not touch it either from then on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_arena_detach(client: *const Client, region: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        Ok(session.remove(region, Memory::arena)?.detach()?)
    })
}
