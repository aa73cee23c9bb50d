//! `kvrail bench --gpu`: opens what there is, measures, prints.

use std::env::temp_dir;
use std::io::Write;

use anyhow::Result;
use kvrail_cufile::Compat;
use kvrail_gpu::cuda::{self, Copies, Cuda};
use kvrail_gpu::{Gpu, GpuIdentity};

use super::ground::Ground;
use super::schema::GpuFound;
use super::stage::{Bed, measure};
use super::table::table;
use crate::options::BenchOptions;
use crate::output::{Format, Verdict, print, write_file};

/// Runs the benchmark.
///
/// # Errors
/// One sentence on what is missing where there is no GPU; anything that goes wrong on the way.
pub(crate) fn run(
    options: &BenchOptions,
    index: u32,
    format: Format,
    out: &mut dyn Write,
) -> Result<Verdict> {
    let kernels = Cuda::open(index)?.with_copies(Copies::Kernels);
    let mut notes = Vec::new();
    let cuda = match Cuda::open(index)?.with_direct(Compat::Allowed) {
        Ok(cuda) => cuda,
        Err(error) => {
            notes.push(format!("cuFile: {error}"));
            Cuda::open(index)?
        }
    };
    let cufile = cuda.cufile().and_then(|library| library.version().ok());
    let found = GpuFound::of(cuda.identity(), cuda::driver_version().ok(), cufile);
    let ground = Ground::new(&options.dirs_or(&temp_dir()), options.volume_size)?;
    let both = Some((&cuda, &kernels));
    let report = measure(options, Bed { gpu: &cuda, cuda: both, ground, found, notes })?;
    let json = serde_json::to_string_pretty(&report)?;
    let printed = match format {
        Format::Table => print(out, &table(&report)),
        Format::Json => print(out, &format!("{json}\n")),
    };
    if let Some(path) = &options.json {
        write_file(path, |out| Ok(writeln!(out, "{json}")?))?;
    }
    printed?;
    Ok(if report.verification.failures > 0 { Verdict::WrongData } else { Verdict::Clean })
}

impl GpuFound {
    pub(super) fn of(it: &GpuIdentity, cuda: Option<u32>, cufile: Option<u32>) -> Self {
        Self {
            name: it.name.clone(),
            uuid: it.uuid.to_string(),
            pci_address: it.pci_address.clone(),
            memory_bytes: it.memory_bytes,
            cuda,
            cufile,
        }
    }
}
