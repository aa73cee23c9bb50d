//! GPU memory that cannot be attached: one clear error each, and the session goes on.

use std::os::fd::{AsFd, OwnedFd};

use kvrail_gpu::{EmulatedGpu, Fragment, GpuHandle};
use kvrail_memory::{PageSize, Region};
use kvrail_protocol::{
    ControlReply, ControlRequest, GpuFragment, GpuMemory, GpuRegionInfo, LegacyHandle,
    SidecarMessage,
};
use kvrail_ring::Status;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::gpu_rig::{BLOCKS, Cache, Engine, Station, Way};
use crate::hostile::Rude;
use crate::sidecar::Sidecar;

/// A valid request, to be spoiled.
fn good() -> (GpuRegionInfo, Vec<OwnedFd>) {
    let cache = Cache::new();
    let mut fds = Vec::new();
    let mut said = |handle| match handle {
        GpuHandle::Vmm { fd, bytes } => {
            fds.push(fd);
            GpuMemory::Descriptor { bytes }
        }
        GpuHandle::LegacyIpc { .. } => panic!("the stand-in exports files"),
    };
    let memories = cache.memories.iter().map(|memory| said(memory.export().unwrap())).collect();
    let gpu = EmulatedGpu::uuid(0).to_string();
    let fragment = |it: Fragment| {
        let Fragment { memory, base, stride, bytes } = it;
        GpuFragment { memory, base, stride, bytes }
    };
    let fragments = Cache::fragments().into_iter().map(fragment).collect();
    (GpuRegionInfo { gpu, blocks: BLOCKS, memories, fragments }, fds)
}

