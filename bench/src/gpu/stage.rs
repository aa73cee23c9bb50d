//! The run: every case, every arm, in turns; what each moved is read back right behind it, before
//! another moves the same blocks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use kvrail_cufile::CuFile;
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{Choice, Gpu, MechanismChoice, Route};
use kvrail_units::Size;

use super::aims::aims;
use super::arms::{Arm, Direct, Round, Sets};
use super::case::{CASES, Case, KV_BLOCKS, Shape, Way};
use super::ground::{Cache, Ground};
use super::meter::Meter;
use super::pollers::Pollers;
use super::schema::{GpuFound, GpuRatio, GpuReport, GpuRun};
use crate::cpu::{CpuMeter, MachineMeter, Meters};
use crate::environment::Environment;
use crate::options::BenchOptions;
use crate::report::{ArmMode, SCHEMA, Verification};
use crate::statistics::Figures;

/// How blocks are verified, for the report.
const METHOD: &str = "behind every run of an arm that moves blocks between the file and the GPU, \
    every KV block it moved is read back and compared in full: reads with what was written into \
    the file, writes with what the file holds; arms without a device move no known bytes, by the \
    same copies";

/// Arms that are compared.
const PAIRS: [(Arm, Arm); 12] = [
    (Arm::Staged, Arm::Host),
    (Arm::Auto, Arm::Staged),
    (Arm::Staged, Arm::Batch),
    (Arm::Staged, Arm::Calls),
    (Arm::Staged, Arm::Buffered),
    (Arm::Staged, Arm::Blocking),
    (Arm::Staged, Arm::Kernels),
    (Arm::Direct, Arm::Batch),
    (Arm::Null, Arm::Plain),
    (Arm::NullKernels, Arm::Plain),
    (Arm::Mover, Arm::Plain),
    (Arm::MoverKernels, Arm::Plain),
];

/// What is measured.
pub(super) struct Bed<'a> {
    pub(super) gpu: &'a dyn Gpu,
    /// The same where it is CUDA, and with kernels alone.
    pub(super) cuda: Option<(&'a Cuda, &'a Cuda)>,
    pub(super) ground: Ground,
    pub(super) found: GpuFound,
    pub(super) notes: Vec<String>,
}

/// Rounds of an arm.
type Rounds = Vec<(Arm, Vec<Figures>)>;

/// Everything while it runs.
struct Stage<'a> {
    bed: Bed<'a>,
    sets: Sets,
    meters: Meters,
    time: Duration,
    rounds: u32,
    bar: ProgressBar,
    verification: Verification,
}

/// The cases that the options leave.
fn cases(options: &BenchOptions) -> Result<Vec<Case>> {
    let chosen = |case: &Case| {
        (options.op.is_empty() || options.op.contains(&case.op()))
            && (options.block.is_empty() || options.block.contains(&case.block_bytes))
    };
    let left: Vec<Case> = CASES.into_iter().filter(chosen).collect();
    let all = || CASES.map(|case| case.name()).join(", ");
    ensure!(!left.is_empty(), "--op and --block leave none of the cases: {}", all());
    Ok(left)
}

/// Measures all of it.
///
/// # Errors
/// Whatever breaks on the way. Wrong bytes are no error here: the report counts them.
pub(super) fn measure(options: &BenchOptions, bed: Bed<'_>) -> Result<GpuReport> {
    let cases = cases(options)?;
    for case in &cases {
        let least = u64::from(case.block_bytes) * u64::from(KV_BLOCKS);
        ensure!(
            bed.ground.bytes() >= least,
            "{} needs {} so that no two KV blocks meet in the file; give --volume-size {} or more",
            case.name(),
            Size::new(least),
            Size::new(least)
        );
    }
    let (sets, mut notes) = start(&bed)?;
    let meters = Meters { processes: CpuMeter::new(&[])?, machine: MachineMeter::find() };
    // Hidden by the library when standard error is no terminal.
    let bar = ProgressBar::new(cases.len() as u64 * u64::from(options.rounds));
    let template = "{elapsed_precise} [{bar:30}] {percent:>3}% {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    bar.set_style(style.progress_chars("=> "));
    let verification = Verification { method: METHOD.to_owned(), ..Verification::default() };
    let (time, rounds) = (options.timed(), options.rounds);
    let mut stage = Stage { bed, sets, meters, time, rounds, bar, verification };
    let (mut runs, mut ratios) = (Vec::new(), Vec::new());
    for case in cases {
        let measured = stage.case(case).with_context(|| case.name())?;
        let of = |arm: Arm| measured.iter().find(|(known, _)| *known == arm);
        runs.extend(measured.iter().map(|(arm, all)| GpuRun::of(case, arm.name(), all)));
        for (this, other) in PAIRS {
            let (Some((_, these)), Some((_, others))) = (of(this), of(other)) else { continue };
            ratios.push(GpuRatio::of(case, (this.name(), other.name()), (these, others)));
        }
    }
    stage.bar.finish_and_clear();
    let environment = stage.environment(options);
    stage.sets.stop()?;
    notes.splice(0..0, stage.bed.notes);
    let mut report = GpuReport {
        schema: SCHEMA,
        environment,
        gpu: stage.bed.found,
        runs,
        ratios,
        aims: Vec::new(),
        verification: stage.verification,
        notes,
    };
    report.aims = aims(&report);
    Ok(report)
}

