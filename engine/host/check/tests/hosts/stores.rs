//! Endurance of drives, its meaning for write budgets, and the memory of stores.

use kvrail_check::{ConfiguredMember, Finding, HostPurpose, Live, MemberBudget, Verdict};
use kvrail_nvme::{Drive, Endurance, LbaFormat, Namespace, NamespaceFacts, SmartLog, Unseen};

use crate::find;
use crate::host::Host;

const TERABYTE: u64 = 1_000_000_000_000;

/// A drive of 7.68 TB that bears 14 PB, and has 2 PB behind it.
fn drive() -> Drive {
    let format = |index, block_bytes, relative_performance| LbaFormat {
        index,
        block_bytes,
        metadata_bytes: 0,
        relative_performance,
    };
    Drive {
        namespace: Namespace {
            name: "nvme0n1".into(),
            nsid: 1,
            wwids: Vec::new(),
            block_node: None,
            char_node: None,
            controllers: Vec::new(),
        },
        size_bytes: 7_680_000_000_000,
        queue: None,
        links: Vec::new(),
        controller: None,
        formats: Some(NamespaceFacts {
            format: format(0, 4096, 0),
            formats: vec![format(0, 4096, 0), format(1, 512, 2)],
            protection: None,
            protections: Vec::new(),
            metadata_in_data: false,
            atomic_blocks_power_fail: None,
            endurance_group: Some(1),
        }),
        health: Some(SmartLog {
            warnings: Vec::new(),
            celsius: 40,
            spare_percent: 100,
            spare_threshold_percent: 10,
            used_percent: 14,
            read_bytes: 0,
            written_bytes: 2000 * u128::from(TERABYTE),
            power_cycles: 1,
            power_on_hours: 1,
            unsafe_shutdowns: 0,
            media_errors: 0,
        }),
        endurance: Some(Endurance {
            life_bytes: 14_016 * u128::from(TERABYTE),
            written_bytes: 2000 * u128::from(TERABYTE),
            media_written_bytes: None,
        }),
        unseen: Vec::new(),
    }
}

fn member(budget: MemberBudget) -> ConfiguredMember {
    let tables = Ok((1 << 30, "1.1 GB of index".to_owned()));
    let (name, drive) = ("pci:1 of kv".into(), Some("nvme0n1".into()));
    ConfiguredMember { name, drive, budget, tables, pinned_bytes: 55_300_000 }
}

/// A check's finding for this drive and member.
fn says(check: &str, drive: Drive, member: ConfiguredMember) -> Finding {
    let host = Host::good();
    host.put("proc/meminfo", "MemAvailable: 1024 kB\nMemTotal:       16777216 kB");
    let live = Live { drives: vec![drive], stores: vec![member], ..Live::default() };
    let report = host.report(Some(HostPurpose::Store), live);
    let found = find(&report, check);
    assert_eq!(found.len(), 1, "{check}: {found:?}");
    found[0].clone()
}

fn expect(found: &Finding, verdict: Verdict, words: &str) {
    assert_eq!(found.verdict, verdict, "{found:?}");
    assert!(found.seen.contains(words), "{words}: {found:?}");
    let explained = found.cost.is_some() && found.remedy.is_some();
    assert_eq!(explained, verdict > Verdict::Unseen, "{found:?}");
}

#[test]
fn what_a_drive_bears_and_has_left_is_told() {
    let of = |harm: fn(&mut Drive)| {
        let mut drive = drive();
        harm(&mut drive);
        says("store-endurance", drive, member(MemberBudget::Rated))
    };
    let fine = of(|_| {});
    expect(&fine, Verdict::Ok, "14 % of its life used, 2.0 PB written; bears 14.0 PB (1.00 drive");
    expect(&fine, Verdict::Ok, "12.0 PB of them left");
    expect(&of(|endurance| endurance.endurance = None), Verdict::Ok, "reports no endurance");
    let worn = |percent: u8| {
        let mut drive = drive();
        drive.health.as_mut().unwrap().used_percent = percent;
        says("store-endurance", drive, member(MemberBudget::Rated)).verdict
    };
    assert_eq!([79, 80, 99, 100, 255].map(worn), {
        use Verdict::{Failure, Ok, Warning};
        [Ok, Warning, Warning, Failure, Failure]
    });
    let silent = of(|endurance| {
        endurance.health = None;
        let what = "identity, formats and health";
        endurance.unseen.push(Unseen { what, why: "run as root".into() });
    });
    expect(&silent, Verdict::Unseen, "run as root");
}

