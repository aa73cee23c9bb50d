//! What a call for blocks may ask for beyond keys and memory: Python's keyword arguments.

use std::time::Duration;

use kvrail_client::{BlockRequest, Class};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::raised::RequestError;
use crate::numbers::Numbers;
use crate::options::{class, seconds};

/// Bytes of a block's metadata.
const METADATA_BYTES_MAX: usize = kvrail_client::METADATA_BYTES_MAX;

/// Keyword arguments of every call.
pub(crate) const ALWAYS: &[&str] = &["priority", "timeout"];
/// Those of gets of many blocks, whose results have room for what the bytes must be.
pub(crate) const OF_GETS: &[&str] = &["priority", "timeout", "verify"];
/// Those of puts.
pub(crate) const OF_PUTS: &[&str] =
    &["priority", "timeout", "metadata", "durable", "depth", "chain", "crc", "replace"];
/// Those of drops.
pub(crate) const OF_DROPS: &[&str] = &["priority", "timeout", "durable"];

/// How the blocks of a call depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kin {
    /// Not at all.
    #[default]
    Apart,
    /// Each is worth little without those before it.
    Chain,
}

/// How blocks are moved.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    class: Class,
    durable: Option<()>,
    /// For each block; none if there is none.
    metadata: Vec<Vec<u8>>,
    /// CRC-64/NVME of each block that is put, if the program has computed it.
    crc: Option<Numbers>,
    /// The program verifies what it gets.
    unverified: Option<()>,
    /// Blocks with other bytes give way to what is put.
    replacing: Option<()>,
    /// Of the first block, or of all.
    depth: u16,
    kin: Kin,
    /// How long the call may wait; for ever if nothing is said.
    timeout: Option<Duration>,
}

impl Manner {
    /// Reads keyword arguments of a call for `count` blocks.
    pub(crate) fn read(
        given: Option<&Bound<'_, PyDict>>,
        known: &[&str],
        count: usize,
    ) -> PyResult<Self> {
        let mut manner = Self::default();
        for (key, value) in given.into_iter().flatten() {
            let key: String = key.extract()?;
            if !known.contains(&&*key) {
                let known = known.join(", ");
                let text = format!("{key:?} is no option of this call; there are {known}");
                return Err(PyTypeError::new_err(text));
            }
            match &*key {
                _ if value.is_none() => {}
                "priority" => manner.class = class(&value)?,
                "timeout" => manner.timeout = Some(seconds("timeout", &value)?),
                "durable" => manner.durable = value.extract::<bool>()?.then_some(()),
                "metadata" => manner.metadata = metadata(&value, count)?,
                "crc" => manner.crc = Some(crcs(&value, count)?),
                "verify" => manner.unverified = (!value.extract::<bool>()?).then_some(()),
                "replace" => manner.replacing = value.extract::<bool>()?.then_some(()),
                "depth" => manner.depth = depth(&value)?,
                _ => manner.kin = if value.extract()? { Kin::Chain } else { Kin::Apart },
            }
        }
        Ok(manner)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn kin(&self) -> Kin {
        self.kin
    }

    /// The request of the block with this number, with all of it.
    pub(crate) fn apply(&self, index: usize, request: BlockRequest) -> BlockRequest {
        let deeper = match self.kin {
            Kin::Apart => 0,
            Kin::Chain => u16::try_from(index).unwrap_or(u16::MAX),
        };
        let mut request = request.class(self.class).depth(self.depth.saturating_add(deeper));
        if let Some(metadata) = self.metadata.get(index) {
            request = request.metadata(metadata);
        }
        if let Some(crcs) = &self.crc {
            request = request.crc(crcs.get(index));
        }
        if self.unverified.is_some() {
            request = request.unverified();
        }
        if self.replacing.is_some() {
            request = request.replacing();
        }
        match self.durable {
            Some(()) => request.durable(),
            None => request,
        }
    }
}

fn depth(value: &Bound<'_, PyAny>) -> PyResult<u16> {
    let depth: u64 = value.extract()?;
    Ok(u16::try_from(depth).unwrap_or(u16::MAX)) // deeper is as deep
}

fn crcs(value: &Bound<'_, PyAny>, count: usize) -> PyResult<Numbers> {
    let crcs = Numbers::read("crc", value)?;
    match crcs.count().unwrap_or(1) {
        given if given == count => Ok(crcs),
        given => {
            let text = format!("crc has {given} items for {count} keys; pass one each");
            Err(RequestError::new_err(text))
        }
    }
}

/// One piece for each block; for one block it may be a piece by itself.
fn metadata(value: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<Vec<u8>>> {
    let all = if value.is_instance_of::<PyBytes>() {
        vec![piece(value)?]
    } else {
        value.try_iter()?.map(|item| piece(&item?)).collect::<PyResult<Vec<_>>>()?
    };
    if all.len() != count {
        let text = format!("{} pieces of metadata for {count} keys; pass one each", all.len());
        return Err(RequestError::new_err(text));
    }
    match all.iter().position(|piece| piece.len() > METADATA_BYTES_MAX) {
        None => Ok(all),
        Some(at) => Err(RequestError::new_err(format!(
            "metadata of block {at}: {} bytes, {METADATA_BYTES_MAX} at most; put less beside the \
             block, or into it",
            all[at].len()
        ))),
    }
}

fn piece(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    value.extract::<Vec<u8>>().map_err(|_| {
        let kind = value.get_type().to_string();
        RequestError::new_err(format!("metadata is a {kind}; pass bytes, one each"))
    })
}
