//! Keyed stores: what drives bear, what a write budget means for that, memory, formats.

use kvrail_nvme::Drive;

use crate::machine::Machine;
use crate::member::{ConfiguredMember, MemberBudget};
use crate::outcome::Outcome;

/// Percent of its rated life from which on a drive should be replaced soon.
const WORN_PERCENT: u8 = 80;
/// Years that a drive should live at the budget.
const YEARS_MIN: u128 = 5;
const DAYS_A_YEAR: u128 = 365;

pub(crate) fn endurance(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    Ok(each_drive(machine, |drive| {
        let Some(health) = &drive.health else { return unseen(drive, "health") };
        let written = amount(health.written_bytes);
        let mut seen = format!("{} % of its life used, {written} written", health.used_percent);
        match &drive.endurance {
            Some(it) => {
                let daily = daily(it.drive_writes_a_day(drive.size_bytes));
                let (life, left) = (amount(it.life_bytes), amount(it.left_bytes()));
                seen += &format!("; bears {life} ({daily} for five years), {left} of them left");
            }
            None => seen += "; it reports no endurance",
        }
        match health.used_percent {
            100.. => Outcome::failure(seen),
            WORN_PERCENT.. => Outcome::warning(seen),
            _ => Outcome::ok(seen),
        }
    }))
}

pub(crate) fn spare(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    Ok(each_drive(machine, |drive| {
        let Some(health) = &drive.health else { return unseen(drive, "health") };
        let (left, least) = (health.spare_percent, health.spare_threshold_percent);
        let mut seen = format!("{left} % of its spare blocks left, it warns below {least} %");
        health.warnings.iter().for_each(|warning| seen += &format!("; {warning}"));
        if left < least || !health.warnings.is_empty() {
            Outcome::failure(seen)
        } else if health.media_errors > 0 {
            Outcome::warning(format!("{seen}; {} media errors", health.media_errors))
        } else {
            Outcome::ok(seen)
        }
    }))
}

/// A format with larger blocks that the drive itself calls faster.
pub(crate) fn format(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    Ok(each_drive(machine, |drive| {
        let Some(facts) = &drive.formats else { return unseen(drive, "formats") };
        let now = facts.format;
        let better = facts.formats.iter().filter(|format| {
            let faster = format.relative_performance < now.relative_performance;
            faster && format.metadata_bytes == 0 && format.block_bytes > now.block_bytes
        });
        let seen = format!("logical blocks of {} bytes", now.block_bytes);
        match better.min_by_key(|format| format.relative_performance) {
            None => Outcome::ok(seen),
            Some(best) => {
                let name = &drive.namespace.name;
                let (index, bytes) = (best.index, best.block_bytes);
                Outcome::warning(format!("{seen}; it calls {bytes} bytes faster")).with_remedy(
                    format!(
                        "nvme format /dev/{name} --lbaf={index} erases it; then make the store \
                         again"
                    ),
                )
            }
        }
    }))
}

pub(crate) fn budget(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if machine.live.stores.is_empty() {
        return Ok(vec![Outcome::ok("no store is configured or named")]);
    }
    let one = |member: &ConfiguredMember| budget_of(machine, member).of(&member.name);
    Ok(machine.live.stores.iter().map(one).collect())
}

fn budget_of(machine: &Machine, member: &ConfiguredMember) -> Outcome {
    let Some(name) = &member.drive else {
        return Outcome::ok(match member.budget {
            MemberBudget::BytesPerDay(bytes) => format!("{} a day", amount(bytes.into())),
            _ => "unlimited: no NVMe drive reports its endurance".to_owned(),
        });
    };
    let drive = machine.live.drives.iter().find(|drive| drive.namespace.name == *name);
    let Some(drive) = drive else { return Outcome::unseen(format!("{name} is not seen")) };
    match (member.budget, &drive.endurance) {
        (MemberBudget::Rated, None) => {
            Outcome::warning(format!("auto, and {name} reports no endurance: unlimited"))
        }
        (MemberBudget::Unlimited, _) => Outcome::warning("unlimited".to_owned()),
        (MemberBudget::Rated, Some(it)) => {
            let daily = daily(it.drive_writes_a_day(drive.size_bytes));
            Outcome::ok(format!("auto: {daily}, {} are left of it", amount(it.left_bytes())))
        }
        (MemberBudget::BytesPerDay(bytes), None) => {
            let bytes = amount(bytes.into());
            Outcome::ok(format!("{bytes} a day; {name} reports no endurance"))
        }
        (MemberBudget::BytesPerDay(bytes), Some(it)) => {
            let days = it.left_bytes() / u128::from(bytes.max(1));
            let (bytes, left) = (amount(bytes.into()), amount(it.left_bytes()));
            let years = (days / DAYS_A_YEAR, days % DAYS_A_YEAR * 10 / DAYS_A_YEAR);
            let seen = format!(
                "{bytes} a day: the {left} that {name} has left last {}.{} years",
                years.0, years.1
            );
            if years.0 < YEARS_MIN { Outcome::warning(seen) } else { Outcome::ok(seen) }
        }
    }
}

/// Memory of all stores, against the memory of the machine.
pub(crate) fn memory(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let total = machine.field("proc/meminfo", "MemTotal")?;
    let kib = total.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    let total = kib.map(|kib| kib << 10);
    let known = machine.live.stores.iter().filter_map(|store| store.tables.as_ref().ok());
    let all: u64 = known.map(|(bytes, _)| bytes).sum();
    let one = |member: &ConfiguredMember| {
        let outcome = match (&member.tables, total) {
            (Err(why), _) => Outcome::unseen(why),
            (Ok((_, words)), None) => Outcome::unseen(format!("{words}; no MemTotal")),
            (Ok((_, words)), Some(total)) => {
                let (all_words, has) = (amount(all.into()), amount(total.into()));
                let seen = format!("{words}; all stores take {all_words} of {has}");
                match all {
                    _ if all > total => Outcome::failure(seen),
                    _ if all > total / 4 => Outcome::warning(seen),
                    _ => Outcome::ok(seen),
                }
            }
        };
        outcome.of(&member.name)
    };
    Ok(machine.live.stores.iter().map(one).collect())
}

fn each_drive(machine: &Machine, look: impl Fn(&Drive) -> Outcome) -> Vec<Outcome> {
    let drives = machine.live.drives.iter();
    drives.map(|drive| look(drive).of(&drive.namespace.name)).collect()
}

fn unseen(drive: &Drive, what: &str) -> Outcome {
    let why = drive.unseen.iter().find(|value| value.what.contains(what));
    Outcome::unseen(why.map_or("the drive does not report it", |value| value.why.as_str()))
}

fn daily(thousandths: u32) -> String {
    format!("{}.{:02} drive writes a day", thousandths / 1000, thousandths % 1000 / 10)
}

/// Bytes as drives' data sheets count them.
fn amount(bytes: u128) -> String {
    let units = [(10_u128.pow(15), "PB"), (10_u128.pow(12), "TB"), (10_u128.pow(9), "GB")];
    let fitting = units.iter().find(|(unit, _)| bytes >= *unit);
    let (unit, name) = fitting.copied().unwrap_or((10_u128.pow(6), "MB"));
    let tenths = bytes.saturating_mul(10) / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}
