//! The start-up probe: that shared memory of this host can be registered with io_uring, read to,
//! and given back. Documentation and kernel sources disagree about memfds; so it is tried.

use std::sync::Arc;

use kvrail_memory::{MemoryError, PageSize, PinLimit, Pinned, Region, load, thread_remedy};
use kvrail_ring::Status;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pwrite};

use crate::contract::{AttachedBytes, Device, DirectIo};
use crate::error::DeviceError;
use crate::probe_reads::{AT, detach_and_wait, read_once};
use crate::uring::{Interrupt, Uring, UringOptions};

/// Bytes that are registered: one hugepage.
const BYTES: u32 = 2 << 20;

/// Bytes that are read to either end of them: more than that shows no more.
const READ: u32 = 32 << 10;

/// Name in messages.
const NAME: &str = "memory probe";

/// The result of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// Pages that regions of this host get.
    pub page: PageSize,
    /// One line for the start-up report.
    pub text: String,
}

/// Registers a sealed memfd with a ring, reads a pattern to both its ends through it, compares
/// them, and has the kernel prove that it let go. Its pages have the requested size, else they are
/// hugepages where there are any. The ring takes `depth` operations, as a drive's: where it may not
/// be pinned, a drive's may not. Touches no device.
///
/// # Errors
/// `DeviceError` with the step that failed and the remedy.
pub fn probe_memory(pages: Option<PageSize>, depth: u32) -> Result<ProbeResult, DeviceError> {
    let (name, bytes) = ("kvrail-probe", BYTES as usize);
    let (region, no_hugepages) = match pages {
        None => Region::create_best(name, bytes).map_err(|error| unfit(error.to_string()))?,
        Some(page) => (Region::create(name, bytes, page).map_err(|error| missing(&error))?, None),
    };
    let page = region.page();
    let attached = try_region(Arc::new(region), depth)?;
    Ok(ProbeResult { page, text: describe(page, attached, no_hugepages.as_ref()) })
}

fn describe(page: PageSize, bytes: AttachedBytes, no_hugepages: Option<&MemoryError>) -> String {
    let reason = no_hugepages.map_or(String::new(), |reason| format!("; no hugepages: {reason}"));
    let name = page.name();
    let registered = if bytes.addressed > 0 { "not registered" } else { "registered" };
    let limit = match PinLimit::of_this_process() {
        PinLimit::Unlimited => String::new(),
        limit => format!(
            "; this user's processes may pin {limit} together, and memory beyond is not registered"
        ),
    };
    format!(
        "sealed memfd of {name} pages: {registered}, read to, compared, given back{limit}{reason}"
    )
}

/// Returns how the memory was attached.
fn try_region(region: Arc<Region>, depth: u32) -> Result<AttachedBytes, DeviceError> {
    let pattern: Vec<u8> =
        (0..2 * READ).map(|at| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let source = source(&pattern).map_err(|errno| DeviceError::Open {
        path: NAME.into(),
        errno,
        remedy: "a memfd of 64 KiB is needed: free memory or raise the cgroup's memory.max".into(),
    })?;
    let direct = DirectIo::Off;
    let options = UringOptions { direct, depth, ..UringOptions::new(NAME, source) };
    let mut device = Uring::<Interrupt>::open(options)?;
    let pinned: Arc<dyn Pinned> = Arc::clone(&region) as Arc<dyn Pinned>;
    device.attach(AT, pinned)?;
    let attached = device.attached();
    for (half, at) in [(0, 0), (READ, BYTES - READ)] {
        answered(read_once(&mut device, u64::from(half), READ, u64::from(at)))?;
        let mut seen = vec![0; READ as usize];
        load(&*region, at as usize, &mut seen);
        if seen != pattern[half as usize..][..READ as usize] {
            return Err(unfit("a read to registered memory brought wrong bytes".into()));
        }
    }
    if !detach_and_wait(&mut device) {
        return Err(unfit("the kernel did not prove that it let go of registered memory".into()));
    }
    Ok(attached)
}

/// A read that the kernel gives to a thread of its own waits for ever where it may start none.
fn answered(status: Option<Status>) -> Result<(), DeviceError> {
    match status {
        Some(Status::Ok) => Ok(()),
        Some(status) => {
            Err(unfit(format!("a read to registered memory ended with {}", status.name())))
        }
        None => Err(DeviceError::Unfit {
            path: NAME.into(),
            what: "a read to registered memory has no answer: the kernel has no thread for it, or \
                   the machine is overloaded"
                .into(),
            remedy: thread_remedy(Errno::AGAIN).into(),
        }),
    }
}

/// A file without a disk that holds the pattern.
fn source(pattern: &[u8]) -> Result<std::os::fd::OwnedFd, Errno> {
    let fd = memfd_create("kvrail-probe-source", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, pattern.len() as u64)?;
    let mut written = 0;
    while written < pattern.len() {
        match pwrite(&fd, &pattern[written..], written as u64)? {
            0 => return Err(Errno::IO),
            more => written += more,
        }
    }
    Ok(fd)
}

fn missing(error: &MemoryError) -> DeviceError {
    let remedy = "or ask for other pages".into();
    DeviceError::Unfit { path: NAME.into(), what: error.to_string(), remedy }
}

fn unfit(what: String) -> DeviceError {
    let remedy = "kvrail cannot serve on this host; try another kernel".into();
    DeviceError::Unfit { path: NAME.into(), what, remedy }
}

#[cfg(test)]
mod tests {
    use super::{PageSize, Status, answered, probe_memory};

    #[test]
    fn a_read_without_an_answer_names_the_limit_of_threads() {
        let said = |status| answered(status).expect_err("no success").to_string();
        let silent = said(None);
        assert!(silent.contains("pids.max") && !silent.contains("another kernel"), "{silent}");
        assert!(said(Some(Status::IoError)).contains("another kernel"));
        assert!(answered(Some(Status::Ok)).is_ok());
    }

    #[test]
    fn memory_of_this_host_can_be_registered() {
        for pages in [None, Some(PageSize::Base)] {
            let probe = probe_memory(pages, 8).expect("io_uring works here");
            assert!(probe.text.contains("compared, given back"), "{}", probe.text);
            assert!(probe.text.contains(probe.page.name()), "{}", probe.text);
            assert!(pages.is_none_or(|page| page == probe.page), "{}", probe.text);
        }
    }
}
