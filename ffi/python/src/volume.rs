//! Volumes as Python sees them, with the synchronous calls.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arena::Arena;
use crate::batch::{RangeMoves, RangeWork};
use crate::completion::Completion;
use crate::gpu::GpuRegion;
use crate::queue::{Queue, Target};
use crate::volume_object::Volume;

#[pymethods]
impl Volume {
    #[getter]
    fn name(&self) -> &str {
        self.volume.name()
    }

    #[getter]
    fn uuid(&self) -> String {
        self.volume.uuid().to_string()
    }

    #[getter]
    fn capacity(&self) -> u64 {
        self.volume.capacity()
    }

    #[getter]
    fn stripe_bytes(&self) -> u64 {
        self.volume.geometry().stripe_bytes
    }

    #[getter]
    fn logical_block(&self) -> u32 {
        self.volume.geometry().logical_block
    }

    #[getter]
    fn memory_alignment(&self) -> u32 {
        self.volume.geometry().memory_alignment
    }

    #[getter]
    fn members(&self) -> u16 {
        self.volume.geometry().members
    }

    #[pyo3(signature = (arena, offset, length, position=0, **options))]
    fn read(
        &self,
        arena: &Bound<'_, Arena>,
        offset: u64,
        length: u64,
        position: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        let moves = RangeMoves::one(arena.get().get()?, offset, length, position);
        self.run_one(arena.py(), RangeWork::Read(moves), options)
    }

    #[pyo3(signature = (arena, offset, length, position=0, **options))]
    fn write(
        &self,
        arena: &Bound<'_, Arena>,
        offset: u64,
        length: u64,
        position: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        let moves = RangeMoves::one(arena.get().get()?, offset, length, position);
        self.run_one(arena.py(), RangeWork::Write(moves), options)
    }

    #[pyo3(signature = (arena, offsets, positions, length, **options))]
    fn read_many(
        &self,
        arena: &Bound<'_, Arena>,
        offsets: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let moves = RangeMoves::many(arena.get().get()?, offsets, positions, length)?;
        self.run(arena.py(), RangeWork::Read(moves), options)
    }

    #[pyo3(signature = (arena, offsets, positions, length, **options))]
    fn write_many(
        &self,
        arena: &Bound<'_, Arena>,
        offsets: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let moves = RangeMoves::many(arena.get().get()?, offsets, positions, length)?;
        self.run(arena.py(), RangeWork::Write(moves), options)
    }

    #[pyo3(signature = (region, offsets, blocks, *, part=None, **options))]
    fn read_blocks(
        &self,
        region: &Bound<'_, GpuRegion>,
        offsets: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        part: Option<(u64, u64)>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let moves = RangeMoves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.run(region.py(), RangeWork::Read(moves), options)
    }

    #[pyo3(signature = (region, offsets, blocks, *, part=None, **options))]
    fn write_blocks(
        &self,
        region: &Bound<'_, GpuRegion>,
        offsets: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        part: Option<(u64, u64)>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let moves = RangeMoves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.run(region.py(), RangeWork::Write(moves), options)
    }

    #[pyo3(signature = (**options))]
    fn flush(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Completion> {
        self.run_one(py, RangeWork::Flush, options)
    }

    #[pyo3(signature = (offset, length, **options))]
    fn discard(
        &self,
        py: Python<'_>,
        offset: u64,
        length: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        self.run_one(py, RangeWork::Discard { offset, length }, options)
    }

    #[pyo3(signature = (depth=128))]
    fn open_queue(&self, py: Python<'_>, depth: usize) -> PyResult<Queue> {
        Queue::open(py, &self.session, Target::Volume(self.volume.clone()), depth)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Volume {:?} of {} bytes>", self.volume.name(), self.volume.capacity())
    }
}
