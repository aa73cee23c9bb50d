//! Where the bytes of blocks are: in arenas, or in memory of the program's own.

use std::sync::Arc;

use kvrail_client::{Arena, ClientError, Lease};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arena::Arena as PyArena;
use crate::errors::raised::RequestError;
use crate::memory::{Outside, lent};
use crate::numbers::Numbers;
use crate::session::Session;

/// Whether the bytes are read or filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// By a put.
    Read,
    /// By a get.
    Fill,
}

/// The memory of one block.
#[derive(Clone, Copy, Debug)]
struct MemoryPlace {
    /// Which arena, or which of the memories outside.
    owner: u32,
    at: Location,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Location {
    /// First byte in the arena.
    Arena(usize),
    /// Row of a memory outside: its bytes are copied.
    Row(usize),
    /// Nowhere yet.
    Room,
}

/// The memory of all blocks of a call.
#[derive(Debug)]
pub(crate) struct Places {
    arenas: Vec<Arc<Arena>>,
    outside: Vec<Outside>,
    places: Vec<MemoryPlace>,
}

/// Where a block's bytes are, for a request.
pub(crate) enum Bytes<'a> {
    /// In an arena: devices reach them.
    Lent(Lease),
    /// Not in one: they are copied to or from a lease.
    Copied(&'a Outside, usize),
    /// Nowhere: the lease is kept for the caller.
    Room,
}

impl Places {
    /// Memory for `count` blocks: one buffer for each, an array whose rows they are, or (arena,
    /// positions, lengths).
    pub(crate) fn read(
        session: &Session,
        from: &Bound<'_, PyAny>,
        count: usize,
        how: (Use, u32),
    ) -> PyResult<Self> {
        let arenas = session.arenas();
        let mut places = Self { arenas, outside: Vec::new(), places: Vec::with_capacity(count) };
        if let Some((arena, numbers)) = ranges(from) {
            places.add_ranges(&arena, numbers, (count, how.1))?;
        } else if let Some(rows) = Outside::of(from)? {
            places.add_rows(rows, count, how)?;
        } else {
            places.add_each(from, how)?;
        }
        if places.places.len() != count {
            let text = format!("{} buffers for {count} keys; pass one each", places.places.len());
            return Err(RequestError::new_err(text));
        }
        if how.0 == Use::Fill {
            places.check_apart()?;
        }
        Ok(places)
    }

    /// No memory.
    pub(crate) fn none() -> Self {
        Self { arenas: Vec::new(), outside: Vec::new(), places: Vec::new() }
    }

    /// Room for one block of up to so many bytes.
    pub(crate) fn room(bytes: usize) -> Self {
        Self { places: vec![MemoryPlace { owner: 0, at: Location::Room, bytes }], ..Self::none() }
    }

    /// Memory for one block.
    pub(crate) fn read_one(
        session: &Session,
        from: &Bound<'_, PyAny>,
        how: (Use, u32),
    ) -> PyResult<Self> {
        let mut places = Self { arenas: session.arenas(), ..Self::none() };
        places
            .add_buffer(from, how)
            .map_err(|text| RequestError::new_err(format!("the buffer {text}")))?;
        Ok(places)
    }

