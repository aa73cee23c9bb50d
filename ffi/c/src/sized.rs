//! Structures with their own size: programs and libraries of different ages agree on the rest.
#![expect(unsafe_code, reason = "copies structures of a size that C names")]
// UNSAFETY: the first four bytes of every such structure are its size, and the caller vouches for
// that number of bytes. Copies stay within that size and within the type.

use std::mem::{MaybeUninit, size_of};
use std::slice;

use crate::boundary::placed;
use crate::code::{Failure, KVRAIL_E_NEWER};

/// A structure may not claim to be longer than this many bytes: that is no structure.
const LONGEST: usize = 4096;

/// A C structure that begins with `size: u32`.
///
/// # Safety
/// `repr(C)`, no bytes of padding, the first member is `size: u32`, and every pattern of bits (so
/// all zeroes too) is a value of it.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Bytes of the members it cannot do without.
    const LEAST: usize;
}

/// The size a structure claims, if it can be one.
#[inline]
unsafe fn claimed<T: SizedStruct>(from: *const T) -> Result<usize, Failure> {
    placed(from, T::NAME)?;
    // SAFETY: the caller of `read` or `write` vouches for a structure, which begins with its size.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    if (T::LEAST..=LONGEST).contains(&size) && size.is_multiple_of(align_of::<T>()) {
        return Ok(size);
    }
    Err(Failure::argument(format!(
        "{}.size is {size}; set it to sizeof({0}), {} bytes here",
        T::NAME,
        size_of::<T>()
    )))
}

