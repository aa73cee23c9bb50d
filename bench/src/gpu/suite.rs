//! The cases and arms of GPU memory for the one runner; what each arm moved is read back right
//! behind it, before another moves the same blocks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum as _;
use kvrail_cufile::{Compat, CuFile};
use kvrail_device::DirectIo;
use kvrail_gpu::cuda::{self, Copies, Cuda};
use kvrail_gpu::{Choice, CopyRoute, Gpu, MechanismChoice};
use kvrail_units::Size;

use super::aims::aims;
use super::arms::{GpuArm, Sets};
use super::cache::KvCache;
use super::case::{BlockShape, CASES, GpuCase, KV_BLOCKS};
use super::kvrail::BlockMemory;
use super::meter::{Meter, Moved};
use super::pollers::GpuPollers;
use super::volume::Volume;
use super::{copies, cufile, host_pool, kvrail};
use crate::cpu::{CpuMeter, MachineMeter, Meters};
use crate::drive::{Sweep, Tally};
use crate::environment::{ArmMode, Environment};
use crate::error::BenchError;
use crate::options::BenchOptions;
use crate::plan::CaseInfo;
use crate::port::Direction;
use crate::report::GpuFound;
use crate::runner::{BenchmarkResults, Outcome, Rounds, Runner, Suite};

/// How blocks are verified, for the report.
const METHOD: &str = "behind every run of an arm that moves blocks between the file and the GPU, \
    every KV block it moved is read back and compared in full: reads with the pattern of the \
    file, writes with what the file holds; arms without a device move no known bytes, by the \
    same copies";

/// Arms that are compared.
const PAIRS: [(GpuArm, GpuArm); 12] = [
    (GpuArm::Staged, GpuArm::Host),
    (GpuArm::Auto, GpuArm::Staged),
    (GpuArm::Staged, GpuArm::Batch),
    (GpuArm::Staged, GpuArm::Calls),
    (GpuArm::Staged, GpuArm::Buffered),
    (GpuArm::Staged, GpuArm::Blocking),
    (GpuArm::Staged, GpuArm::Kernels),
    (GpuArm::Direct, GpuArm::Batch),
    (GpuArm::Null, GpuArm::Plain),
    (GpuArm::NullKernels, GpuArm::Plain),
    (GpuArm::Mover, GpuArm::Plain),
    (GpuArm::MoverKernels, GpuArm::Plain),
];

/// The GPU.
pub(super) struct GpuUnderTest<'a> {
    pub(super) gpu: &'a dyn Gpu,
    /// The same where it is CUDA, and with kernels alone.
    pub(super) cuda: Option<(&'a Cuda, &'a Cuda)>,
}

/// Runs the benchmark.
///
/// # Errors
/// One sentence on what is missing where there is no GPU; anything that goes wrong on the way.
pub(crate) fn run(options: &BenchOptions, index: u32) -> Result<BenchmarkResults> {
    let kernels = Cuda::open(index)?.with_copies(Copies::Kernels);
    let (cuda, missing) = match Cuda::open(index)?.with_direct(Compat::Allowed) {
        Ok(cuda) => (cuda, None),
        Err(error) => (Cuda::open(index)?, Some(format!("cuFile: {error}"))),
    };
    let mut results =
        measure(options, &GpuUnderTest { gpu: &cuda, cuda: Some((&cuda, &kernels)) })?;
    results.report.notes.splice(0..0, missing);
    Ok(results)
}

/// Measures all of it.
///
/// # Errors
/// Whatever breaks on the way. Wrong bytes are no error here: the report counts them.
pub(super) fn measure(
    options: &BenchOptions,
    devices: &GpuUnderTest<'_>,
) -> Result<BenchmarkResults> {
    let cases = cases(options).map_err(BenchError::Options)?;
    let mut runner = Runner::new(METHOD, options.progress, CpuMeter::new(&[])?);
    let mut volume = Volume::new(options)?;
    runner.sweep(&volume.raw, volume.uuid, &mut volume.map, Sweep::Fill)?;
    let (sets, notes) = start(devices, &volume)?;
    let meters = Meters { processes: CpuMeter::new(&[])?, machine: MachineMeter::find() };
    let time = options.timed();
    let mut gpu = GpuSuite { devices, volume, sets, meters, time, cases, caches: None };
    runner.run(&mut gpu, options.rounds)?;
    let environment = gpu.environment(options);
    let mut results = runner.results(&gpu, environment)?;
    gpu.sets.pollers.into_iter().try_for_each(|(_, pollers)| pollers.stop())?;
    let report = &mut results.report;
    (report.gpu, report.notes) = (Some(devices.found()), notes);
    report.aims = aims(report);
    Ok(results)
}

