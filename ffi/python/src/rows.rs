//! Arrays as rows of bytes.

use pyo3::buffer::PyUntypedBuffer;

/// The rows of an array of one dimension or more: what the first index chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// How many.
    pub(crate) count: usize,
    /// From the first byte of one to that of the next.
    pub(crate) stride: isize,
    /// Bytes of each.
    pub(crate) bytes: usize,
}

impl Rows {
    /// The rows of an array; none when the bytes of a row lie apart.
    pub(crate) fn of(buffer: &PyUntypedBuffer) -> Option<Self> {
        Self::from_shape(buffer.shape(), buffer.strides(), buffer.item_size())
    }

    /// As `of`, from shape and strides in bytes.
    pub(crate) fn from_shape(shape: &[usize], strides: &[isize], item: usize) -> Option<Self> {
        let (&count, inner) = shape.split_first()?;
        let (&stride, inner_strides) = strides.split_first()?;
        let mut bytes = item;
        for (&length, &stride) in inner.iter().zip(inner_strides).rev() {
            if length > 1 && stride != bytes.cast_signed() {
                return None;
            }
            bytes *= length;
        }
        Some(Self { count, stride, bytes })
    }

    /// All bytes of a contiguous buffer as one row.
    pub(crate) fn whole(buffer: &PyUntypedBuffer) -> Self {
        Self { count: 1, stride: 0, bytes: buffer.len_bytes() }
    }
}
