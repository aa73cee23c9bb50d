//! The border itself: panics and errors become codes, pointers become references.
#![expect(unsafe_code, reason = "follows pointers that C gave")]
// UNSAFETY: a pointer that is not null meets the header's terms: of its type, alive, and not used
// otherwise during the call. A C library can require no more, and relies on no more here.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Failure, KVRAIL_E_PANIC, KVRAIL_E_SYSTEM, KVRAIL_OK};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a call: remembers its error, and stops its panic.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => KVRAIL_OK,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            remember(Failure::new(KVRAIL_E_PANIC, format!("a bug in libkvrail: {text}")))
        }
    }
}

#[cold]
fn remember(failure: Failure) -> i32 {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending may have lost its place for the text already; the code is enough.
    let _lost = LAST_ERROR.try_with(|last| last.replace(text));
    failure.code
}

/// Cause and remedy of the last call that failed in this thread. Never null; valid until the next
/// call of this library that fails in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cold]
fn misplaced(what: &str, null: Null) -> Failure {
    match null {
        Null::Yes => Failure::argument(format!("{what} is null")),
        Null::No => Failure::argument(format!("{what} is not aligned as its type wants")),
    }
}

#[derive(Clone, Copy, Debug)]
enum Null {
    Yes,
    No,
}

/// Refuses null and misaligned pointers.
#[inline]
pub(crate) fn placed<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(misplaced(what, Null::Yes));
    }
    if !pointer.is_aligned() {
        return Err(misplaced(what, Null::No));
    }
    Ok(())
}

/// What a handle points to.
///
/// # Safety
/// Not null means alive for `'a`; see above.
#[inline]
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    placed(pointer, what)?;
    // SAFETY: checked above; that it is alive is the caller's promise.
    Ok(unsafe { &*pointer })
}

/// Stores a value for the caller.
///
/// # Safety
/// Not null means writable.
#[inline]
pub(crate) unsafe fn store<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    placed(to, what)?;
    // SAFETY: checked above; that it is the caller's memory is the caller's promise. What lay
    // there is plain data or nothing: it is not dropped.
    unsafe { to.write(value) };
    Ok(())
}

/// A text of the caller.
///
/// # Safety
/// Not null means that a zero ends it, and alive for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    placed(pointer, what)?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// Takes an object back from the caller's variable, which becomes null.
///
/// # Safety
/// Not null means a variable that holds null or a handle that this library gave out as a box of
/// `T`, which is not used now or later.
pub(crate) unsafe fn take<T>(variable: *mut *mut T, what: &str) -> Result<Box<T>, Failure> {
    placed(variable, what)?;
    // SAFETY: checked above; the variable is the caller's.
    let pointer = unsafe { variable.replace(std::ptr::null_mut()) };
    placed(pointer, what)?;
    // SAFETY: the handle came from `Box::into_raw`, and the variable that held it is null now.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// A descriptor of our own for what the caller has open.
pub(crate) fn duplicate(fd: c_int) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(Failure::argument(format!("fd is {fd}; pass an open descriptor")));
    }
    // SAFETY: not negative, and borrowed for the length of this call: the kernel rejects a closed
    // one below.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| {
        Failure::new(KVRAIL_E_SYSTEM, format!("duplicating the descriptor: {error}"))
    })
}

/// A text with the zero at its end that C requires; a longer one is cut.
pub(crate) fn letters<const N: usize>(text: &str) -> [c_char; N] {
    let mut letters = [0; N];
    for (to, byte) in letters[..N - 1].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([byte]);
    }
    letters
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::{call, kvrail_last_error, shared};
    use crate::code::{Failure, KVRAIL_E_ARGUMENT, KVRAIL_E_PANIC, KVRAIL_OK};

    fn last() -> String {
        // SAFETY: never null, and no call between here and the copy.
        unsafe { CStr::from_ptr(kvrail_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn panics_and_errors_become_codes_and_words() {
        assert_eq!(call(|| panic!("number {}", 7)), KVRAIL_E_PANIC);
        assert!(last().contains("number 7"), "{}", last());
        assert_eq!(call(|| Err(Failure::argument("a\0b"))), KVRAIL_E_ARGUMENT);
        assert_eq!(last(), "a b");
        assert_eq!(call(|| Ok(())), KVRAIL_OK);
        assert_eq!(last(), "a b", "success leaves the words");
        std::thread::spawn(|| assert_eq!(last(), "", "each thread has its own")).join().unwrap();
    }

    #[test]
    fn null_and_crooked_pointers_are_refused() {
        let words = [0_u64; 2];
        let crooked = words.as_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        for pointer in [std::ptr::null(), crooked] {
            // SAFETY: refused before it is followed.
            let refused = unsafe { shared(pointer, "it") }.unwrap_err();
            assert_eq!(refused.code, KVRAIL_E_ARGUMENT);
            assert!(refused.text.starts_with("it is"), "{}", refused.text);
        }
    }
}
