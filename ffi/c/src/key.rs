//! Keys of blocks.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` only, or checked by it and read as bytes, which
// have no alignment, on the header's terms.

use std::ffi::{c_char, c_void};
use std::slice;

use kvrail_client::BlockKey;

use crate::boundary::{call, letters, placed, store};
use crate::code::Failure;

/// Bytes of a key.
pub const KVRAIL_KEY_BYTES: usize = 16;
/// Bytes of a key as text, with the zero at its end.
pub const KVRAIL_KEY_TEXT_BYTES: usize = 33;

/// The key of a block within its namespace: 128 uniform bits. The first 16 bytes of a SHA-256 are
/// one; anything else is folded by kvrail_key_of.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Key {
    /// The bits.
    pub bytes: [u8; KVRAIL_KEY_BYTES],
}

impl Key {
    /// As the client library has it.
    pub(crate) fn block_key(&self) -> BlockKey {
        BlockKey::from_bits(u128::from_le_bytes(self.bytes))
    }
}

impl From<BlockKey> for Key {
    fn from(key: BlockKey) -> Self {
        Self { bytes: key.bits().to_le_bytes() }
    }
}

/// Bytes of the caller's; none may be null.
///
/// # Safety
/// Not null means this number of bytes that can be read for `'a`.
pub(crate) unsafe fn bytes<'a>(
    first: *const u8,
    count: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    placed(first, what)?;
    if count > isize::MAX.unsigned_abs() {
        return Err(Failure::argument(format!("{what}: {count} bytes are more than memory has")));
    }
    // SAFETY: not null; the caller vouches for the length.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// Keys of the caller's, as the client library has them.
///
/// # Safety
/// As for `bytes`, for this number of keys.
pub(crate) unsafe fn keys(first: *const Key, count: usize) -> Result<Vec<BlockKey>, Failure> {
    let size = count.saturating_mul(KVRAIL_KEY_BYTES);
    // SAFETY: a key is its bytes.
    let bytes = unsafe { bytes(first.cast(), size, "keys") }?;
    let (keys, _) = bytes.as_chunks();
    Ok(keys.iter().map(|bytes| Key { bytes: *bytes }.block_key()).collect())
}

/// Folds any bytes to a key: the first 128 bits of their BLAKE3. The same bytes make the same key
/// in all languages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_key_of(data: *const c_void, length: usize, key: *mut Key) -> i32 {
    call(|| {
        // SAFETY: the caller's bytes.
        let data = unsafe { bytes(data.cast(), length, "data") }?;
        // SAFETY: the caller's variable.
        unsafe { store(key, BlockKey::of(data).into(), "key") }
    })
}

/// Folds `count` pieces of `length` bytes each, one behind the other, to `count` keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_keys_of(
    data: *const c_void,
    length: usize,
    count: usize,
    keys: *mut Key,
) -> i32 {
    call(|| {
        if length == 0 && count > 0 {
            return Err(Failure::argument("length is 0: pieces without bytes have one key"));
        }
        let size = length.saturating_mul(count);
        // SAFETY: the caller's bytes.
        let data = unsafe { bytes(data.cast(), size, "data") }?;
        for (at, piece) in data.chunks_exact(length.max(1)).enumerate() {
            let to = if keys.is_null() { keys } else { keys.wrapping_add(at) };
            // SAFETY: the caller's array has a place for each piece.
            unsafe { store(to, BlockKey::of(piece).into(), "keys") }?;
        }
        Ok(())
    })
}

/// The key of a hash that is uniform by itself, as SHA-256: its first 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_key_uniform(
    hash: *const c_void,
    length: usize,
    key: *mut Key,
) -> i32 {
    call(|| {
        // SAFETY: the caller's bytes.
        let hash = unsafe { bytes(hash.cast(), length, "hash") }?;
        let uniform = BlockKey::uniform(hash).ok_or_else(|| {
            Failure::argument(format!(
                "a uniform hash has {KVRAIL_KEY_BYTES} bytes at least, this one has {length}; fold \
                 shorter ones with kvrail_key_of"
            ))
        })?;
        // SAFETY: the caller's variable.
        unsafe { store(key, uniform.into(), "key") }
    })
}

/// A key as `kvrail store` shows and takes it. `text` has room for KVRAIL_KEY_TEXT_BYTES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_key_text(key: *const Key, text: *mut c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's key.
        let bits = unsafe { crate::boundary::shared(key, "key") }?.block_key();
        let letters: [c_char; KVRAIL_KEY_TEXT_BYTES] = letters(&bits.to_string());
        // SAFETY: the caller's room.
        unsafe { store(text.cast(), letters, "text") }
    })
}
