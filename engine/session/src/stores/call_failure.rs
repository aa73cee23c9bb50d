//! Why a member did not do what it was asked, as a client is answered.

use kvrail_poller::StoreCall;
use kvrail_ring::Status;
use kvrail_store::{DeclineReason, Fault, Status as StoreStatus};

use crate::failure::Failure;

/// Why a call to the member at this place of a store, which takes so many namespaces, did not do
/// what it was to do.
pub(super) fn failure(
    (store, place): (&str, usize),
    most: u32,
    call: &StoreCall,
) -> Option<Failure> {
    let said =
        |status, what: String| Some((status, format!("store {store}, member {place}: {what}")));
    match (call.status, call.start_error) {
        (StoreStatus::Ok, None) => None,
        (_, Some(error)) => said(
            Status::DeviceDegraded,
            format!("it does not start: {error}; see `kvrail store status` and the log"),
        ),
        (StoreStatus::Failed(code), _) => {
            let status = Status::from_number(code).filter(|status| *status != Status::Ok);
            let status = status.unwrap_or(Status::IoError);
            said(status, format!("{}; see the log and dmesg", status.meaning()))
        }
        (StoreStatus::Invalid(Fault::Limit), _) => said(
            Status::Quota,
            format!(
                "it has room for {most} namespaces and those that were cleared a moment ago; \
                     remove some (kvrail store remove)"
            ),
        ),
        (StoreStatus::Invalid(Fault::Space), _) => {
            said(Status::Stale, "the namespace was cleared or removed meanwhile; ask again".into())
        }
        (StoreStatus::Warming, _) => said(
            Status::Declined,
            "it has not read all of its records yet; ask again in a moment".into(),
        ),
        (StoreStatus::Declined(DeclineReason::Refused), _) => said(
            Status::Declined,
            "its drive refuses writes: see the log, dmesg and the room on its file system; ask \
             again when it takes them"
                .into(),
        ),
        (StoreStatus::Declined(reason), _) => {
            said(Status::Declined, format!("not now ({reason:?}); ask again"))
        }
        (status, _) => said(Status::Internal, format!("{status:?}; ask again")),
    }
}