/// Starts the pollers of every arm that this machine has.
fn start(bed: &Bed<'_>) -> Result<(Sets, Vec<String>)> {
    let (gpu, ground) = (bed.gpu, &bed.ground);
    let mut notes = Vec::new();
    let mut direct = None;
    if gpu.direct().is_some() {
        match open_direct(bed) {
            Ok(found) => direct = Some(found),
            Err(error) => notes.push(format!("direct I/O: {error:#}")),
        }
    }
    let kernels = match bed.cuda {
        None => None,
        Some((_, by_kernels)) => {
            let files = Pollers::on_files(by_kernels, ground, MechanismChoice::Staged)?;
            Some((files, Pollers::on_nothing(by_kernels, ground.bytes())?))
        }
    };
    let staged = Pollers::on_files(gpu, ground, MechanismChoice::Staged)?;
    let auto = Pollers::on_files(gpu, ground, MechanismChoice::Auto)?;
    let null = Pollers::on_nothing(gpu, ground.bytes())?;
    Ok((Sets { staged, auto, null, kernels, direct }, notes))
}

fn open_direct(bed: &Bed<'_>) -> Result<Direct> {
    let library = bed.cuda.and_then(|(cuda, _)| cuda.cufile());
    let register = |library: &Arc<CuFile>| {
        let files = bed.ground.direct()?.into_iter();
        files.map(|file| Ok(library.register_file(file)?)).collect::<Result<_>>()
    };
    let plain = library.map(register).transpose()?.unwrap_or_default();
    let pollers = Pollers::on_files(bed.gpu, &bed.ground, MechanismChoice::AllowCompat)?;
    let registered = |choice: &Choice| match choice.route {
        Route::Direct(file) => Ok(file),
        Route::Staged => bail!("{}", choice.reason),
    };
    let files = pollers.choices.iter().map(registered).collect::<Result<_>>()?;
    Ok(Direct { pollers, files, plain })
}