impl GpuUnderTest<'_> {
    fn found(&self) -> GpuFound {
        let it = self.gpu.identity();
        let cufile = self.cuda.and_then(|(cuda, _)| cuda.cufile());
        GpuFound {
            name: it.name.clone(),
            uuid: it.uuid.to_string(),
            pci_address: it.pci_address.clone(),
            memory_bytes: it.memory_bytes,
            cuda: self.cuda.and_then(|_| cuda::driver_version().ok()),
            cufile: cufile.and_then(|library| library.version().ok()),
        }
    }
}

/// The cases that the options leave.
fn cases(options: &BenchOptions) -> Result<Vec<GpuCase>> {
    options.check_times()?;
    let chosen = |case: &GpuCase| {
        (options.op.is_empty() || options.op.contains(&case.op()))
            && (options.block.is_empty() || options.block.contains(&case.block_bytes))
    };
    let left: Vec<GpuCase> = CASES.into_iter().filter(chosen).collect();
    let all = || CASES.map(|case| case.info().name).join(", ");
    ensure!(!left.is_empty(), "--op and --block leave none of the cases: {}", all());
    for case in &left {
        let least = u64::from(case.block_bytes) * u64::from(KV_BLOCKS);
        ensure!(
            options.volume_size >= least,
            "{} needs {least} so that no two KV blocks meet in the file; give --volume-size \
             {least} or more",
            case.info().name,
            least = Size::new(least)
        );
    }
    Ok(left)
}

/// Starts the pollers of every arm that this machine has.
fn start(devices: &GpuUnderTest<'_>, volume: &Volume) -> Result<(Sets, Vec<String>)> {
    let (gpu, mut sets, mut notes) = (devices.gpu, Sets::default(), Vec::new());
    if gpu.direct().is_some()
        && let Err(error) = open_direct(devices, volume, &mut sets)
    {
        notes.push(format!("direct I/O: {error:#}"));
    }
    if let Some((_, kernels)) = devices.cuda {
        let files = GpuPollers::on_files(kernels, volume, MechanismChoice::Staged)?;
        sets.pollers.push((GpuArm::Kernels, files));
        sets.pollers.push((GpuArm::NullKernels, GpuPollers::on_nothing(kernels, volume)?));
    }
    for (arm, wanted) in
        [(GpuArm::Staged, MechanismChoice::Staged), (GpuArm::Auto, MechanismChoice::Auto)]
    {
        sets.pollers.push((arm, GpuPollers::on_files(gpu, volume, wanted)?));
    }
    sets.pollers.push((GpuArm::Null, GpuPollers::on_nothing(gpu, volume)?));
    Ok((sets, notes))
}

fn open_direct(devices: &GpuUnderTest<'_>, volume: &Volume, sets: &mut Sets) -> Result<()> {
    let library = devices.cuda.and_then(|(cuda, _)| cuda.cufile());
    let register = |library: &Arc<CuFile>| {
        let files = volume.open(DirectIo::Required)?.into_iter();
        files.map(|file| Ok(library.register_file(file)?)).collect::<Result<_>>()
    };
    let called = library.map(register).transpose()?.unwrap_or_default();
    let pollers = GpuPollers::on_files(devices.gpu, volume, MechanismChoice::AllowCompat)?;
    let registered = |choice: &Choice| match choice.route {
        CopyRoute::Direct(file) => Ok(file),
        CopyRoute::Staged => bail!("{}", choice.reason),
    };
    sets.batched = pollers.choices.iter().map(registered).collect::<Result<_>>()?;
    sets.called = called;
    sets.pollers.push((GpuArm::Direct, pollers));
    Ok(())
}

/// Everything while it runs.
struct GpuSuite<'a> {
    devices: &'a GpuUnderTest<'a>,
    volume: Volume,
    sets: Sets,
    meters: Meters,
    time: Duration,
    cases: Vec<GpuCase>,
    /// GPU memory of the case that runs.
    caches: Option<Caches>,
}

struct Caches {
    cache: KvCache,
    /// With contiguous blocks, for plain copies, where those of the case are not.
    contiguous: Option<KvCache>,
}

