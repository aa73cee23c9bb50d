//! Another program under a restriction: few CPUs, little lockable memory, another user, no
//! io_uring, no pages gathered. Sets it on this process and becomes that program.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// `io_uring_setup`, the same number on every architecture.
const IO_URING_SETUP: i64 = 425;

/// Takes `one-cpu`, `memlock=BYTES`, `files=COUNT`, `file-size=BYTES`, `user=ID`,
/// `no-io-uring=ERRNO`, `no-landlock=ERRNO`, `no-flock=ERRNO`, `no-eventfd=ERRNO`,
/// `no-collapse=ERRNO`, then `--` and the program.
pub(crate) fn run(words: &[String]) {
    let at = words.iter().position(|word| word == "--").expect("-- before the program");
    let (restrictions, program) = (&words[..at], &words[at + 1..]);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    for restriction in restrictions {
        let (name, value) = restriction.split_once('=').unwrap_or((restriction, ""));
        let number = || value.parse::<u64>().expect("a number");
        match name {
            "one-cpu" => one_cpu(),
            "memlock" => limit(Resource::Memlock, number()),
            "files" => limit(Resource::Nofile, number()),
            "file-size" => limit(Resource::Fsize, number()),
            "user" => {
                let id = u32::try_from(number()).expect("an id");
                command.uid(id).gid(id);
            }
            "no-io-uring" => forbid(IO_URING_SETUP, Vec::new(), number()),
            "no-landlock" => forbid(libc::SYS_landlock_create_ruleset, Vec::new(), number()),
            "no-flock" => forbid(libc::SYS_flock, Vec::new(), number()),
            "no-eventfd" => forbid(libc::SYS_eventfd2, Vec::new(), number()),
            "no-collapse" => forbid(libc::SYS_madvise, vec![collapse()], number()),
            other => panic!("no restriction {other}"),
        }
    }
    panic!("{}: {}", program[0], command.exec());
}

fn one_cpu() {
    let all = sched_getaffinity(None).expect("our own mask");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("we run somewhere");
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).expect("a subset of our own mask");
}

fn limit(resource: Resource, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, limit).expect("a lower limit");
}

/// The advice that kernels before 6.1 lack.
fn collapse() -> SeccompRule {
    let advice = u64::try_from(libc::MADV_COLLAPSE).expect("a small number");
    let is = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, advice);
    is.and_then(|is| SeccompRule::new(vec![is])).expect("a rule of one condition")
}

/// Forbids a system call, or those of its calls that match a rule, as containers do.
fn forbid(call: i64, calls: Vec<SeccompRule>, errno: u64) {
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a known architecture");
    let rules = BTreeMap::from([(call, calls)]);
    let refuse = SeccompAction::Errno(u32::try_from(errno).expect("an errno"));
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch);
    let program: BpfProgram = filter.and_then(BpfProgram::try_from).expect("a filter of one rule");
    apply_filter(&program).expect("a process may restrict itself");
}
