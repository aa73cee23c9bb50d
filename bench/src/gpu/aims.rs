//! The speed that kvrail aims for with GPU memory, against what was measured.

use super::schema::GpuReport;
use crate::report::{Aim, Bound};

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// The aims that this report says something about.
pub(super) fn aims(report: &GpuReport) -> Vec<Aim> {
    use Bound::{AtLeast, AtMost};
    let small = ("read", 4 * KIB, "contiguous");
    let one = ("read", MIB, "contiguous");
    let two = ("read", 2 * MIB, "contiguous");
    let paged = ("read", 2 * MIB, "paged");
    let layers = ("read", 2 * MIB, "layers");
    let copied = ("write", 2 * MIB, "paged");
    let rate = |case, arms| report.ratio(case, arms, |it| it.throughput);
    let p50 = |case, arms| report.ratio(case, arms, |it| it.p50);
    let cpu = |arms| report.ratio(one, arms, |it| it.cpu.or(it.process_cpu));
    let spread = |case| Some(report.rate(case, "staged")? / report.rate(two, "staged")?);
    let all = [
        Aim::new("staged / host, 1 MiB, GB/s", AtLeast, 0.97, rate(one, ("staged", "host"))),
        Aim::new("staged / host, 2 MiB, GB/s", AtLeast, 0.97, rate(two, ("staged", "host"))),
        Aim::new("staged, paged / contiguous, GB/s", AtLeast, 0.95, spread(paged)),
        Aim::new("staged, 32 tensors / contiguous, GB/s", AtLeast, 0.95, spread(layers)),
        Aim::new(
            "staged / cuFile batch, 1 MiB, GB/s",
            AtLeast,
            1.0,
            rate(one, ("staged", "cufile:batch")),
        ),
        Aim::new(
            "staged / cuFile batch, paged, GB/s",
            AtLeast,
            3.0,
            rate(paged, ("staged", "cufile:batch")),
        ),
        Aim::new(
            "4 KiB read, depth 1, p50, staged / cuFileRead",
            AtMost,
            0.9,
            p50(small, ("staged", "cufile:calls")),
        ),
        Aim::new(
            "CPU per GiB, staged / 16 threads buffered",
            AtMost,
            0.5,
            cpu(("staged", "threads:buffered")),
        ),
        Aim::new(
            "CPU per GiB, staged / 16 threads O_DIRECT",
            AtMost,
            1.0,
            cpu(("staged", "threads:direct")),
        ),
        Aim::new(
            "paged 2 MiB out / plain 2 MiB out, p50",
            AtMost,
            1.15,
            p50(copied, ("copies:mover", "copies:plain")),
        ),
        Aim::new(
            "staged without a device / plain copies, GB/s",
            AtLeast,
            0.9,
            rate(two, ("null", "copies:plain")),
        ),
    ];
    all.into_iter().flatten().collect()
}
