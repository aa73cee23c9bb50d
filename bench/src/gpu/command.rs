//! The run: every case, every arm, in turns; then what was moved is read back.

use std::env::temp_dir;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use kvrail_cufile::{Compat, File};
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{FileIndex, Gpu, MechanismChoice};

use super::case::{CASES, Case, Run, Way};
use super::ground::{Cache, Ground};
use super::kvrail::Memory;
use super::pollers::Pollers;
use super::report::{GpuReport, GpuRow};
use super::{cufile, host_pool, kvrail};
use crate::command::{Format, Verdict};
use crate::options::BenchOptions;

/// Rounds of which the median counts.
const ROUNDS: usize = 3;

/// The arm that moves no byte to a GPU.
const CEILING: &str = "host memory (ceiling)";

/// Everything the arms need.
#[derive(Debug)]
struct Stage {
    cuda: Cuda,
    ground: Ground,
    staged: Pollers,
    direct: Option<Direct>,
    time: Duration,
}

/// cuFile, where it can be used.
#[derive(Debug)]
struct Direct {
    pollers: Pollers,
    file: FileIndex,
    plain: File,
}

/// Runs the benchmark.
///
/// # Errors
/// One sentence on what is missing where there is no GPU; anything that goes wrong on the way,
/// bytes that came back wrong included.
pub(crate) fn run(
    options: &BenchOptions,
    index: u32,
    format: Format,
    out: &mut dyn Write,
) -> Result<Verdict> {
    let plain = Cuda::open(index)?;
    let mut notes = Vec::new();
    let (cuda, usable) = match Cuda::open(index)?.with_direct(Compat::Allowed) {
        Ok(cuda) => (cuda, true),
        Err(error) => {
            notes.push(format!("without cuFile: {error}"));
            (plain, false)
        }
    };
    let directory = options.dir.clone().unwrap_or_else(temp_dir);
    let ground = Ground::new(&directory, options.volume_size)?;
    let staged = Pollers::start(&cuda, &ground, MechanismChoice::Staged)?;
    let mut direct = None;
    if usable {
        match open_direct(&cuda, &ground) {
            Ok(found) => direct = Some(found),
            Err(error) => notes.push(format!("without direct I/O: {error:#}")),
        }
    }
    let time = Duration::from_secs_f64(options.seconds);
    let mut stage = Stage { cuda, ground, staged, direct, time };
    let mut report = GpuReport {
        gpu: format!("{} {}", stage.cuda.identity().name, stage.cuda.identity().uuid),
        device: stage.staged.description().name.clone(),
        mechanisms: stage.mechanisms(),
        rows: Vec::new(),
        verified_bytes: 0,
        notes,
    };
    for case in CASES {
        stage.case(case, &mut report).with_context(|| case.name.to_owned())?;
    }
    stage.staged.stop()?;
    if let Some(direct) = stage.direct {
        direct.pollers.stop()?;
    }
    match format {
        Format::Table => write!(out, "{}", report.table()),
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?),
    }
    .context("printing the results")?;
    Ok(Verdict::Clean)
}

fn open_direct(cuda: &Cuda, ground: &Ground) -> Result<Direct> {
    let library = cuda.cufile().context("cuFile is open")?;
    let plain = library.register_file(ground.direct()?)?;
    let pollers = Pollers::start(cuda, ground, MechanismChoice::AllowCompat)?;
    let kvrail_gpu::Route::Direct(file) = pollers.choice.route else {
        anyhow::bail!("{}", pollers.choice.reason);
    };
    Ok(Direct { pollers, file, plain })
}

impl Stage {
    fn mechanisms(&self) -> Vec<String> {
        let pollers = std::iter::once(&self.staged);
        let pollers = pollers.chain(self.direct.as_ref().map(|direct| &direct.pollers));
        pollers
            .map(|pollers| {
                let about = pollers.description();
                format!("{} {} {}: {}", about.kind, about.mode, about.io, about.features.join(", "))
            })
            .collect()
    }

    /// All arms of a case, in turns.
    fn case(&mut self, case: Case, report: &mut GpuReport) -> Result<()> {
        let cache = Cache::new(&self.cuda, case)?;
        self.staged.attach(cache.region.clone())?;
        if let Some(direct) = &self.direct {
            direct.pollers.attach(cache.region.clone())?;
        }
        let mut arms: Vec<(&str, Vec<Run>)> = Vec::new();
        for _ in 0..ROUNDS {
            for (name, run) in self.round(case, &cache)? {
                report.verified_bytes += run.verified_bytes;
                match arms.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, runs)) => runs.push(run),
                    None => arms.push((name, vec![run])),
                }
            }
        }
        for (name, runs) in arms {
            report.rows.push(GpuRow::of(case.name, name, runs));
        }
        self.staged.detach()?;
        if let Some(direct) = &self.direct {
            direct.pollers.detach()?;
        }
        if case.way == Way::Write {
            self.ground.restore()?;
        }
        Ok(())
    }

    /// Every arm once. Each leaves its last blocks in place, so a later arm must move them again:
    /// arms are verified right after they ran.
    fn round(&mut self, case: Case, cache: &Cache) -> Result<Vec<(&'static str, Run)>> {
        let span = (self.ground.bytes, self.time);
        let mut runs = Vec::new();
        let mut keep = |name, run: Result<Run>, ground: &Ground| -> Result<()> {
            let mut run = run.with_context(|| String::from(name))?;
            if name != CEILING {
                let verified = cache.verify(ground, &run);
                run.verified_bytes = verified.with_context(|| String::from(name))?;
            }
            runs.push((name, run));
            Ok(())
        };
        let staged = &mut self.staged;
        let host = kvrail::run(staged, case, Memory::Host, span);
        keep(CEILING, host, &self.ground)?;
        keep("kvrail staged", kvrail::run(staged, case, Memory::Gpu, span), &self.ground)?;
        if let (Some(direct), Some(gpu)) = (&mut self.direct, self.cuda.direct()) {
            let pollers = &mut direct.pollers;
            let run = kvrail::run(pollers, case, Memory::Gpu, span);
            keep("kvrail direct (compat)", run, &self.ground)?;
            let run = cufile::batches(gpu, direct.file, cache, case, span);
            keep("cuFile batch (compat)", run, &self.ground)?;
            let library = self.cuda.cufile().context("cuFile is open")?;
            let run = cufile::calls(library, &direct.plain, cache, case, span);
            keep("cuFile calls (compat)", run, &self.ground)?;
        }
        let (buffered, direct) = (self.ground.buffered()?, self.ground.direct()?);
        let run = host_pool::run(&self.cuda, &buffered, cache, case, span);
        keep("16 threads, buffered", run, &self.ground)?;
        let run = host_pool::run(&self.cuda, &direct, cache, case, span);
        keep("16 threads, O_DIRECT", run, &self.ground)?;
        Ok(runs)
    }
}