/// Copies a structure in. Members it is too short for are 0.
///
/// # Safety
/// Not null means that the bytes of its `size` can be read.
#[inline]
pub(crate) unsafe fn read<T: SizedStruct>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { claimed(from) }?;
    if size == size_of::<T>() {
        // SAFETY: placed, and readable for its size, which is that of `T`.
        return Ok(unsafe { from.read() });
    }
    // SAFETY: the caller's promise, for this size.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(Failure::new(
            KVRAIL_E_NEWER,
            format!(
                "{} has {size} bytes, and members beyond the {known} that this library knows are \
                 in use; update libkvrail, or leave them 0",
                T::NAME
            ),
        ));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` is within both; the two do not overlap, one is ours.
    unsafe { value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known) };
    // SAFETY: zeroes and any bytes over them are a value of `T` (its contract).
    Ok(unsafe { value.assume_init() })
}

/// Copies a structure out, up to the caller's size; `size` stays the caller's.
///
/// # Safety
/// Not null means that the bytes of its `size` can be read and written.
#[inline]
pub(crate) unsafe fn write<T: SizedStruct>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { claimed(to) }?;
    // SAFETY: as above.
    unsafe { fill(to.cast(), size, value) };
    Ok(())
}

/// The elements of a caller's array, all of the first one's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<T> {
    first: *mut T,
    stride: usize,
    count: usize,
}

impl<T: SizedStruct> Array<T> {
    /// An empty array may be null.
    ///
    /// # Safety
    /// `count` elements of the first one's `size` can be read, and written if `put` is called, for
    /// as long as this value is used.
    #[inline]
    pub(crate) unsafe fn new(first: *mut T, count: usize) -> Result<Self, Failure> {
        // SAFETY: a first element exists.
        let stride = if count == 0 { 0 } else { unsafe { claimed(first) }? };
        Ok(Self { first, stride, count })
    }

    /// Elements.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "element {index} of {}", self.count);
        self.first.cast::<u8>().wrapping_add(index * self.stride).cast()
    }

    /// A copy of one element.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Result<T, Failure> {
        let element = self.at(index);
        // SAFETY: within the array; only its own size is still the caller's word.
        let size = unsafe { element.cast::<u32>().read() } as usize;
        if size != self.stride {
            return Err(Failure::argument(format!(
                "{} {index} of an array has the size {size}, the first one {}; all must be equal",
                T::NAME,
                self.stride
            )));
        }
        // SAFETY: its size is the stride, and `new`'s caller vouches for that number of bytes.
        unsafe { read(element) }
    }

    /// Fills one element, its `size` too.
    #[inline]
    pub(crate) fn put(&self, index: usize, value: &T) {
        // SAFETY: `new`'s caller vouches for every element.
        unsafe { fill(self.at(index).cast(), self.stride, value) };
    }
}

/// # Safety
/// `size` bytes at `to` can be written; they do not overlap `value`.
#[inline]
unsafe fn fill<T: SizedStruct>(to: *mut u8, size: usize, value: &T) {
    let known = size.min(size_of::<T>());
    // SAFETY: within both (the caller's promise for `to`).
    unsafe { to.copy_from_nonoverlapping((&raw const *value).cast(), known) };
    if size > known {
        // SAFETY: the rest of the caller's bytes.
        unsafe { to.wrapping_add(known).write_bytes(0, size - known) };
    }
    let size = u32::try_from(size).expect("at most LONGEST");
    // SAFETY: the size is the first member, and the structure is aligned.
    unsafe { to.cast::<u32>().write(size) };
}

#[cfg(test)]
mod tests {
    use super::{Array, SizedStruct, read, write};
    use crate::code::{KVRAIL_E_ARGUMENT, KVRAIL_E_NEWER};

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Middle {
        size: u32,
        a: u32,
        b: u64,
    }

    // SAFETY: 16 bytes of integers, the size first.
    unsafe impl SizedStruct for Middle {
        const NAME: &'static str = "middle";
        const LEAST: usize = 8;
    }

    /// A structure as another generation of the header has it.
    fn other(words: &[u64]) -> *mut Middle {
        words.as_ptr().cast_mut().cast()
    }

    fn words(size: u64, a: u64, rest: &[u64]) -> Vec<u64> {
        [&[size | a << 32], rest].concat()
    }

    #[test]
    fn older_newer_and_equal_sizes_are_read() {
        let written = |words: &[u64]| {
            // SAFETY: the words of that size.
            unsafe { read(other(words)) }
        };
        let older = written(&words(8, 7, &[])).unwrap();
        assert_eq!(older, Middle { size: 8, a: 7, b: 0 });
        assert_eq!(written(&words(16, 7, &[9])).unwrap(), Middle { size: 16, a: 7, b: 9 });
        assert_eq!(written(&words(24, 7, &[9, 0])).unwrap(), Middle { size: 24, a: 7, b: 9 });
        assert_eq!(written(&words(24, 7, &[9, 1])).unwrap_err().code, KVRAIL_E_NEWER);
        for size in [0, 4, 12, 8192, u64::from(u32::MAX)] {
            assert_eq!(written(&words(size, 7, &[9, 0])).unwrap_err().code, KVRAIL_E_ARGUMENT);
        }
    }

    #[test]
    fn older_newer_and_equal_sizes_are_written_within_their_bounds() {
        let value = Middle { size: 16, a: 1, b: 2 };
        for (size, wanted) in
            [(8, words(8, 1, &[77, 77])), (16, words(16, 1, &[2, 77])), (24, words(24, 1, &[2, 0]))]
        {
            let mut room = words(size, 0, &[77, 77]);
            // SAFETY: three words are enough for each size.
            unsafe { write(room.as_mut_ptr().cast::<Middle>(), &value) }.unwrap();
            assert_eq!(room, wanted);
        }
    }

    #[test]
    fn arrays_have_one_stride() {
        let mut room = [words(24, 1, &[2, 0]), words(24, 3, &[4, 0]), words(16, 5, &[6, 0])];
        let mut flat = room.concat();
        // SAFETY: three elements of three words.
        let array = unsafe { Array::new(flat.as_mut_ptr().cast::<Middle>(), 3) }.unwrap();
        assert_eq!(array.get(1).unwrap(), Middle { size: 24, a: 3, b: 4 });
        assert_eq!(array.get(2).unwrap_err().code, KVRAIL_E_ARGUMENT);
        array.put(2, &Middle { size: 0, a: 8, b: 9 });
        room[2] = words(24, 8, &[9, 0]);
        assert_eq!(flat, room.concat());
    }
}
