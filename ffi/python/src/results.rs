//! What calls for many blocks came to, as Python sees it.

use std::collections::BTreeMap;

use kvrail_client::{BlockNote, Chain, Presence, Status};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};

use crate::call_options::chain_word;
use crate::errors::from_status;
use crate::errors::raised::TooSmallError;

/// How the request for one block ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) status: Status,
    pub(crate) note: BlockNote,
    /// Bytes of the block, also of one that was dropped; of the memory that it needs if that was
    /// too small.
    pub(crate) bytes: u64,
    /// Of a get that the program verifies: what its bytes must have.
    pub(crate) crc: u64,
    /// Of a replacing put: bytes of what it has dropped.
    pub(crate) replaced_bytes: u64,
    /// How long it waited in the sidecar for a device.
    pub(crate) queue_ns: u32,
}

impl End {
    /// What has not ended.
    pub(crate) const OPEN: Self = Self {
        status: Status::Late,
        note: BlockNote::None,
        bytes: 0,
        crc: 0,
        replaced_bytes: 0,
        queue_ns: 0,
    };

    /// What was not put because a block before it in its chain was declined.
    pub(crate) const BEHIND: Self = Self { status: Status::Declined, ..Self::OPEN };

    /// Whether the block is there, moved or dropped as asked for.
    fn is_well(self) -> bool {
        self.status == Status::Ok && self.note != BlockNote::Pending
    }

    /// As users read it.
    pub(crate) fn word(self) -> &'static str {
        match self.note {
            BlockNote::Present => "PRESENT",
            BlockNote::Pending => "PENDING",
            _ => self.status.name(),
        }
    }

    /// Why it was declined, in a word.
    fn declined(self) -> Option<&'static str> {
        match self.note {
            _ if self.status != Status::Declined => None,
            BlockNote::Declined(why) => Some(why.name()),
            BlockNote::Stale => Some("stale"),
            _ => Some("behind"),
        }
    }

    /// What there is to say beside the word.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self.note {
            BlockNote::Declined(why) => Some(why.words()),
            BlockNote::Stale => Some("the namespace was cleared; it was opened anew"),
            BlockNote::Warming => Some("the store has not read all of its drive yet"),
            BlockNote::Wrong => Some("its bytes were wrong twice; the sidecar was told"),
            BlockNote::None if self.status == Status::Declined => {
                Some("a block before it in its chain was declined")
            }
            BlockNote::None | BlockNote::Present | BlockNote::Pending => None,
        }
    }

    /// Whether it is an answer about the block, and no failure.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self.status, Status::Ok | Status::Miss | Status::Declined)
    }

    /// The exception of an end that is no answer, of a call for one block.
    pub(crate) fn error_of_one(self) -> PyErr {
        self.error("the block", vec![(0, self.word())])
    }

    /// The exception of an end that is no answer.
    fn error(self, which: &str, failed: Vec<(usize, &'static str)>) -> PyErr {
        let status = self.status;
        if status == Status::TooSmall {
            let text = format!(
                "{which}: the buffer is too small, the block has {} bytes; nothing was moved",
                self.bytes
            );
            return TooSmallError::new_err((text, status.name(), failed, self.bytes));
        }
        from_status(status, format!("{which}: {status}: {}", status.meaning()), failed)
    }
}

/// The ends of one call, in the order of its keys.
#[pyclass(frozen, sequence, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Results {
    ends: Vec<End>,
    copied_bytes: u64,
}

/// The index that Python means.
pub(crate) fn place(at: isize, count: usize) -> PyResult<usize> {
    let place = if at < 0 { at.checked_add_unsigned(count) } else { Some(at) };
    let place = place.and_then(|place| usize::try_from(place).ok());
    place
        .filter(|place| *place < count)
        .ok_or_else(|| PyIndexError::new_err(format!("index {at} of {count}")))
}

/// Which items Python means: one, or those of a slice.
pub(crate) enum Items {
    One(usize),
    Several(Vec<usize>),
}

