//! Groups and lookups that a call waits for.

use std::thread;
use std::time::{Duration, Instant};

use kvrail_client::{
    BlockKey, ClientError, Completed, Found, Lookup, LookupExtent, Namespace, Queue, Recency,
    Status,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::{SLICE, ask};
use crate::errors::raised::TimedOutError;
use crate::errors::{from_client, from_reason};
use crate::group::{Group, Halt};
use crate::options::{duration, seconds};
use crate::session::Session;
use crate::wait::{deadline, pause};

/// Between two looks for memory to copy a block through.
const PAUSE: Duration = Duration::from_micros(100);
/// Keys of a lookup between two looks for signals.
const LOOKUP_KEYS: usize = 8192;
/// Longest wait for the answers before they are requested again.
const LOOKUP_SLICE_MAX: Duration = Duration::from_secs(2);

/// A call that could not go on.
pub(crate) fn halted(halt: Halt) -> PyErr {
    match halt {
        Halt::Refused(reason) => from_reason(reason),
        Halt::Failed(error) => from_client(error),
    }
}

/// Submits all of a group and waits for all of it.
pub(crate) fn run(py: Python<'_>, session: &Session, mut group: Group) -> PyResult<Group> {
    let until = deadline(group.timeout());
    session.bounce().reserve(py, &*session.client()?, group.longest_to_copy())?;
    let mut queue = session.borrow_queue(py)?;
    let outcome = drive(py, (&mut queue, session), &mut group, until);
    session.return_queue(queue);
    session.count_copied(group.copied_bytes());
    outcome?;
    if group.is_stale() {
        refresh(py, group.space())?;
    }
    Ok(group)
}

/// Opens a namespace again after another client cleared it.
pub(crate) fn refresh(py: Python<'_>, space: &Namespace) -> PyResult<()> {
    let space = space.clone();
    ask(py, move || space.refresh(), drop)?.map_err(from_client)
}

/// Opens a group's namespace again, so that its puts that found the namespace cleared are taken.
pub(crate) fn renew(py: Python<'_>, group: &mut Group) -> PyResult<()> {
    let opened = refresh(py, group.space());
    group.renew(opened.is_ok());
    opened
}

fn drive(
    py: Python<'_>,
    (queue, session): (&mut Queue, &Session),
    group: &mut Group,
    until: Option<Instant>,
) -> PyResult<()> {
    let mut done = Vec::new();
    loop {
        let slice = Instant::now() + SLICE;
        let slice = until.map_or(slice, |until| until.min(slice));
        let outcome = py.detach(|| advance((queue, session), group, &mut done, slice));
        outcome.map_err(halted)?;
        if group.is_over() {
            return Ok(());
        }
        if group.is_cleared() {
            renew(py, group)?;
        }
        pause(py, session)?;
        if until.is_some_and(|until| until <= Instant::now()) {
            return Err(too_late(group));
        }
    }
}

/// Goes on with a group until it is over, or the time is.
fn advance(
    (queue, session): (&mut Queue, &Session),
    group: &mut Group,
    done: &mut Vec<Completed>,
    slice: Instant,
) -> Result<(), Halt> {
    loop {
        let staged = group.stage(queue, session.bounce());
        queue.publish();
        let all = group.is_staged() || staged.is_err();
        if group.in_flight() == 0 {
            staged?; // what went out before has ended
        }
        if group.is_over() || group.is_cleared() || slice <= Instant::now() {
            return Ok(());
        }
        // A get of a block in memory has ended although nothing was outstanding.
        if queue.outstanding() == 0 && group.in_flight() == 0 {
            // Other calls' blocks are in the memory to copy through: some of calls that run, some
            // of calls whose time was over.
            session.reap_idle();
            thread::sleep(PAUSE);
            continue;
        }
        let wanted = if all { group.in_flight() } else { 1 };
        let left = slice.saturating_duration_since(Instant::now());
        queue.wait_for(wanted, done, left).map_err(Halt::Failed)?;
        done.drain(..).for_each(|done| group.take(done));
    }
}

fn too_late(group: &Group) -> PyErr {
    let advice = match group.in_flight() {
        0 => "none is in flight: the others were not sent, their memory is free".into(),
        some => format!("{some} are in flight: leave their memory alone until the arena is closed"),
    };
    let (ended, count) = (group.ended(), group.count());
    TimedOutError::new_err(format!("{ended} of {count} blocks ended in time, {advice}"))
}

/// Keys of a lookup, and the use of found blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    extent: LookupExtent,
    hold: Duration,
    recency: Recency,
    timeout: Option<Duration>,
}

impl Asked {
    /// Looks only, for as long as this; for ever without a time.
    pub(crate) fn plain(timeout: Option<f64>) -> PyResult<Self> {
        let timeout = timeout.map(|timeout| duration("timeout", timeout)).transpose()?;
        let (extent, recency) = (LookupExtent::All, Recency::Kept);
        Ok(Self { extent, hold: Duration::ZERO, recency, timeout })
    }