impl Stage<'_> {
    /// All rounds of a case.
    fn case(&mut self, case: Case) -> Result<Rounds> {
        let cache = Cache::new(self.bed.gpu, case)?;
        let plain = match case.shape {
            Shape::Contiguous => None,
            _ => Some(Cache::new(self.bed.gpu, Case { shape: Shape::Contiguous, ..case })?),
        };
        for (_, pollers) in self.sets.each() {
            pollers.attach(cache.region.clone())?;
        }
        let mut measured: Rounds = Vec::new();
        for number in 0..self.rounds {
            self.bar.set_message(case.name());
            let mut arms = Arm::ALL;
            if number % 2 == 1 {
                arms.reverse();
            }
            for arm in arms {
                let contiguous = plain.as_ref().unwrap_or(&cache);
                let found = self.one(case, arm, (&cache, contiguous));
                let Some(figures) = found.with_context(|| arm.name())? else { continue };
                match measured.iter_mut().find(|(known, _)| *known == arm) {
                    Some((_, all)) => all.push(figures),
                    None => measured.push((arm, vec![figures])),
                }
            }
            self.bar.inc(1);
        }
        for (_, pollers) in self.sets.each() {
            pollers.detach()?;
        }
        if case.way == Way::Write {
            self.bed.ground.fill()?;
        }
        Ok(measured)
    }

    /// One arm once.
    fn one(
        &mut self,
        case: Case,
        arm: Arm,
        (cache, contiguous): (&Cache, &Cache),
    ) -> Result<Option<Figures>> {
        let Self { bed, sets, meters, time, verification, .. } = self;
        let Bed { gpu, cuda, ground, .. } = bed;
        let round = Round { gpu: *gpu, cuda: *cuda, ground, cache, contiguous, case };
        let Some(counts) = round.run(arm, sets, Meter::new(meters, *time))? else {
            return Ok(None);
        };
        let mut wrong = 0;
        if arm.is_verified() {
            let verified = cache.verify(ground, &counts.last)?;
            let words =
                verified.first.map(|words| format!("{}, {}: {words}", case.name(), arm.name()));
            verification.first.extend(words);
            verification.verified_bytes += verified.bytes;
            verification.failures += verified.wrong_blocks;
            wrong = verified.wrong_blocks;
        }
        Ok(Some(counts.figures(wrong)))
    }

    fn environment(&self, options: &BenchOptions) -> Environment {
        let ground = &self.bed.ground;
        let used = self.sets.each();
        let mode = |arm: Arm| {
            let mode = match used.iter().find(|(known, _)| *known == arm) {
                Some((_, pollers)) => pollers.words(),
                None => "called directly".to_owned(),
            };
            let arm = arm.name().to_owned();
            (arm, mode)
        };
        let modes = Arm::ALL.into_iter().map(|it| {
            let (arm, mode) = mode(it);
            ArmMode { arm, mode: it.about().to_owned(), reason: mode, client_cores: Vec::new() }
        });
        Environment {
            volume_bytes: ground.bytes(),
            pattern_bytes: ground.bytes(),
            io: "direct".to_owned(),
            modes: modes.collect(),
            rounds: self.rounds,
            seconds: options.seconds,
            ..Environment::probe(&ground.paths)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvrail_gpu::{DirectPath, Gpu, StandIn};

    use super::{Bed, GpuFound, Ground, measure};
    use crate::gpu::schema::GpuReport;
    use crate::gpu::table::table;
    use crate::options::BenchOptions;

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

    fn run(options: &BenchOptions, files: usize, file_bytes: u64) -> anyhow::Result<GpuReport> {
        let gpu = StandIn::new(0, DirectPath::Compat);
        let folder = tempfile::tempdir()?;
        let ground = Ground::new(&vec![folder.path().to_owned(); files], file_bytes)?;
        let found = GpuFound::of(gpu.identity(), None, None);
        measure(options, Bed { gpu: &gpu, cuda: None, ground, found, notes: Vec::new() })
    }

    #[test]
    fn every_arm_that_needs_no_cuda_runs_on_the_stand_in_and_is_verified() {
        let report = run(&options("", 1), 1, 128 << 20).unwrap();
        assert_eq!((report.verification.failures, &report.verification.first), (0, &Vec::new()));
        assert!(report.verification.verified_bytes > 0);
        let arms = |block_bytes, layout: &str| {
            let of = report.runs.iter().filter(|it| {
                (it.run.block_bytes, it.layout.as_str(), it.run.depth)
                    == (block_bytes, layout, if block_bytes == 4096 { 1 } else { 16 })
                    && it.run.op == "read"
            });
            of.map(|it| it.run.arm.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(arms(4096, "contiguous"), ["host", "staged", "auto", "direct", "cufile:batch"]);
        let large = ["host", "staged", "auto", "direct", "cufile:batch", "null"];
        assert_eq!(arms(2 << 20, "layers"), large);
        assert!(
            report.runs.iter().all(|it| it.run.operations > 0 && it.run.bytes_per_second > 0.0)
        );
        assert!(report.runs.iter().any(|it| it.run.arm == "copies:mover" && it.run.depth == 1));
        assert!(!report.aims.is_empty() && report.ratios.iter().any(|it| it.arm == "auto"));
        let mode = report.environment.modes.iter().find(|it| it.arm == "auto").unwrap();
        assert!(mode.reason.contains("staged"), "{}", mode.reason);
        let back: GpuReport =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(back.runs.len(), report.runs.len());
        let text = table(&report);
        assert!(
            text.contains("| read 4KiB contiguous d1 ") && text.contains("staged / host"),
            "{text}"
        );
    }

    #[test]
    fn a_volume_of_several_files_is_verified_as_well() {
        let options = options("--block 1MiB", 1);
        let report = run(&options, 3, 130 << 20).unwrap();
        assert_eq!((report.verification.failures, &report.verification.first), (0, &Vec::new()));
        assert_eq!(report.environment.volume_bytes, 126 << 20, "whole stripes on each of three");
        assert_eq!(report.environment.storage.len(), 3);
    }

    #[test]
    fn options_choose_cases_and_a_choice_of_none_is_said() {
        let report = run(&options("--op read --block 4KiB", 3), 1, 1 << 20).unwrap();
        assert!(report.runs.iter().all(|it| it.run.block_bytes == 4096));
        let error = run(&options("--op mixed", 1), 1, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("read 4KiB contiguous d1"), "{error}");
        let error = run(&options("--block 2MiB", 1), 1, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("--volume-size 128MiB"), "{error}");
    }
}
