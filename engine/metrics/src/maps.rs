//! Maps of the segments of stores, for the page.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde::Serialize;

/// How long an answer is good for: the largest one has half a megabyte.
const FRESH: Duration = Duration::from_secs(1);

/// A member of a store: lists with a value for each run of neighbouring segments, in the order of
/// the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberMap {
    /// Its device.
    pub device: u16,
    /// Segments that it has.
    pub segments: u32,
    /// Segments of each value; the last one may stand for fewer.
    pub segments_of_cell: u32,
    /// Bytes of gets and puts in a tick.
    pub tick_bytes: u64,
    /// Share of the segments that have content, in percent.
    pub filled_percent: Vec<u8>,
    /// Mean time since those were opened, in seconds; nothing without content.
    pub age_s: Vec<Option<u32>>,
    /// Mean ticks since their blocks were used; nothing without blocks.
    pub idle_ticks: Vec<Option<u16>>,
    /// Places in these lists where blocks are being put.
    pub open: Vec<u16>,
}

/// Makes the maps of all members; reads memory and waits for nothing.
pub type MapSource = Box<dyn Fn() -> Vec<MemberMap> + Send + Sync>;

/// The newest maps, as text.
#[derive(Clone, Default)]
pub(crate) struct Maps(Arc<Mutex<MapState>>);

#[derive(Default)]
struct MapState {
    /// Nothing while the sidecar is being opened.
    source: Option<MapSource>,
    newest: Option<(Instant, Bytes)>,
}

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maps")
    }
}

impl Maps {
    pub(crate) fn serve(&self, source: MapSource) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).source = Some(source);
    }

    /// The answer of `/segments`; empty before there are stores.
    pub(crate) fn text(&self) -> Bytes {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, text)) = &state.newest
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let members = state.source.as_ref().map(|source| source()).unwrap_or_default();
        let text: Bytes = serde_json::json!({ "members": members }).to_string().into();
        state.newest = Some((Instant::now(), text.clone()));
        text
    }
}