impl Suite for GpuSuite<'_> {
    fn cases(&self) -> Vec<CaseInfo> {
        self.cases.iter().map(GpuCase::info).collect()
    }

    fn arms(&self) -> Vec<String> {
        GpuArm::value_variants().iter().map(|arm| arm.name()).collect()
    }

    fn pairs(&self) -> Vec<(String, String)> {
        PAIRS.map(|(arm, against)| (arm.name(), against.name())).to_vec()
    }

    fn prepare(&mut self, case: usize, _: &Rounds) -> Result<Option<f64>> {
        let (gpu, pattern, case) = (self.devices.gpu, &self.volume.pattern, self.cases[case]);
        let cache = KvCache::new(gpu, case, pattern)?;
        let contiguous = match case.shape {
            BlockShape::Contiguous => None,
            _ => {
                Some(KvCache::new(gpu, GpuCase { shape: BlockShape::Contiguous, ..case }, pattern)?)
            }
        };
        for (_, pollers) in &self.sets.pollers {
            pollers.attach(cache.region.clone())?;
        }
        self.caches = Some(Caches { cache, contiguous });
        Ok(None)
    }

    fn run(&mut self, case: usize, arm: usize, _: u32) -> Result<Option<Outcome>> {
        let (case, arm) = (self.cases[case], GpuArm::value_variants()[arm]);
        let moved = if arm.is_in(case) { self.moved(case, arm)? } else { None };
        let Some(Moved { mut sample, last }) = moved else { return Ok(None) };
        if arm.is_verified() {
            let caches = self.caches.as_ref().context("a case is prepared")?;
            caches.cache.verify(&mut self.volume, &last, &mut sample.tally)?;
        }
        Ok(Some(sample.into()))
    }

    fn finish(&mut self, case: usize) -> Result<Tally> {
        for (_, pollers) in &self.sets.pollers {
            pollers.detach()?;
        }
        self.caches = None;
        if self.cases[case].direction == Direction::Write {
            self.volume.restore()?;
        }
        Ok(Tally::default())
    }
}

