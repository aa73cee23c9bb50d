//! Namespaces of a store.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::c_char;
use std::sync::Arc;

use kvrail_client::{Absent, ClientError, Identity};

use crate::boundary::{self, call, shared, take, text};
use crate::client::Session;
use crate::code::Failure;
use crate::sized::{SizedStruct, write};
use crate::store::{self as stores, Store};

/// The namespace is made if it is not there.
pub const KVRAIL_ABSENT_CREATE: u32 = 0;
/// KVRAIL_MISS if it is not there.
pub const KVRAIL_ABSENT_FAIL: u32 = 1;

/// A set of clients that share blocks: a name, and an identity that must be the same for all.
#[derive(Debug)]
pub struct Namespace {
    session: Arc<Session>,
    space: kvrail_client::Namespace,
}

/// Size of a namespace, on all devices.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NamespaceInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Its number, which is another one after each clear.
    pub uid: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for NamespaceInfo {
    const NAME: &'static str = "kvrail_namespace_info";
    const LEAST: usize = 24;
}

/// The handle's namespace, in the process that attached.
///
/// # Safety
/// As for `boundary::shared`.
pub(crate) unsafe fn opened<'a>(
    space: *const Namespace,
) -> Result<&'a kvrail_client::Namespace, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle(space) }.map(|(_, space)| space)
}

/// As `opened`, with its session.
///
/// # Safety
/// As for `boundary::shared`.
pub(crate) unsafe fn handle<'a>(
    space: *const Namespace,
) -> Result<(&'a Arc<Session>, &'a kvrail_client::Namespace), Failure> {
    // SAFETY: the caller's promise.
    let Namespace { session, space } = unsafe { shared(space, "space") }?;
    session.birth.check()?;
    Ok((session, space))
}

/// Opens a namespace. `identity` is a JSON object that names all that makes blocks incompatible:
/// model, weights, dtype, layout, tokens a block, rank. Another identity than that of its creation
/// is KVRAIL_INVALID; kvrail_last_error names the field. `absent` is KVRAIL_ABSENT_CREATE or
/// KVRAIL_ABSENT_FAIL. It may be used from any thread at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_open(
    store: *const Store,
    name: *const c_char,
    identity: *const c_char,
    absent: u32,
    space: *mut *mut Namespace,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { boundary::store(space, std::ptr::null_mut(), "space") }?;
        // SAFETY: the caller's handle.
        let (session, of) = unsafe { stores::opened(store) }?;
        // SAFETY: the caller's text.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: the caller's text.
        let identity = Identity::parse(unsafe { text(identity, "identity") }?);
        let absent = match absent {
            KVRAIL_ABSENT_CREATE => Absent::Create,
            KVRAIL_ABSENT_FAIL => Absent::Fail,
            other => {
                let text =
                    format!("absent is {other}; use KVRAIL_ABSENT_CREATE or KVRAIL_ABSENT_FAIL");
                return Err(Failure::argument(text));
            }
        };
        let found = of.open(name, &identity.map_err(ClientError::from)?, absent)?;
        let made = Namespace { session: Arc::clone(session), space: found };
        // SAFETY: as above.
        unsafe { boundary::store(space, Box::into_raw(Box::new(made)), "space") }
    })
}

/// Closes the handle and sets the variable to NULL. Requests in flight go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_close(space: *mut *mut Namespace) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(space, "space") }?);
        Ok(())
    })
}

/// Makes all blocks of a namespace unreachable, for all clients, and opens it again. Requests of
/// others end with KVRAIL_NOTE_STALE until they refresh it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_clear(space: *const Namespace) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        Ok(unsafe { opened(space) }?.clear()?)
    })
}

/// Opens a namespace again after another client cleared it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_refresh(space: *const Namespace) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        Ok(unsafe { opened(space) }?.refresh()?)
    })
}

/// What a namespace holds, on all devices. KVRAIL_STALE: it was removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_usage(
    space: *const Namespace,
    info: *mut NamespaceInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let usage = unsafe { opened(space) }?.usage()?;
        let (blocks, bytes, uid) = (usage.blocks, usage.bytes, usage.uid);
        let value = NamespaceInfo { size: 0, reserved: 0, blocks, bytes, uid };
        // SAFETY: the caller's structure.
        unsafe { write(info, &value) }
    })
}

/// Forgets the namespace of this name and its blocks, for everybody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_remove(store: *const Store, name: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, store) = unsafe { stores::opened(store) }?;
        // SAFETY: the caller's text.
        Ok(store.remove(unsafe { text(name, "name") }?)?)
    })
}
