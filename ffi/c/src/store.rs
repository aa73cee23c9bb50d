//! Stores: volumes whose blocks have keys.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::c_char;
use std::sync::Arc;

use crate::boundary::{self, call, shared, take, text};
use crate::client::{Client, Session, session};
use crate::code::Failure;
use crate::sized::{SizedStruct, write};

/// A store of the sidecar.
#[derive(Debug)]
pub struct Store {
    session: Arc<Session>,
    store: kvrail_client::Store,
}

/// Properties of a store.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StoreInfo {
    /// sizeof this structure.
    pub size: u32,
    /// The number of its volume.
    pub volume: u32,
    /// Most bytes of a block.
    pub block_bytes_max: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for StoreInfo {
    const NAME: &'static str = "kvrail_store_info";
    const LEAST: usize = 16;
}

/// The handle's store, in the process that attached.
///
/// # Safety
/// As for `boundary::shared`.
pub(crate) unsafe fn opened<'a>(
    handle: *const Store,
) -> Result<(&'a Arc<Session>, &'a kvrail_client::Store), Failure> {
    // SAFETY: the caller's promise.
    let Store { session, store } = unsafe { shared(handle, "store") }?;
    session.birth.check()?;
    Ok((session, store))
}

/// Opens the store of this name. It may be used from any thread at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_store_open(
    client: *const Client,
    name: *const c_char,
    store: *mut *mut Store,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { boundary::store(store, std::ptr::null_mut(), "store") }?;
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's text.
        let found = session.client.store(unsafe { text(name, "name") }?)?;
        let made = Store { session: Arc::clone(session), store: found };
        // SAFETY: as above.
        unsafe { boundary::store(store, Box::into_raw(Box::new(made)), "store") }
    })
}

/// Closes the handle and sets the variable to NULL. Its namespaces stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_store_close(store: *mut *mut Store) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(store, "store") }?);
        Ok(())
    })
}

/// Properties of a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_store_describe(store: *const Store, info: *mut StoreInfo) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, store) = unsafe { opened(store) }?;
        let value = StoreInfo {
            size: 0,
            volume: u32::from(store.volume().id().0),
            block_bytes_max: u64::from(store.block_bytes_max()),
        };
        // SAFETY: the caller's structure.
        unsafe { write(info, &value) }
    })
}
