//! From the client library's errors to the exceptions of `kvrail.errors`.

use kvrail_client::{ClientError, RefusalCode, Status, SubmitErrorKind};
use kvrail_memory::MemoryError;
use pyo3::prelude::*;

/// The classes, as Python has them.
pub(crate) mod raised {
    use pyo3::import_exception;

    import_exception!(kvrail.errors, AccessError);
    import_exception!(kvrail.errors, ClosedError);
    import_exception!(kvrail.errors, CorruptError);
    import_exception!(kvrail.errors, DeviceError);
    import_exception!(kvrail.errors, ForkedError);
    import_exception!(kvrail.errors, GpuError);
    import_exception!(kvrail.errors, InternalError);
    import_exception!(kvrail.errors, KvrailError);
    import_exception!(kvrail.errors, LayoutError);
    import_exception!(kvrail.errors, MemoryUnusableError);
    import_exception!(kvrail.errors, MissError);
    import_exception!(kvrail.errors, NoSidecarError);
    import_exception!(kvrail.errors, NamespaceError);
    import_exception!(kvrail.errors, NoSpaceError);
    import_exception!(kvrail.errors, NoStoreError);
    import_exception!(kvrail.errors, NotAdmittedError);
    import_exception!(kvrail.errors, QueueBusyError);
    import_exception!(kvrail.errors, QueueFullError);
    import_exception!(kvrail.errors, QuotaError);
    import_exception!(kvrail.errors, RequestError);
    import_exception!(kvrail.errors, SessionEndedError);
    import_exception!(kvrail.errors, TimedOutError);
    import_exception!(kvrail.errors, TooSmallError);
    import_exception!(kvrail.errors, UnknownGpuError);
    import_exception!(kvrail.errors, UnknownVolumeError);
    import_exception!(kvrail.errors, UnsupportedError);
    import_exception!(kvrail.errors, VersionMismatchError);
}

use raised::*;

/// How a detach ended.
pub(crate) fn detached(result: Result<(), ClientError>) -> PyResult<()> {
    match result {
        // The sidecar has ended, and with it everything that was attached.
        Ok(()) | Err(ClientError::SidecarGone { .. }) => Ok(()),
        Err(error) => Err(from_client(error)),
    }
}

/// A call that failed.
pub(crate) fn from_client(error: ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::NoSidecar { .. } => NoSidecarError::new_err(text),
        ClientError::NotAdmitted { code: RefusalCode::Version, .. }
        | ClientError::TooOld { .. } => VersionMismatchError::new_err(text),
        ClientError::NotAdmitted { .. } => NotAdmittedError::new_err(text),
        ClientError::Denied { status, .. } => from_status(status, text, Vec::new()),
        ClientError::Timeout { .. } => TimedOutError::new_err(text),
        ClientError::SidecarGone { .. } => SessionEndedError::new_err(text),
        ClientError::Protocol { .. } => InternalError::new_err(text),
        ClientError::Memory(MemoryError::Outside { .. } | MemoryError::Empty) => {
            RequestError::new_err(text)
        }
        ClientError::Memory(_) | ClientError::NotShared { .. } => {
            MemoryUnusableError::new_err(text)
        }
        ClientError::UnknownVolume { .. } => UnknownVolumeError::new_err(text),
        ClientError::NoStore { .. } => NoStoreError::new_err(text),
        ClientError::Identity(_) => NamespaceError::new_err(text),
        ClientError::NoGpu { .. } => UnknownGpuError::new_err(text),
        ClientError::Layout(_) => LayoutError::new_err(text),
        ClientError::Forked => ForkedError::new_err(text),
        ClientError::System { .. } => KvrailError::new_err(text),
    }
}

/// A namespace that cannot be opened.
pub(crate) fn from_opening(error: ClientError) -> PyErr {
    match error {
        ClientError::Denied { status: Status::Invalid, .. } => {
            NamespaceError::new_err((error.to_string(), Status::Invalid.name()))
        }
        other => from_client(other),
    }
}

/// A request that was not taken.
pub(crate) fn from_reason(reason: SubmitErrorKind) -> PyErr {
    let text = reason.to_string();
    match reason {
        SubmitErrorKind::Full { .. } => QueueFullError::new_err(text),
        SubmitErrorKind::SidecarGone => SessionEndedError::new_err(text),
        SubmitErrorKind::Broken => InternalError::new_err(text),
        _ => RequestError::new_err(text),
    }
}

/// Requests that ended with `status`; `failed` has index and status of each that did not end well.
pub(crate) fn from_status(
    status: Status,
    text: String,
    failed: Vec<(usize, &'static str)>,
) -> PyErr {
    let arguments = (text, status.name(), failed);
    match status {
        Status::Miss => MissError::new_err(arguments),
        Status::Corrupt => CorruptError::new_err(arguments),
        Status::IoError | Status::DeviceGone | Status::DeviceDegraded => {
            DeviceError::new_err(arguments)
        }
        Status::NoSpace | Status::Declined => NoSpaceError::new_err(arguments),
        Status::GpuError => GpuError::new_err(arguments),
        Status::Invalid | Status::TooSmall | Status::Stale => RequestError::new_err(arguments),
        Status::Denied => AccessError::new_err(arguments),
        Status::Quota => QuotaError::new_err(arguments),
        Status::Draining | Status::Restarted => SessionEndedError::new_err(arguments),
        Status::Internal => InternalError::new_err(arguments),
        Status::Unsupported => UnsupportedError::new_err(arguments),
        Status::Ok | Status::Late => KvrailError::new_err(arguments),
    }
}