    fn add_ranges(
        &mut self,
        arena: &Bound<'_, PyArena>,
        [positions, lengths]: [Bound<'_, PyAny>; 2],
        (count, alignment): (usize, u32),
    ) -> PyResult<()> {
        let arena = arena.get().get()?;
        let positions = Numbers::read("positions", &positions)?;
        let lengths = Numbers::read("lengths", &lengths)?;
        for (what, numbers) in [("positions", &positions), ("lengths", &lengths)] {
            if let Some(other) = numbers.count().filter(|other| *other != count) {
                let text = format!("{count} keys and {other} {what}; pass one each");
                return Err(RequestError::new_err(text));
            }
        }
        let owner = self.arenas.iter().position(|other| Arc::ptr_eq(other, &arena));
        let owner = owner.ok_or_else(|| {
            RequestError::new_err("the arena belongs to another client; use this client's own")
        })?;
        let (owner, whole) = (u32::try_from(owner)?, arena.bytes() as u64);
        for index in 0..count {
            let (position, bytes) = (positions.get(index), lengths.get(index));
            let inside = bytes > 0 && position <= whole && bytes <= whole - position;
            if !inside || !position.is_multiple_of(alignment.into()) {
                return Err(RequestError::new_err(format!(
                    "block {index}: {bytes} bytes from {position} on; pass at least 1, within the \
                     arena's {whole}, from a multiple of {alignment} on"
                )));
            }
            let at = Location::Arena(usize::try_from(position)?);
            self.places.push(MemoryPlace { owner, at, bytes: usize::try_from(bytes)? });
        }
        Ok(())
    }

    fn add_rows(&mut self, rows: Outside, count: usize, how: (Use, u32)) -> PyResult<()> {
        let shape = rows.rows();
        let rows = if count == 1 && shape.count != 1 { rows.into_one() } else { Some(rows) };
        let fitting = rows.filter(|rows| rows.rows().count == count);
        let Some(rows) = fitting else {
            return Err(RequestError::new_err(format!(
                "one buffer of {} rows for {count} keys; pass an array with a row for each key, a \
                 list of buffers, or (arena, positions, lengths)",
                shape.count
            )));
        };
        check_use(&rows, how.0)
            .map_err(|text| RequestError::new_err(format!("the buffer {text}")))?;
        self.outside.push(rows);
        for row in 0..count {
            self.push(row, how.1);
        }
        Ok(())
    }

    fn add_each(&mut self, from: &Bound<'_, PyAny>, how: (Use, u32)) -> PyResult<()> {
        let items = from.try_iter().map_err(|_| {
            let kind = from.get_type().to_string();
            RequestError::new_err(format!(
                "buffers is a {kind} (or an array whose rows' bytes lie apart); pass a buffer for \
                 each key, an array whose rows they are, or (arena, positions, lengths)"
            ))
        })?;
        for (index, item) in items.enumerate() {
            self.add_buffer(&item?, how)
                .map_err(|text| RequestError::new_err(format!("buffers[{index}] {text}")))?;
        }
        Ok(())
    }

    fn add_buffer(
        &mut self,
        from: &Bound<'_, PyAny>,
        (how, alignment): (Use, u32),
    ) -> Result<(), String> {
        let outside = Outside::of(from).map_err(|error| format!("is refused: {error}"))?;
        let Some(outside) = outside.and_then(Outside::into_one) else {
            let kind = from.get_type().to_string();
            return Err(format!(
                "is a {kind} without bytes that lie together; pass contiguous memory, as by \
                 numpy.ascontiguousarray"
            ));
        };
        check_use(&outside, how)?;
        self.outside.push(outside);
        self.push(0, alignment);
        Ok(())
    }

    /// Adds a row of the last memory outside; where that lies in an arena, the place there.
    fn push(&mut self, row: usize, alignment: u32) {
        let outside = self.outside.last().expect("its caller has just added one");
        let (address, bytes) = (outside.address(row), outside.rows().bytes);
        let arenas = (0_u32..).zip(&self.arenas);
        let found = arenas.filter_map(|(owner, arena)| {
            let position = address.checked_sub(base(arena))?;
            let inside = position < arena.bytes() && bytes <= arena.bytes() - position;
            let reached = position.is_multiple_of(alignment as usize);
            (inside && reached).then_some((owner, Location::Arena(position)))
        });
        let last = u32::try_from(self.outside.len() - 1).expect("memory for so many is not there");
        let (owner, at) = found.last().unwrap_or((last, Location::Row(row)));
        self.places.push(MemoryPlace { owner, at, bytes });
    }

    /// No two blocks may be got into the same bytes: one would be taken for the other.
    fn check_apart(&self) -> PyResult<()> {
        let mut order: Vec<(usize, usize)> =
            (0..self.places.len()).map(|index| (self.address(index), index)).collect();
        order.sort_unstable();
        for pair in order.windows(2) {
            let [(first, one), (second, other)] = [pair[0], pair[1]];
            if first + self.bytes(one) > second {
                return Err(RequestError::new_err(format!(
                    "the buffers of blocks {one} and {other} overlap; each needs its own"
                )));
            }
        }
        Ok(())
    }

    fn address(&self, index: usize) -> usize {
        let place = self.places[index];
        match place.at {
            Location::Arena(position) => base(&self.arenas[place.owner as usize]) + position,
            Location::Row(row) => self.outside[place.owner as usize].address(row),
            Location::Room => 0,
        }
    }

    /// Bytes of a block's memory.
    pub(crate) fn bytes(&self, index: usize) -> usize {
        self.places[index].bytes
    }

    /// Bytes of the longest block that is copied; 0 if there is none.
    pub(crate) fn longest_to_copy(&self) -> usize {
        let copied = self.places.iter().filter(|place| !matches!(place.at, Location::Arena(_)));
        copied.map(|place| place.bytes).max().unwrap_or(0)
    }

    /// A block's memory.
    pub(crate) fn get(&self, index: usize) -> Result<Bytes<'_>, ClientError> {
        let MemoryPlace { owner, at, bytes } = self.places[index];
        match at {
            Location::Arena(position) => {
                lent(&self.arenas[owner as usize], position, bytes).map(Bytes::Lent)
            }
            Location::Row(row) => Ok(Bytes::Copied(&self.outside[owner as usize], row)),
            Location::Room => Ok(Bytes::Room),
        }
    }
}

fn base(arena: &Arena) -> usize {
    arena.pool().memory().base().as_ptr().addr()
}

/// (arena, positions, lengths), if it is that.
fn ranges<'py>(from: &Bound<'py, PyAny>) -> Option<(Bound<'py, PyArena>, [Bound<'py, PyAny>; 2])> {
    let tuple = from.cast::<PyTuple>().ok()?;
    let parts: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) = tuple.extract().ok()?;
    let arena = parts.0.cast_into::<PyArena>().ok()?;
    // Three arenas are three buffers.
    (!parts.1.is_instance_of::<PyArena>()).then_some((arena, [parts.1, parts.2]))
}

fn check_use(outside: &Outside, how: Use) -> Result<(), String> {
    if how == Use::Fill && outside.is_readonly() {
        return Err("is read-only; a get needs memory that it can write".to_owned());
    }
    if outside.rows().bytes == 0 {
        return Err("has 0 bytes; a block has at least 1".to_owned());
    }
    Ok(())
}