fn ask(rude: &mut Rude, (info, fds): (GpuRegionInfo, Vec<OwnedFd>)) -> ControlReply {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    match rude.ask(ControlRequest::AttachGpu(info), &fds) {
        SidecarMessage::Reply { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

fn attached(answer: &ControlReply) -> u32 {
    match answer {
        ControlReply::GpuRegion { region, .. } => *region,
        other => panic!("{other:?}"),
    }
}

type Spoil = fn(&mut GpuRegionInfo, &mut Vec<OwnedFd>);

fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

fn legacy(text: &str) -> GpuMemory {
    let mut handle = [0; 64];
    handle[..text.len()].copy_from_slice(text.as_bytes());
    GpuMemory::Legacy { handle: LegacyHandle(handle), offset: 0, bytes: 1 << 20 }
}

/// A mistake, and the words of its error.
const MISTAKES: &[(&str, Spoil, Status, &[&str])] = &[
    (
        "another GPU",
        |info, _| info.gpu = EmulatedGpu::uuid(7).to_string(),
        Status::Invalid,
        &["does not serve GPU GPU-5d5d5d5d-5d5d-5d5d-5d5d-5d5d00000007", "gpu.devices"],
    ),
    ("no UUID", |info, _| info.gpu = "0".into(), Status::Invalid, &["`0`", "nvidia-smi -L"]),
    (
        "a handle missing",
        |_, fds| drop(fds.pop()),
        Status::Invalid,
        &["4 memories are descriptors, but 3 descriptors came"],
    ),
    ("all handles missing", |_, fds| fds.clear(), Status::Invalid, &["but 0 descriptors came"]),
    ("a handle too many", |_, fds| fds.push(file(1)), Status::Invalid, &["but 5 descriptors"]),
    (
        "another kind of descriptor",
        |_, fds| fds[1] = rustix::pipe::pipe().unwrap().0,
        Status::Invalid,
        &["memory 1:"],
    ),
    (
        "a device",
        |_, fds| fds[2] = std::fs::File::open("/dev/zero").unwrap().into(),
        Status::Invalid,
        &["memory 2:"],
    ),
    (
        "a file that may shrink",
        |_, fds| fds[0] = file(128 << 10),
        Status::Invalid,
        &["memory 0:", "seal"],
    ),
    (
        "a size beyond the allocation",
        |info, _| info.memories[3] = GpuMemory::Descriptor { bytes: 1 << 30 },
        Status::Invalid,
        &["memory 3:", "1073741824 bytes"],
    ),
    (
        "a size beyond all numbers",
        |info, _| info.memories[3] = GpuMemory::Descriptor { bytes: u64::MAX },
        Status::Quota,
        &["limits.gpu_bytes_per_session"],
    ),
    (
        "a handle without an owner",
        |info, fds| {
            info.memories[0] = legacy("999999999/3");
            drop(fds.remove(0));
        },
        Status::Invalid,
        &["memory 0:", "living process"],
    ),
    (
        "no memories",
        |info, fds| {
            info.memories.clear();
            fds.clear();
        },
        Status::Invalid,
        &["memories, not 0"],
    ),
    ("no fragments", |info, _| info.fragments.clear(), Status::Invalid, &["fragments, not 0"]),
    (
        "too many fragments",
        |info, _| info.fragments = info.fragments.repeat(200),
        Status::Invalid,
        &["1 to 1024 fragments, not 1600"],
    ),
    ("no blocks", |info, _| info.blocks = 0, Status::Invalid, &["blocks, not 0"]),
    (
        "blocks beyond the memory",
        |info, _| info.blocks = u32::MAX,
        Status::Invalid,
        &["fragment 0", "ends at byte", "memory 0"],
    ),
    (
        "a misaligned base",
        |info, _| info.fragments[5].base += 8,
        Status::Invalid,
        &["fragment 5", "base", "multiple of 16"],
    ),
    (
        "a misaligned stride",
        |info, _| info.fragments[1].stride += 1,
        Status::Invalid,
        &["fragment 1", "stride", "multiple of 16"],
    ),
    (
        "a fragment too small",
        |info, _| info.fragments[2].bytes = 256,
        Status::Invalid,
        &["fragment 2", "at least 512"],
    ),
    (
        "a ragged block",
        |info, _| info.fragments[2].bytes -= 16,
        Status::Invalid,
        &["multiple of 512"],
    ),
    ("an overlap", |info, _| info.fragments[1].base = 512, Status::Invalid, &["overlap"]),
    (
        "strides that differ",
        |info, _| {
            info.fragments[1].base = 1 << 14;
            info.fragments[1].stride = 1 << 12;
            info.fragments[1].bytes = 1 << 12;
        },
        Status::Invalid,
        &["fragments 0 and 1", "memory 0"],
    ),
    (
        "a memory that is none",
        |info, _| info.fragments[7].memory = 4,
        Status::Invalid,
        &["memory 4, which has 0"],
    ),
];

#[test]
fn each_mistake_has_one_clear_error_and_the_session_goes_on() {
    let station = Station::start(Way::Staged);
    let mut rude = Rude::attach(&station.sidecar);
    for (what, spoil, status, words) in MISTAKES {
        let (mut info, mut fds) = good();
        spoil(&mut info, &mut fds);
        match ask(&mut rude, (info, fds)) {
            ControlReply::Error { status: said, message } => {
                assert_eq!(said, *status, "{what}: {message}");
                for word in *words {
                    assert!(message.contains(word), "{what}: no {word:?} in {message}");
                }
            }
            other => panic!("{what}: {other:?}"),
        }
        let report = station.attach().status().unwrap();
        assert_eq!((report.gpus[0].regions, report.gpus[0].region_bytes), (0, 0), "{what}");
    }
    // The very same session may do it right.
    let region = attached(&ask(&mut rude, good()));
    let detached = rude.ask(ControlRequest::DetachArena { region }, &[]);
    assert!(matches!(
        detached,
        SidecarMessage::Reply { answer: ControlReply::Detached { .. }, .. }
    ));
}

#[test]
fn limits_name_their_key_and_come_back() {
    let station = Station::start_with(Way::Staged, |config| {
        config.policy.limits.gpu_regions_per_session = 2;
        config.policy.limits.gpu_bytes_per_session = 5 << 19;
    });
    let mut rude = Rude::attach(&station.sidecar);
    let denied = |answer: ControlReply| match answer {
        ControlReply::Error { status: Status::Quota, message } => message,
        other => panic!("{other:?}"),
    };
    let first = attached(&ask(&mut rude, good()));
    let _second = attached(&ask(&mut rude, good()));
    let words = denied(ask(&mut rude, good()));
    assert!(
        words.contains("has 2 regions") && words.contains("gpu_regions_per_session"),
        "{words}"
    );
    rude.ask(ControlRequest::DetachArena { region: first }, &[]);
    let (mut large, mut fds) = good();
    large.memories.push(GpuMemory::Descriptor { bytes: 3 << 20 });
    fds.push(
        Region::create("more", 3 << 20, PageSize::Base).unwrap().fd().try_clone_to_owned().unwrap(),
    );
    let words = denied(ask(&mut rude, (large, fds)));
    assert!(words.contains("gpu_bytes_per_session") && words.contains("are left"), "{words}");
    attached(&ask(&mut rude, good()));
    // Another client has limits of its own.
    Engine::attach(&station);
}

#[test]
fn a_sidecar_without_gpus_says_what_to_configure() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let (mut info, _) = good();
    info.memories = vec![legacy("1/1"); 4];
    match ask(&mut rude, (info, Vec::new())) {
        ControlReply::Error { status: Status::Unsupported, message } => {
            assert!(message.contains("gpu.devices"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // The same with descriptors, which are taken in and closed.
    let answer = ask(&mut rude, good());
    assert!(
        matches!(answer, ControlReply::Error { status: Status::Unsupported, .. }),
        "{answer:?}"
    );
}
