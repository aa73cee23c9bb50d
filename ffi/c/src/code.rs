//! What calls return: statuses of the sidecar above 0, errors of this library below.
#![expect(unsafe_code, reason = "exports symbols")]
// UNSAFETY: `no_mangle` only; no pointer is followed.

use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use kvrail_client::{ClientError, RefusalCode, Status, SubmitErrorKind};

macro_rules! errors {
    ($($name:ident = $number:literal $meaning:literal;)*) => {
        $(#[doc = $meaning] pub(crate) const $name: i32 = $number;)*
        /// Code, name and meaning. The header's list of errors is made from it.
        const ERRORS: &[(i32, &str, &str)] = &[$(($name, stringify!($name), $meaning)),*];
    };
}

errors! {
    KVRAIL_E_ARGUMENT = -1 "An argument is null, out of range or of the wrong kind.";
    KVRAIL_E_NEWER = -2 "A structure uses members that this library lacks.";
    KVRAIL_E_NO_SIDECAR = -3 "Nothing answers at the socket; start a sidecar or name its socket.";
    KVRAIL_E_NOT_ADMITTED = -4 "The sidecar does not let this client in.";
    KVRAIL_E_VERSION = -5 "Library and sidecar do not understand each other; update the older.";
    KVRAIL_E_TIMEOUT = -6 "The time is over; the request may still be executed.";
    KVRAIL_E_GONE = -7 "The session has ended; attach again.";
    KVRAIL_E_PROTOCOL = -8 "The sidecar broke the protocol, which is a bug; attach again.";
    KVRAIL_E_MEMORY = -9 "The memory cannot be mapped or used.";
    KVRAIL_E_NO_VOLUME = -10 "The sidecar has no such volume.";
    KVRAIL_E_NO_ARENA = -11 "No such arena or GPU region is attached; it may be detached already.";
    KVRAIL_E_FULL = -12 "The queue is full; poll it and submit the rest again.";
    KVRAIL_E_REFUSED = -13 "The request is out of range or misaligned; nothing was done.";
    KVRAIL_E_BUSY = -14 "Another thread uses this queue now; open one for each thread.";
    KVRAIL_E_FORKED = -15 "This process is a fork of the one that attached; attach here.";
    KVRAIL_E_SYSTEM = -16 "The kernel refused.";
    KVRAIL_E_PANIC = -17 "A bug in libkvrail; close the object and attach again.";
    KVRAIL_E_NO_GPU = -18 "The sidecar does not serve this GPU.";
}

/// All went well.
pub(crate) const KVRAIL_OK: i32 = 0;

/// A code that no call returns.
const UNKNOWN: (i32, &str, &str) = (i32::MAX, "KVRAIL_UNKNOWN", "No such code.");

/// Every code: number, name and meaning.
pub(crate) fn codes() -> impl Iterator<Item = (i32, String, &'static str)> {
    let named = |status: &Status| {
        (i32::from(status.number()), format!("KVRAIL_{}", status.name()), status.meaning())
    };
    let errors = ERRORS.iter().map(|(code, name, meaning)| (*code, (*name).to_owned(), *meaning));
    Status::ALL.iter().map(named).chain(errors)
}

/// Names and meanings with the zero at the end that C requires, by code.
static TEXTS: LazyLock<Vec<(i32, CString, CString)>> = LazyLock::new(|| {
    let c = |text: &str| CString::new(text).expect("no zero in the table");
    let all = codes().chain([(UNKNOWN.0, UNKNOWN.1.to_owned(), UNKNOWN.2)]);
    all.map(|(code, name, meaning)| (code, c(&name), c(meaning))).collect()
});

fn text(code: i32) -> &'static (i32, CString, CString) {
    let known = TEXTS.iter().find(|(known, ..)| *known == code);
    known.or(TEXTS.last()).expect("the table is not empty")
}

/// Name of a status or error, as "KVRAIL_CORRUPT". Never null; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_status_name(code: i32) -> *const c_char {
    text(code).1.as_ptr()
}

/// One sentence on what a status or error means. Never null; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_status_meaning(code: i32) -> *const c_char {
    text(code).2.as_ptr()
}

/// A call that failed: its code and the words for `kvrail_last_error`.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(KVRAIL_E_ARGUMENT, text)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::NoSidecar { .. } => KVRAIL_E_NO_SIDECAR,
            ClientError::NotAdmitted { code: RefusalCode::Version, .. }
            | ClientError::TooOld { .. } => KVRAIL_E_VERSION,
            ClientError::NotAdmitted { .. } => KVRAIL_E_NOT_ADMITTED,
            ClientError::Denied { status, .. } => i32::from(status.number()),
            ClientError::Timeout { .. } => KVRAIL_E_TIMEOUT,
            ClientError::SidecarGone { .. } => KVRAIL_E_GONE,
            ClientError::Protocol { .. } => KVRAIL_E_PROTOCOL,
            ClientError::Memory(_) | ClientError::NotShared { .. } => KVRAIL_E_MEMORY,
            ClientError::UnknownVolume { .. } | ClientError::NoStore { .. } => KVRAIL_E_NO_VOLUME,
            ClientError::NoGpu { .. } => KVRAIL_E_NO_GPU,
            ClientError::Layout(_) | ClientError::Identity(_) => KVRAIL_E_ARGUMENT,
            ClientError::Forked => KVRAIL_E_FORKED,
            ClientError::System { .. } => KVRAIL_E_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SubmitErrorKind> for Failure {
    fn from(reason: SubmitErrorKind) -> Self {
        let code = match reason {
            SubmitErrorKind::Full { .. } => KVRAIL_E_FULL,
            SubmitErrorKind::SidecarGone => KVRAIL_E_GONE,
            SubmitErrorKind::Broken => KVRAIL_E_PROTOCOL,
            _ => KVRAIL_E_REFUSED,
        };
        Self::new(code, reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::{TEXTS, codes, kvrail_status_meaning, kvrail_status_name};

    #[test]
    fn every_code_has_a_name_and_a_meaning() {
        for (code, name, meaning) in codes() {
            for (found, text) in
                [(kvrail_status_name(code), &*name), (kvrail_status_meaning(code), meaning)]
            {
                // SAFETY: the table's texts end in zero and live for ever.
                let found = unsafe { CStr::from_ptr(found) };
                assert_eq!(found.to_str(), Ok(text), "{code}");
            }
        }
        // SAFETY: as above.
        let unknown = unsafe { CStr::from_ptr(kvrail_status_name(12345)) };
        assert_eq!(unknown.to_str(), Ok("KVRAIL_UNKNOWN"));
    }

    #[test]
    fn codes_are_unique() {
        let mut codes: Vec<i32> = TEXTS.iter().map(|(code, ..)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), TEXTS.len());
    }
}
