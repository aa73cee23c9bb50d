//! Arrays of offsets, positions and lengths, from whatever holds integers.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::errors::raised::RequestError;

/// One number for all requests of a batch, or one for each. A copy: Python may change its array
/// while the batch runs.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    One(u64),
    Many(Vec<u64>),
}

impl Numbers {
    /// Reads an integer, a one-dimensional buffer of 64-bit integers (whatever its strides), or a
    /// sequence of integers.
    pub(crate) fn read(what: &str, from: &Bound<'_, PyAny>) -> PyResult<Self> {
        if from.is_instance_of::<PyInt>() {
            return Ok(Self::One(one(what, from.extract()?)?));
        }
        match PyUntypedBuffer::get(from) {
            // NumPy's integers and arrays without a dimension are integers, too.
            Ok(buffer) if buffer.dimensions() > 0 => {
                from_buffer(what, from.py(), buffer).map(Self::Many)
            }
            _ => match from.extract() {
                Ok(number) => one(what, number).map(Self::One),
                Err(_) => from_sequence(what, from).map(Self::Many),
            },
        }
    }

    /// The number of requests it is for, if it has one.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::Many(numbers) => Some(numbers.len()),
        }
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        match self {
            Self::One(number) => *number,
            Self::Many(numbers) => numbers[index],
        }
    }
}

/// Marks of the other byte order in a buffer's format (module `struct`).
const FOREIGN: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };

fn one(what: &str, number: i128) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| {
        let text = format!("{what} is {number}; it must be between 0 and {}", u64::MAX);
        RequestError::new_err(text)
    })
}

fn from_buffer(what: &str, py: Python<'_>, buffer: PyUntypedBuffer) -> PyResult<Vec<u64>> {
    if buffer.dimensions() != 1 {
        let text =
            format!("{what} has {} dimensions; pass one, as by .ravel()", buffer.dimensions());
        return Err(RequestError::new_err(text));
    }
    let foreign = buffer.format().to_bytes().first().is_some_and(|order| FOREIGN.contains(order));
    if let (Ok(unsigned), false) = (buffer.as_typed::<u64>(), foreign) {
        return unsigned.to_vec(py);
    }
    let (Ok(signed), false) = (buffer.as_typed::<i64>(), foreign) else {
        let format = buffer.format().to_string_lossy().into_owned();
        return Err(RequestError::new_err(format!(
            "{what} has items of format {format:?}; pass 64-bit integers in native byte order, as \
             by .astype(numpy.int64)"
        )));
    };
    let numbers = signed.to_vec(py)?;
    if let Some(index) = numbers.iter().position(|number| *number < 0) {
        let text = format!("{what}[{index}] is {}; it must not be negative", numbers[index]);
        return Err(RequestError::new_err(text));
    }
    Ok(numbers.into_iter().map(i64::cast_unsigned).collect())
}

fn from_sequence(what: &str, from: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let wrong = || {
        let kind = from.get_type().to_string();
        RequestError::new_err(format!(
            "{what} is a {kind}; pass an integer, a sequence of integers, or an array of 64-bit \
             integers"
        ))
    };
    let items = from.try_iter().map_err(|_| wrong())?.enumerate().map(|(index, item)| {
        let number = item?.extract::<i128>().map_err(|_| wrong())?;
        one(&format!("{what}[{index}]"), number)
    });
    items.collect()
}
