//! Pinning and naming threads on this machine, and the refusals.
#![cfg(not(miri))] // system calls

use std::fs;
use std::thread;

use kvrail_memory::{
    AffinityError, AllowedCpu, CpuList, Topology, current_affinity, name_current_thread,
    pin_current_thread, shorten_slices,
};

#[test]
fn a_thread_is_pinned_to_each_allowed_cpu_in_turn() {
    let topology = Topology::host().unwrap();
    thread::spawn(move || {
        for cpu in topology.allowed().iter() {
            pin_current_thread(AllowedCpu::of(cpu, &topology).unwrap()).unwrap();
            assert_eq!(current_affinity().unwrap(), CpuList::from_iter([cpu]));
        }
        let again = Topology::host().unwrap();
        assert_eq!(again.allowed(), topology.allowed(), "a pinned thread still sees them all");
    })
    .join()
    .unwrap();
}

#[test]
fn cpus_that_are_not_there_are_refused() {
    let topology = Topology::host().unwrap();
    for cpu in [1024, u32::MAX] {
        let refused = AllowedCpu::of(cpu, &topology).unwrap_err();
        assert!(matches!(refused, AffinityError::BeyondMask { max: 1024, .. }), "{refused}");
    }
    let offline = (0..1024).find(|cpu| !topology.online().contains(*cpu)).unwrap();
    let refused = AllowedCpu::of(offline, &topology).unwrap_err();
    assert!(matches!(refused, AffinityError::Offline { .. }), "{refused}");
    assert!(refused.to_string().contains(&topology.allowed().to_string()), "{refused}");
}

/// A made-up machine where the process was started on CPU 1 only (taskset).
#[test]
fn a_cpu_outside_the_start_mask_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let cpus = root.path().join("sys/devices/system/cpu");
    fs::create_dir_all(&cpus).unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::write(cpus.join("online"), "0-3\n").unwrap();
    fs::write(root.path().join("proc/self/status"), "Cpus_allowed_list:\t1\n").unwrap();
    fs::write(root.path().join("proc/meminfo"), "MemAvailable: 1 kB\n").unwrap();
    let topology = Topology::read(root.path()).unwrap();
    let refused = AllowedCpu::of(0, &topology).unwrap_err();
    assert!(matches!(refused, AffinityError::NotAllowed { cpu: 0, .. }), "{refused}");
    assert!(refused.to_string().contains("choose one of 1,"), "{refused}");
}

#[test]
fn a_thread_shows_its_name_whole_or_not_at_all() {
    thread::spawn(|| {
        name_current_thread("kv-poller-12345").unwrap();
        let shown = fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(shown.trim(), "kv-poller-12345");
        for name in ["", "kv-poller-123456", "zero\0inside"] {
            let refused = name_current_thread(name).unwrap_err();
            assert_eq!(refused, AffinityError::Name { name: name.into() });
        }
        assert_eq!(fs::read_to_string("/proc/thread-self/comm").unwrap(), shown);
    })
    .join()
    .unwrap();
}

/// A line of the scheduler's file on the calling thread, if there is one.
fn scheduled(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/sched").ok()?;
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[test]
fn slices_get_short_and_nothing_else_changes() {
    thread::spawn(|| {
        let before = scheduled("se.slice");
        let prio = scheduled("prio");
        shorten_slices().unwrap();
        let after = scheduled("se.slice");
        assert_eq!(scheduled("prio"), prio);
        // Kernels before 6.12 take no notice.
        assert!(after == before || after == Some(100_000), "{before:?} to {after:?}");
        if before.is_some() && is_kernel_since((6, 12)) {
            assert_eq!(after, Some(100_000));
        }
    })
    .join()
    .unwrap();
}

fn is_kernel_since(least: (u32, u32)) -> bool {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = text
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}