impl GpuSuite<'_> {
    /// Runs an arm; nothing where this machine has no place for it.
    fn moved(&mut self, case: GpuCase, arm: GpuArm) -> Result<Option<Moved>> {
        let Self { devices, volume, sets, meters, time, caches, .. } = self;
        let Caches { cache, contiguous } = caches.as_ref().context("a case is prepared")?;
        let meter = Meter::new(meters, *time);
        if let Some(pollers) = sets.of(arm) {
            let memory = if arm == GpuArm::Host { BlockMemory::Host } else { BlockMemory::Gpu };
            return kvrail::run(pollers, case, memory, meter).map(Some);
        }
        let moved = match (arm, devices.cuda) {
            (GpuArm::Mover, _) => copies::mover(devices.gpu, &cache.region, case, meter),
            (GpuArm::Batch, _) if !sets.batched.is_empty() => {
                let gpu = devices.gpu.direct().context("cuFile is open")?;
                cufile::batches(gpu, (volume, &sets.batched), cache, case, meter)
            }
            (GpuArm::Calls, Some((cuda, _))) if !sets.called.is_empty() => {
                let library = cuda.cufile().context("cuFile is open")?;
                cufile::calls(library, (volume, &sets.called), cache, case, meter)
            }
            (GpuArm::MoverKernels, Some((_, kernels))) => {
                copies::mover(kernels, &cache.region, case, meter)
            }
            (GpuArm::Plain, Some((cuda, _))) => {
                let region = &contiguous.as_ref().unwrap_or(cache).region;
                copies::plain(cuda, region, case, meter)
            }
            (GpuArm::Buffered | GpuArm::Blocking, Some((cuda, _))) => {
                let buffered = arm == GpuArm::Buffered;
                let io = if buffered { DirectIo::Off } else { DirectIo::Required };
                host_pool::run(cuda, (volume, &volume.open(io)?), cache, case, meter)
            }
            _ => return Ok(None),
        };
        moved.map(Some)
    }

    fn environment(&self, options: &BenchOptions) -> Environment {
        let mode = |arm: &GpuArm| {
            let pollers = self.sets.pollers.iter().find(|(known, _)| known == arm);
            let how = pollers.map(|(_, pollers)| pollers.words());
            let ((arm, mode), reason) = (arm.words(), how.unwrap_or("called directly".to_owned()));
            ArmMode { arm, mode, reason, client_cores: Vec::new() }
        };
        Environment {
            volume_bytes: self.volume.bytes(),
            pattern_bytes: self.volume.bytes(),
            io: "direct".to_owned(),
            modes: GpuArm::value_variants().iter().map(mode).collect(),
            rounds: options.rounds,
            seconds: options.seconds,
            ..Environment::probe(&self.volume.members)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvrail_gpu::{DirectPath, EmulatedGpu};

    use super::{Direction, GpuCase, GpuUnderTest, KvCache, Volume, measure};
    use crate::drive::Tally;
    use crate::gpu::case::SMALL;
    use crate::options::BenchOptions;
    use crate::report::{Report, table};

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchOptions,
    }

    fn options(line: &str, rounds: u32) -> BenchOptions {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let mut options = <Cli as clap::Parser>::try_parse_from(words).unwrap().bench;
        options.seconds = Duration::from_millis(5).as_secs_f64();
        options.rounds = rounds;
        options
    }

    fn run(options: &BenchOptions, files: usize, file_bytes: u64) -> anyhow::Result<Report> {
        let gpu = EmulatedGpu::new(0, DirectPath::Compat);
        let folder = tempfile::tempdir()?;
        let mut options = options.clone();
        options.dirs = vec![folder.path().to_owned(); files];
        options.volume_size = file_bytes;
        let results = measure(&options, &GpuUnderTest { gpu: &gpu, cuda: None })?;
        assert!(!results.log.is_empty());
        Ok(results.report)
    }

    #[test]
    fn every_arm_that_needs_no_cuda_runs_on_the_stand_in_and_is_verified() {
        let report = run(&options("", 1), 1, 128 << 20).unwrap();
        assert_eq!((report.verification.failures, &report.verification.first), (0, &Vec::new()));
        assert!(report.verification.verified_bytes > 0);
        let arms = |block_bytes, layout: &str| {
            let of = report.runs.iter().filter(|run| {
                (run.case.block_bytes, run.case.layout.as_deref(), run.case.depth)
                    == (block_bytes, Some(layout), if block_bytes == 4096 { 1 } else { 16 })
                    && run.case.op == "read"
            });
            of.map(|run| run.arm.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(arms(4096, "contiguous"), ["host", "staged", "auto", "direct", "cufile:batch"]);
        let large = ["host", "staged", "auto", "direct", "cufile:batch", "null"];
        assert_eq!(arms(2 << 20, "layers"), large);
        assert!(report.runs.iter().all(|run| run.operations > 0 && run.bytes_per_second > 0.0));
        assert!(report.runs.iter().any(|run| run.arm == "copies:mover" && run.case.depth == 1));
        assert!(!report.aims.is_empty() && report.comparisons.iter().any(|run| run.arm == "auto"));
        let mode = report.environment.modes.iter().find(|run| run.arm == "auto").unwrap();
        assert!(mode.reason.contains("staged"), "{}", mode.reason);
        let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(back.runs.len(), report.runs.len());
        let text = table(&report);
        assert!(
            text.contains("| read 4KiB contiguous d1 ") && text.contains("staged / host"),
            "{text}"
        );
    }

    #[test]
    fn a_block_that_was_not_moved_is_found_either_way() {
        let gpu = EmulatedGpu::new(0, DirectPath::Compat);
        let mut options = options("", 1);
        let folder = tempfile::tempdir().unwrap();
        (options.dirs, options.volume_size) = (vec![folder.path().to_owned()], 1 << 20);
        let mut volume = Volume::new(&options).unwrap();
        volume.restore().unwrap();
        for direction in [Direction::Read, Direction::Write] {
            let case = GpuCase { direction, ..SMALL };
            let cache = KvCache::new(&gpu, case, &volume.pattern).unwrap();
            let mut tally = Tally::default();
            cache.verify(&mut volume, &[None, Some(3)], &mut tally).unwrap();
            assert_eq!((tally.verified_bytes, tally.verify_failures > 0), (4096, true));
            assert!(tally.failures[0].starts_with("KV block 1"), "{:?}", tally.failures);
        }
    }

    #[test]
    fn a_volume_of_several_files_is_verified_as_well() {
        let options = options("--block 1MiB", 1);
        let report = run(&options, 3, 130 << 20).unwrap();
        assert_eq!((report.verification.failures, &report.verification.first), (0, &Vec::new()));
        assert_eq!(report.environment.volume_bytes, 132 << 20, "whole stripes on each of three");
        assert_eq!(report.environment.storage.len(), 3);
    }

    #[test]
    fn options_choose_cases_and_a_choice_of_none_is_said() {
        let report = run(&options("--op read --block 4KiB", 3), 1, 1 << 20).unwrap();
        assert!(report.runs.iter().all(|run| run.case.block_bytes == 4096));
        let error = run(&options("--op mixed", 1), 1, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("read 4KiB contiguous d1"), "{error}");
        let error = run(&options("--block 2MiB", 1), 1, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("--volume-size 128MiB"), "{error}");
    }
}
