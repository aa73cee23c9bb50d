//! Keys of blocks, from whatever engines call their blocks.

use kvrail_client::BlockKey;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::errors::raised::RequestError;
use crate::memory::copied;
use crate::results::Items;
use crate::rows::Rows;

/// Bytes of a key.
const KEY_BYTES: usize = size_of::<u128>();

/// What is done with what names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    /// The first 128 bits of its BLAKE3: for names of any kind.
    Blake3,
    /// The name is uniform by itself: its first 128 bits are the key.
    Taken,
}

/// Keys that were made once, for many calls.
#[pyclass(frozen, sequence, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Keys {
    keys: Vec<BlockKey>,
}

impl Keys {
    pub(crate) fn new(keys: Vec<BlockKey>) -> Self {
        Self { keys }
    }
}

/// The keys of a call: `Keys`, or what is to be folded.
pub(crate) fn read(from: &Bound<'_, PyAny>) -> PyResult<Vec<BlockKey>> {
    match from.cast_exact::<Keys>() {
        Ok(keys) => Ok(keys.get().keys.clone()),
        Err(_) => many(from, Fold::Blake3),
    }
}

/// The key of a call for one block.
pub(crate) fn read_one(from: &Bound<'_, PyAny>) -> PyResult<BlockKey> {
    if let Ok(keys) = from.cast_exact::<Keys>() {
        return match &*keys.get().keys {
            [key] => Ok(*key),
            keys => Err(RequestError::new_err(format!("key is {} Keys; pass one", keys.len()))),
        };
    }
    one(from, Fold::Blake3)
}

/// One key of bytes or an integer.
fn one(from: &Bound<'_, PyAny>, fold: Fold) -> PyResult<BlockKey> {
    if let Ok(bytes) = from.cast::<PyBytes>() {
        return of_bytes(bytes.as_bytes(), fold);
    }
    if from.is_instance_of::<PyString>() {
        let text = "a key is text; say which bytes it is, as by key.encode()";
        return Err(RequestError::new_err(text));
    }
    if from.is_instance_of::<PyInt>() {
        return of_bits(from, fold);
    }
    match PyUntypedBuffer::get(from) {
        Ok(buffer) if buffer.dimensions() > 0 => {
            if !buffer.is_c_contiguous() {
                return Err(RequestError::new_err("a key's bytes lie apart; copy them"));
            }
            of_bytes(&copied(from.py(), &buffer, &Rows::whole(&buffer)), fold)
        }
        _ => of_bits(from, fold),
    }
}

fn of_bytes(bytes: &[u8], fold: Fold) -> PyResult<BlockKey> {
    match fold {
        Fold::Blake3 => Ok(BlockKey::of(bytes)),
        Fold::Taken => BlockKey::uniform(bytes).ok_or_else(|| {
            RequestError::new_err(format!(
                "a uniform key of {} bytes; it must have at least {KEY_BYTES}, or be folded",
                bytes.len()
            ))
        }),
    }
}

fn of_bits(from: &Bound<'_, PyAny>, fold: Fold) -> PyResult<BlockKey> {
    let bits: u128 = from.extract().map_err(|_| {
        let shown = from.repr().map_or_else(|_| "something".to_owned(), |text| text.to_string());
        let shown: String = shown.chars().take(64).collect();
        RequestError::new_err(format!(
            "a key is {shown}; it must be bytes, or an integer from 0 to 2**128 - 1 (of what \
             hash() gives, & (2**64 - 1))"
        ))
    })?;
    Ok(match fold {
        Fold::Blake3 => BlockKey::of(&bits.to_le_bytes()),
        Fold::Taken => BlockKey::from_bits(bits),
    })
}

/// Keys of a sequence, or of the rows of an array.
fn many(from: &Bound<'_, PyAny>, fold: Fold) -> PyResult<Vec<BlockKey>> {
    if from.is_instance_of::<PyBytes>() || from.is_instance_of::<PyString>() {
        let text = "keys is one key; pass a sequence of keys, as [key]";
        return Err(RequestError::new_err(text));
    }
    if let Ok(buffer) = PyUntypedBuffer::get(from)
        && let Some(keys) = from_array(from.py(), &buffer, fold)
    {
        return keys;
    }
    let items = from.try_iter().map_err(|_| {
        let kind = from.get_type().to_string();
        RequestError::new_err(format!(
            "keys is a {kind}; pass a sequence of bytes or integers, an array whose rows are keys, \
             or kvrail.Keys"
        ))
    })?;
    let mut keys = Vec::with_capacity(from.len().unwrap_or(0));
    for (index, item) in items.enumerate() {
        match one(&item?, fold) {
            Ok(key) => keys.push(key),
            Err(error) => return Err(numbered(from.py(), error, index)),
        }
    }
    Ok(keys)
}

fn numbered(py: Python<'_>, error: PyErr, index: usize) -> PyErr {
    // The error is worth more than a failure to comment on it.
    let _noted = error.value(py).call_method1("add_note", (format!("in keys[{index}]"),));
    error
}

/// Keys of an array: its rows of bytes, or its items of fixed length (`S32`). None when its items
/// are numbers.
fn from_array(
    py: Python<'_>,
    buffer: &PyUntypedBuffer,
    fold: Fold,
) -> Option<PyResult<Vec<BlockKey>>> {
    let of_strings = buffer.format().to_bytes().ends_with(b"s");
    match buffer.dimensions() {
        0 => None,
        1 if !of_strings => {
            let bytes = buffer.item_size() == 1;
            let text = "keys is one key; pass a sequence of keys, as [key], or an array of 2 \
                        dimensions whose rows are keys";
            bytes.then(|| Err(RequestError::new_err(text)))
        }
        _ => {
            let count = buffer.shape()[0];
            let Some(rows) = Rows::of(buffer) else {
                let text = "keys is an array whose rows' bytes lie apart; copy it";
                return Some(Err(RequestError::new_err(text)));
            };
            let all = copied(py, buffer, &rows);
            let row = |at: usize| of_bytes(&all[at * rows.bytes..(at + 1) * rows.bytes], fold);
            Some((0..count).map(row).collect())
        }
    }
}

#[pymethods]
impl Keys {
    /// Folds names of any kind.
    #[new]
    fn fold(keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        read(keys).map(Self::new)
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }

    /// The bits of one key, or some keys.
    fn __getitem__<'py>(&self, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = at.py();
        match Items::read(at, self.keys.len())? {
            Items::One(place) => Ok(self.keys[place].bits().into_pyobject(py)?.into_any()),
            Items::Several(places) => {
                let chosen = places.into_iter().map(|place| self.keys[place]).collect();
                Ok(Bound::new(py, Self::new(chosen))?.into_any())
            }
        }
    }

    /// 16 bytes for each, lowest byte first.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let all: Vec<u8> = self.keys.iter().flat_map(|key| key.bits().to_le_bytes()).collect();
        PyBytes::new(py, &all)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Keys of {} blocks>", self.keys.len())
    }
}

/// Keys of hashes that are uniform by themselves.
#[pyfunction]
pub(crate) fn uniform(keys: &Bound<'_, PyAny>) -> PyResult<Keys> {
    let single = keys.is_instance_of::<PyBytes>() || keys.is_instance_of::<PyInt>();
    let keys = if single { vec![one(keys, Fold::Taken)?] } else { many(keys, Fold::Taken)? };
    Ok(Keys::new(keys))
}