impl Items {
    pub(crate) fn read(at: &Bound<'_, PyAny>, count: usize) -> PyResult<Self> {
        let Ok(slice) = at.cast::<PySlice>() else {
            return place(at.extract()?, count).map(Self::One);
        };
        let range = slice.indices(isize::try_from(count)?)?;
        let steps = (0..range.slicelength).map(|step| isize::try_from(step).unwrap_or(0));
        let places = steps.map(|step| (range.start + step * range.step).unsigned_abs());
        Ok(Self::Several(places.collect()))
    }
}

/// The item that Python means, or a list of some.
fn items<'py, T: IntoPyObject<'py>>(
    at: &Bound<'py, PyAny>,
    count: usize,
    item: impl Fn(usize) -> T,
) -> PyResult<Bound<'py, PyAny>> {
    match Items::read(at, count)? {
        Items::One(place) => item(place).into_bound_py_any(at.py()),
        Items::Several(places) => {
            places.into_iter().map(item).collect::<Vec<T>>().into_bound_py_any(at.py())
        }
    }
}

/// A view of items of this format, for NumPy and for indexing.
fn view<'py>(py: Python<'py>, bytes: &[u8], format: &str) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyBytes::new(py, bytes);
    PyMemoryView::from(bytes.as_any())?.call_method1("cast", (format,))
}

fn view_of_bools<'py>(
    py: Python<'py>,
    all: impl Iterator<Item = bool>,
) -> PyResult<Bound<'py, PyAny>> {
    view(py, &all.map(u8::from).collect::<Vec<_>>(), "?")
}

impl Results {
    pub(crate) fn new(ends: Vec<End>, copied_bytes: u64) -> Self {
        Self { ends, copied_bytes }
    }

    /// The exception of what is no answer about blocks: the session is over, or a bug.
    pub(crate) fn broken(&self) -> Option<PyErr> {
        let broken = |end: &End| {
            use Status::{Denied, Draining, Internal, Invalid, Restarted};
            matches!(end.status, Denied | Draining | Internal | Invalid | Restarted)
        };
        self.failure(broken)
    }

    /// A view of one number of each end.
    fn numbers<'py>(
        &self,
        py: Python<'py>,
        number: impl Fn(&End) -> u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let all: Vec<u8> = self.ends.iter().flat_map(|end| number(end).to_ne_bytes()).collect();
        view(py, &all, "Q")
    }

    /// The exception of the first end like this.
    fn failure(&self, is_failure: impl Fn(&End) -> bool) -> Option<PyErr> {
        let failed = self.ends.iter().enumerate().filter(|(_, end)| is_failure(end));
        let failed: Vec<_> = failed.map(|(at, end)| (at, end.word())).collect();
        let (first, _) = *failed.first()?;
        let which = format!("{} of {} failed, first number {first}", failed.len(), self.ends.len());
        Some(self.ends[first].error(&which, failed))
    }
}

#[pymethods]
impl Results {
    fn __len__(&self) -> usize {
        self.ends.len()
    }

    fn __getitem__<'py>(&self, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        items(at, self.ends.len(), |place| self.ends[place].word())
    }

    #[getter]
    fn ok<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view_of_bools(py, self.ends.iter().map(|end| end.is_well()))
    }

    #[getter]
    fn all_ok(&self) -> bool {
        self.ends.iter().all(|end| end.is_well())
    }

    #[getter]
    fn prefix(&self) -> usize {
        self.ends.iter().take_while(|end| end.is_well()).count()
    }

    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, |end| end.bytes)
    }

    #[getter]
    fn replaced<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, |end| end.replaced_bytes)
    }

    #[getter]
    fn crcs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, |end| end.crc)
    }

    #[getter]
    fn queue_ns(&self) -> u32 {
        self.ends.iter().map(|end| end.queue_ns).max().unwrap_or(0)
    }

    #[getter]
    fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for end in &self.ends {
            *counts.entry(end.word()).or_default() += 1;
        }
        counts
    }

    #[getter]
    fn declines(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for name in self.ends.iter().filter_map(|end| end.declined()) {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    fn reason(&self, at: isize) -> PyResult<Option<&'static str>> {
        Ok(self.ends[place(at, self.ends.len())?].reason())
    }

    fn check(&self) -> PyResult<()> {
        self.failure(|end| !end.is_answer()).map_or(Ok(()), Err)
    }

    fn __repr__(&self) -> String {
        let counts = self.counts();
        let counts: Vec<_> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        format!("<kvrail.Results of {}: {}>", self.ends.len(), counts.join(", "))
    }
}