#[test]
fn a_drive_without_spare_blocks_fails() {
    let of = |harm: fn(&mut SmartLog)| {
        let mut drive = drive();
        harm(drive.health.as_mut().unwrap());
        says("store-spare", drive, member(MemberBudget::Rated))
    };
    expect(&of(|_| {}), Verdict::Ok, "100 % of its spare blocks left, it warns below 10 %");
    expect(&of(|endurance| endurance.spare_percent = 9), Verdict::Failure, "9 %");
    expect(
        &of(|endurance| endurance.warnings.push("media read-only")),
        Verdict::Failure,
        "media read-only",
    );
    expect(&of(|endurance| endurance.media_errors = 3), Verdict::Warning, "3 media errors");
}

#[test]
fn a_budget_is_held_against_what_is_left() {
    let of = |budget| says("store-budget", drive(), member(budget));
    expect(&of(MemberBudget::Rated), Verdict::Ok, "auto: 1.00 drive writes a day, 12.0 PB");
    expect(&of(MemberBudget::Unlimited), Verdict::Warning, "unlimited");
    let daily = |terabytes| of(MemberBudget::BytesPerDay(terabytes * TERABYTE));
    expect(&daily(6), Verdict::Ok, "6.0 TB a day: the 12.0 PB that nvme0n1 has left last 5.4");
    expect(&daily(8), Verdict::Warning, "last 4.1 years");
    let silent =
        |budget| says("store-budget", Drive { endurance: None, ..drive() }, member(budget));
    expect(&silent(MemberBudget::Rated), Verdict::Warning, "reports no endurance");
    let named = MemberBudget::BytesPerDay(3 * TERABYTE);
    expect(&silent(named), Verdict::Ok, "3.0 TB a day; nvme0n1 reports no endurance");
    let file = |budget| ConfiguredMember { drive: None, ..member(budget) };
    let of = |budget| says("store-budget", drive(), file(budget));
    expect(&of(MemberBudget::Rated), Verdict::Ok, "unlimited");
    expect(&of(named), Verdict::Ok, "3.0 TB a day");
    let lost = ConfiguredMember { drive: Some("nvme9n1".into()), ..member(named) };
    expect(&says("store-budget", drive(), lost), Verdict::Unseen, "nvme9n1");
}

#[test]
fn the_memory_of_indexes_is_held_against_the_machines() {
    let of = |gib: u64| {
        let tables = Ok((gib << 30, "words".to_owned()));
        says("store-memory", drive(), ConfiguredMember { tables, ..member(MemberBudget::Rated) })
    };
    expect(&of(4), Verdict::Ok, "words; all stores take 4.2 GB of 17.1 GB");
    expect(&of(5), Verdict::Warning, "5.3 GB");
    expect(&of(17), Verdict::Failure, "18.2 GB");
    let tables = Err("no label".to_owned());
    let torn = ConfiguredMember { tables, ..member(MemberBudget::Rated) };
    expect(&says("store-memory", drive(), torn), Verdict::Unseen, "no label");
}

#[test]
fn a_faster_format_is_named_with_how_to_get_it() {
    let of = |drive| says("store-format", drive, member(MemberBudget::Rated));
    expect(&of(drive()), Verdict::Ok, "4096 bytes");
    let mut small = drive();
    let facts = small.formats.as_mut().unwrap();
    facts.format = facts.formats[1];
    let found = of(small);
    expect(&found, Verdict::Warning, "512 bytes; it calls 4096 bytes faster");
    assert!(found.remedy.unwrap().contains("/dev/nvme0n1 --lbaf=0"));
}
