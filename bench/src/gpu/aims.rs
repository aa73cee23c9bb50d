//! The speed that kvrail aims for with GPU memory, against what was measured.

use super::case::{COPIED, GpuCase, LAYERS, ONE, PAGED, SMALL, TWO};
use crate::report::{Aim, Bound, Report};
use crate::statistics::{Relation, Spread};

/// The aims that this report covers.
pub(super) fn aims(report: &Report) -> Vec<Aim> {
    use Bound::{AtLeast, AtMost};
    let of = |case: GpuCase, arms, figure: fn(&Relation) -> Option<Spread>| {
        let compared = report.compared(&case.info(), arms)?;
        figure(&compared.relation).map(|spread| spread.median)
    };
    let rate = |case, arms| of(case, arms, |ratio| ratio.throughput);
    let p50 = |case, arms| of(case, arms, |ratio| ratio.p50);
    let cpu = |arms| of(ONE, arms, |ratio| ratio.cpu.or(ratio.process_cpu));
    let staged = |case: GpuCase| {
        let info = case.info();
        let run = report.runs.iter().find(|run| run.arm == "staged" && run.case == info);
        run.map(|run| run.bytes_per_second)
    };
    let spread = |case| Some(staged(case)? / staged(TWO)?);
    let (host, batch) = (("staged", "host"), ("staged", "cufile:batch"));
    let (buffered, blocking) = (("staged", "threads:buffered"), ("staged", "threads:direct"));
    let (calls, plain) = (("staged", "cufile:calls"), ("null", "copies:plain"));
    let copied = p50(COPIED, ("copies:mover", "copies:plain"));
    let all = [
        Aim::new("staged / host, 1 MiB, GB/s", AtLeast, 0.97, rate(ONE, host)),
        Aim::new("staged / host, 2 MiB, GB/s", AtLeast, 0.97, rate(TWO, host)),
        Aim::new("staged, paged / contiguous, GB/s", AtLeast, 0.95, spread(PAGED)),
        Aim::new("staged, 32 tensors / contiguous, GB/s", AtLeast, 0.95, spread(LAYERS)),
        Aim::new("staged / cuFile batch, 1 MiB, GB/s", AtLeast, 1.0, rate(ONE, batch)),
        Aim::new("staged / cuFile batch, paged, GB/s", AtLeast, 3.0, rate(PAGED, batch)),
        Aim::new("4 KiB read, depth 1, p50, staged / cuFileRead", AtMost, 0.9, p50(SMALL, calls)),
        Aim::new("CPU per GiB, staged / 16 threads buffered", AtMost, 0.5, cpu(buffered)),
        Aim::new("CPU per GiB, staged / 16 threads O_DIRECT", AtMost, 1.0, cpu(blocking)),
        Aim::new("paged 2 MiB out / plain 2 MiB out, p50", AtMost, 1.15, copied),
        Aim::new("staged without a device / plain copies, GB/s", AtLeast, 0.9, rate(TWO, plain)),
    ];
    all.into_iter().flatten().collect()
}