/// What a lookup found.
#[pyclass(frozen, sequence, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Found {
    found: kvrail_client::Found,
}

impl Found {
    pub(crate) fn new(found: kvrail_client::Found) -> Self {
        Self { found }
    }
}

#[pymethods]
impl Found {
    fn __len__(&self) -> usize {
        self.found.there.len()
    }

    fn __getitem__<'py>(&self, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        items(at, self.found.there.len(), |place| self.found.there[place])
    }

    #[getter]
    fn prefix(&self) -> usize {
        self.found.prefix
    }

    #[getter]
    fn there<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view_of_bools(py, self.found.there.iter().copied())
    }

    #[getter]
    fn chain(&self) -> &'static str {
        chain_word(self.found.chain())
    }

    #[getter]
    fn held(&self) -> usize {
        self.found.held
    }

    #[getter]
    fn load_seconds(&self) -> Option<f64> {
        self.load_seconds_of(self.found.prefix)
    }

    fn load_seconds_of(&self, count: usize) -> Option<f64> {
        self.found.load_time(count).map(|time| time.as_secs_f64())
    }

    #[getter]
    fn warming(&self) -> usize {
        self.found.warming
    }

    fn __repr__(&self) -> String {
        let there = self.found.there.iter().filter(|there| **there).count();
        let (all, prefix) = (self.found.there.len(), self.found.prefix);
        format!("<kvrail.Found: {there} of {all} are there, {prefix} from the first on>")
    }
}

/// What Python sees of a presence: whether a block is there, or nothing where nobody knows.
pub(crate) fn known(presence: Presence) -> Option<bool> {
    match presence {
        Presence::Absent => Some(false),
        Presence::Maybe => None,
        Presence::Present => Some(true),
    }
}

/// What a probe of many keys told.
#[pyclass(frozen, sequence, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Probed {
    probed: Vec<Presence>,
}

impl Probed {
    pub(crate) fn new(probed: Vec<Presence>) -> Self {
        Self { probed }
    }

    fn count(&self, wanted: Presence) -> usize {
        self.probed.iter().filter(|presence| **presence == wanted).count()
    }
}

#[pymethods]
impl Probed {
    fn __len__(&self) -> usize {
        self.probed.len()
    }

    fn __getitem__<'py>(&self, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        items(at, self.probed.len(), |place| known(self.probed[place]))
    }

    #[getter]
    fn prefix(&self) -> usize {
        self.probed.iter().take_while(|presence| **presence == Presence::Present).count()
    }

    #[getter]
    fn there<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view_of_bools(py, self.probed.iter().map(|presence| *presence == Presence::Present))
    }

    #[getter]
    fn chain(&self) -> &'static str {
        let gone = self.probed.iter().position(|presence| *presence == Presence::Absent);
        chain_word(Chain::of(gone.unwrap_or(self.probed.len()), self.probed.len()))
    }

    #[getter]
    fn unknown(&self) -> usize {
        self.count(Presence::Maybe)
    }

    fn __repr__(&self) -> String {
        let (all, there) = (self.probed.len(), self.count(Presence::Present));
        format!("<kvrail.Probed: {there} of {all} are there, {} are unknown>", self.unknown())
    }
}
