//! What a call for blocks may ask for beyond keys and memory: Python's keyword arguments.

use std::time::Duration;

use kvrail_client::{BlockRequest, Chain, Class, Priority};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString};

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
pub(crate) const OF_PUTS: &[&str] = &[
    "priority", "timeout", "metadata", "durable", "depth", "chain", "worth", "ttl", "crc",
    "replace",
];
/// Those of drops.
pub(crate) const OF_DROPS: &[&str] = &["priority", "timeout", "durable"];

/// How the blocks of a call depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlockDependency {
    /// Not at all.
    #[default]
    Independent,
    /// Each is worth little without those before it.
    Chain,
}

/// Keyword arguments of a call for blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOptions {
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
    /// Of the first block or of all, or of each.
    depth: Option<Numbers>,
    dependency: BlockDependency,
    /// What the store has of the chain of each block; none where all extend theirs.
    chains: Vec<Chain>,
    /// How much each block is worth beside others; none where all are worth the same as those.
    worths: Vec<Priority>,
    /// How long they are worth that.
    ttl: Option<Duration>,
    /// How long the call may wait; for ever if nothing is said.
    timeout: Option<Duration>,
}

impl CallOptions {
    /// Reads keyword arguments of a call for `count` blocks.
    pub(crate) fn read(
        given: Option<&Bound<'_, PyDict>>,
        known: &[&str],
        count: usize,
    ) -> PyResult<Self> {
        let mut options = Self::default();
        for (key, value) in given.into_iter().flatten() {
            let key: String = key.extract()?;
            if !known.contains(&&*key) {
                let known = known.join(", ");
                let text = format!("{key:?} is no option of this call; there are {known}");
                return Err(PyTypeError::new_err(text));
            }
            match &*key {
                _ if value.is_none() => {}
                "priority" => options.class = class(&value)?,
                "timeout" => options.timeout = Some(seconds("timeout", &value)?),
                "durable" => options.durable = value.extract::<bool>()?.then_some(()),
                "metadata" => options.metadata = metadata(&value, count)?,
                "crc" => options.crc = Some(each(&key, &value, count)?),
                "verify" => options.unverified = (!value.extract::<bool>()?).then_some(()),
                "replace" => options.replacing = value.extract::<bool>()?.then_some(()),
                "worth" => options.worths = worths(&value, count)?,
                "ttl" => options.ttl = Some(seconds("ttl", &value)?),
                "depth" => options.depth = Some(each(&key, &value, count)?),
                _ => (options.dependency, options.chains) = chains(&value, count)?,
            }
        }
        Ok(options)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn dependency(&self) -> BlockDependency {
        self.dependency
    }

    /// How deep in its chain the block with this number is; what is deeper than can be said is as
    /// deep as can be said.
    fn depth(&self, index: usize) -> u16 {
        let deeper = match (&self.depth, self.dependency) {
            (Some(Numbers::Many(_)), _) | (_, BlockDependency::Independent) => 0,
            (_, BlockDependency::Chain) => index as u64,
        };
        let first = self.depth.as_ref().map_or(0, |depth| depth.get(index));
        u16::try_from(first.saturating_add(deeper)).unwrap_or(u16::MAX)
    }

    /// The request of the block with this number, with all of it.
    pub(crate) fn apply(&self, index: usize, request: BlockRequest) -> BlockRequest {
        let worth = self.worths.get(index).copied().unwrap_or_default();
        let mut request = request.class(self.class).depth(self.depth(index)).worth(worth);
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(chain) = self.chains.get(index) {
            request = request.chain(*chain);
        }
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

/// One number for each block. A depth may be that of the first block, or of all.
fn each(what: &str, value: &Bound<'_, PyAny>, count: usize) -> PyResult<Numbers> {
    let numbers = Numbers::read(what, value)?;
    let one = if what == "depth" { count } else { 1 };
    match numbers.count().unwrap_or(one) {
        given if given == count => Ok(numbers),
        given => Err(unequal(what, given, count)),
    }
}

fn unequal(what: &str, given: usize, count: usize) -> PyErr {
    RequestError::new_err(format!("{what} has {given} items for {count} keys; pass one each"))
}

/// Whether all blocks are one chain, and what the store has of the chain of each.
fn chains(value: &Bound<'_, PyAny>, count: usize) -> PyResult<(BlockDependency, Vec<Chain>)> {
    if value.is_instance_of::<PyBool>() {
        return Ok((
            if value.extract()? { BlockDependency::Chain } else { BlockDependency::Independent },
            Vec::new(),
        ));
    }
    if value.is_instance_of::<PyString>() {
        return Ok((BlockDependency::Chain, vec![chain(value)?; count]));
    }
    let all = value.try_iter().map_err(|_| unknown(value))?;
    let all = all.map(|it| chain(&it?)).collect::<PyResult<Vec<_>>>()?;
    match all.len() {
        given if given == count => Ok((BlockDependency::Independent, all)),
        given => Err(unequal("chain", given, count)),
    }
}

/// The worth of each block: one word for all of them, or a word for each.
fn worths(value: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<Priority>> {
    if value.is_instance_of::<PyString>() {
        return Ok(vec![worth(value)?; count]);
    }
    let all = value.try_iter().map_err(|_| no_worth(value))?;
    let all = all.map(|word| worth(&word?)).collect::<PyResult<Vec<_>>>()?;
    match all.len() {
        given if given == count => Ok(all),
        given => Err(unequal("worth", given, count)),
    }
}

fn worth(value: &Bound<'_, PyAny>) -> PyResult<Priority> {
    let word = value.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
    match word {
        Some("low") => Ok(Priority::Low),
        Some("normal") => Ok(Priority::Normal),
        Some("high") => Ok(Priority::High),
        _ => Err(no_worth(value)),
    }
}

fn no_worth(value: &Bound<'_, PyAny>) -> PyErr {
    let text = format!("worth is {value:?}; it must be \"low\", \"normal\" or \"high\", or one of");
    RequestError::new_err(format!("{text} these words for each block"))
}

fn chain(value: &Bound<'_, PyAny>) -> PyResult<Chain> {
    let word = value.cast::<PyString>().map_err(|_| unknown(value))?.to_str()?;
    let all = [Chain::Extends, Chain::Begins];
    all.into_iter().find(|it| chain_word(*it) == word).ok_or_else(|| unknown(value))
}

/// What Python calls it.
pub(crate) fn chain_word(chain: Chain) -> &'static str {
    match chain {
        Chain::Extends => "extends",
        Chain::Begins => "begins",
    }
}

fn unknown(value: &Bound<'_, PyAny>) -> PyErr {
    let text = format!("chain is {value:?}; it must be True, False, \"extends\" or \"begins\", or");
    RequestError::new_err(format!("{text} one of these words for each block"))
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