    /// What Python's keyword arguments mean, in seconds.
    pub(crate) fn read(given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut asked = Self::plain(None)?;
        let (mut touches, mut demotes, mut fetches) = (false, false, false);
        for (key, value) in given.into_iter().flatten() {
            match &*key.extract::<String>()? {
                "hold" => asked.hold = seconds("hold", &value)?,
                "prefix_only" if value.extract()? => asked.extent = LookupExtent::Prefix,
                "prefix_only" => {}
                "touch" => touches = value.extract()?,
                "demote" => demotes = value.extract()?,
                "fetch" => fetches = value.extract()?,
                "timeout" if value.is_none() => {}
                "timeout" => asked.timeout = Some(seconds("timeout", &value)?),
                other => {
                    let known = "hold, prefix_only, touch, demote, fetch, timeout";
                    let text = format!("{other:?} is no option of this call; there are {known}");
                    return Err(PyTypeError::new_err(text));
                }
            }
        }
        asked.recency = recency(touches, demotes, fetches)?;
        if asked.recency != Recency::Kept && !asked.hold.is_zero() {
            let text = "hold, touch, demote and fetch are for calls of their own: what is held \
                        is not evicted";
            return Err(PyTypeError::new_err(text));
        }
        Ok(asked)
    }

    pub(crate) fn timeout(self) -> Option<Duration> {
        self.timeout
    }

    /// The same for a queue that does not wait.
    pub(crate) fn how(self) -> Lookup {
        let Self { extent, hold, recency, timeout } = self;
        Lookup { extent, hold, recency, timeout: timeout.unwrap_or(Duration::MAX) }
    }
}

/// What a lookup does for what it finds.
fn recency(touch: bool, demote: bool, fetch: bool) -> PyResult<Recency> {
    match (touch, demote, fetch) {
        (false, false, false) => Ok(Recency::Kept),
        (true, false, false) => Ok(Recency::Renewed),
        (false, true, false) => Ok(Recency::Ended),
        (false, false, true) => Ok(Recency::Expected),
        _ => {
            let text = "touch makes blocks go later, demote first, fetch brings them into memory: \
                        pass one of them";
            Err(PyTypeError::new_err(text))
        }
    }
}

/// Looks which blocks are there.
pub(crate) fn lookup(
    py: Python<'_>,
    session: &Session,
    question: (&Namespace, &[BlockKey]),
    asked: Asked,
) -> PyResult<Found> {
    let mut queue = session.borrow_queue(py)?;
    let outcome = lookup_with(py, (&mut queue, session), question, asked);
    session.return_queue(queue);
    outcome
}

/// As `lookup`, through this queue. A namespace that was cleared is opened again, once.
fn lookup_with(
    py: Python<'_>,
    (queue, session): (&mut Queue, &Session),
    question: (&Namespace, &[BlockKey]),
    asked: Asked,
) -> PyResult<Found> {
    let mut outcome = find(py, (queue, session), question, asked);
    if let Err(LookupFailure::Stale) = outcome {
        refresh(py, question.0)?;
        outcome = find(py, (queue, session), question, asked);
    }
    outcome.map_err(LookupFailure::into_error)
}

/// Ends holds. Those of a namespace that was cleared have ended.
pub(crate) fn release(
    py: Python<'_>,
    session: &Session,
    (space, keys): (&Namespace, &[BlockKey]),
    timeout: Option<Duration>,
) -> PyResult<()> {
    let mut queue = session.borrow_queue(py)?;
    let until = deadline(timeout);
    let outcome = keys.chunks(LOOKUP_KEYS).try_for_each(|keys| {
        patiently(py, session, (until, timeout), |slice| queue.release(space, keys, slice))
    });
    session.return_queue(queue);
    match outcome {
        Err(LookupFailure::Stale) => refresh(py, space),
        outcome => outcome.map_err(LookupFailure::into_error),
    }
}

/// Why a lookup did not end well.
enum LookupFailure {
    /// The namespace was cleared.
    Stale,
    Raised(PyErr),
}

impl LookupFailure {
    fn into_error(self) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Stale => from_client(ClientError::Denied {
                what: "a lookup",
                status: Status::Stale,
                message: "the namespace is cleared again and again; ask later".into(),
            }),
        }
    }
}

fn find(
    py: Python<'_>,
    (queue, session): (&mut Queue, &Session),
    (space, keys): (&Namespace, &[BlockKey]),
    asked: Asked,
) -> Result<Found, LookupFailure> {
    let until = deadline(asked.timeout);
    let (asked_for, mut all) = (keys.len(), Found::default());
    for keys in keys.chunks(LOOKUP_KEYS) {
        let found = patiently(py, session, (until, asked.timeout), |timeout| {
            queue.lookup(space, keys, &Lookup { timeout, ..asked.how() })
        })?;
        let is_cut = asked.extent == LookupExtent::Prefix && found.prefix < keys.len();
        all.append(found);
        if is_cut {
            break;
        }
    }
    Ok(Found { keys: asked_for, ..all })
}

/// Waits in slices, so that Ctrl-C ends the wait: the request may be repeated.
fn patiently<T: Send>(
    py: Python<'_>,
    session: &Session,
    (until, timeout): (Option<Instant>, Option<Duration>),
    mut ask: impl FnMut(Duration) -> Result<T, ClientError> + Send,
) -> Result<T, LookupFailure> {
    let mut slice = SLICE;
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let wait = left.map_or(slice, |left| left.min(slice));
        match py.detach(|| ask(wait)) {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Denied { status: Status::Stale, .. }) => {
                return Err(LookupFailure::Stale);
            }
            Err(ClientError::Timeout { .. }) if left.is_none_or(|left| left > wait) => {
                pause(py, session).map_err(LookupFailure::Raised)?;
                slice = (2 * slice).min(LOOKUP_SLICE_MAX);
            }
            Err(ClientError::Timeout { .. }) => {
                let after = timeout.unwrap_or_default();
                let error = ClientError::Timeout { what: "a lookup", after };
                return Err(LookupFailure::Raised(from_client(error)));
            }
            Err(error) => return Err(LookupFailure::Raised(from_client(error))),
        }
    }
}
