//! Why a ring could not be set up or memory not be registered, in words an operator can act on.

use kvrail_memory::{PinLimit, pin_remedy};
use rustix::io::Errno;

use crate::queue::QueueLimits;
use crate::system::{KERNEL_MIN, io_uring_disabled, kernel_version};
use crate::uring::kernel_thread::KernelThread;
use crate::uring::mode::ModeName;

/// The reason why this kernel is too old, if it is.
pub(super) fn old_kernel() -> Option<String> {
    let (major, minor) = kernel_version()?;
    ((major, minor) < KERNEL_MIN).then(|| {
        let (least_major, least_minor) = KERNEL_MIN;
        format!(
            "kernel {major}.{minor} is older than {least_major}.{least_minor}, the oldest with \
             deferred task work; boot a newer one"
        )
    })
}

/// The likely cause of a failed `io_uring_setup` for a ring of `bytes` bytes, and the remedy.
pub(super) fn setup(errno: Errno, mode: ModeName, thread: KernelThread, bytes: u64) -> String {
    match errno {
        Errno::PERM => forbidden(io_uring_disabled()),
        Errno::NOSYS => "the kernel has no io_uring, or a seccomp profile hides it (containers \
             often do): allow io_uring_setup, io_uring_enter and io_uring_register"
            .into(),
        Errno::NOMEM => no_memory(bytes, PinLimit::of_this_process()),
        Errno::MFILE | Errno::NFILE => {
            "descriptors have run out: raise LimitNOFILE (ulimit -n)".into()
        }
        Errno::INVAL if mode.has_kernel_thread() && thread.cpu.is_some() => format!(
            "CPU {} for the kernel thread is not in this process's cpuset: choose another",
            thread.cpu.unwrap_or_default()
        ),
        Errno::INVAL if mode == ModeName::Hybrid => {
            "hybrid polling needs kernel 6.13 or later: use mode iopoll".into()
        }
        Errno::INVAL => format!("this kernel does not support the flags of mode {mode}"),
        _ => "see io_uring_setup(2)".into(),
    }
}

fn forbidden(switch: Option<u32>) -> String {
    match switch {
        Some(2) => "sysctl kernel.io_uring_disabled is 2: set it to 0, or to 1 and run with \
             CAP_SYS_ADMIN or in kernel.io_uring_group"
            .into(),
        Some(1) => "sysctl kernel.io_uring_disabled is 1: set it to 0, or run with CAP_SYS_ADMIN \
             or in kernel.io_uring_group"
            .into(),
        _ => "a seccomp profile or security module forbids it (containers often do): allow \
             io_uring_setup, io_uring_enter and io_uring_register"
            .into(),
    }
}

/// The likely cause of a failed registration, and what to do. Not of one for which the limit of
/// pinned memory is too low: that region is attached without it.
pub(super) fn register(errno: Errno) -> String {
    match errno {
        Errno::NOMEM => no_memory(0, PinLimit::Unlimited),
        Errno::OPNOTSUPP | Errno::FAULT => "the kernel cannot pin this memory for I/O: use \
             anonymous, shmem or hugetlbfs memory"
            .into(),
        Errno::BUSY => "an earlier region there is not yet forgotten: try again".into(),
        _ => "see io_uring_register(2)".into(),
    }
}

fn no_memory(needed: u64, limit: PinLimit) -> String {
    match limit {
        PinLimit::Unlimited => "the kernel is out of memory (no limit of pinned memory is in \
             force): free some, or raise the cgroup's memory.max"
            .into(),
        PinLimit::Bytes(most) => {
            let others = match limit.allows(needed) {
                true => ", and they hold the rest: end one of them, or",
                false => ":",
            };
            format!(
                "a ring takes {needed} bytes of the {most} that this user's processes may pin \
                 together (RLIMIT_MEMLOCK){others} {}",
                pin_remedy(needed)
            )
        }
    }
}

/// Why a polled read was refused, and what to do.
pub(super) fn no_poll_queues(queue: Option<&QueueLimits>) -> String {
    let disk = queue.map_or("the device", |queue| queue.disk.as_str());
    let parameter = match disk {
        _ if disk.starts_with("vd") => "virtio_blk.poll_queues=N on the kernel line",
        _ if disk.starts_with("nullb") => "null_blk.poll_queues=N on the kernel line",
        _ => {
            "the module parameter nvme.poll_queues (\"options nvme poll_queues=4\" in \
             /etc/modprobe.d, or nvme.poll_queues=4 on the kernel line)"
        }
    };
    format!("{disk} has no queue that can be polled: set {parameter}, or use mode interrupt")
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::{PinLimit, forbidden, no_memory, no_poll_queues, register, setup};
    use crate::uring::kernel_thread::KernelThread;
    use crate::uring::mode::ModeName;

    #[test]
    fn each_cause_is_named_with_value_and_remedy() {
        assert!(forbidden(Some(2)).contains("io_uring_disabled is 2: set it to 0"));
        assert!(forbidden(Some(1)).contains("io_uring_disabled is 1"));
        assert!(forbidden(Some(0)).contains("seccomp") && forbidden(None).contains("seccomp"));
        let text = no_memory(4096, PinLimit::Bytes(65_536));
        assert!(text.contains("4096 bytes of the 65536") && text.contains("LimitMEMLOCK"));
        assert!(text.contains("they hold the rest"), "{text}");
        let text = no_memory(65_537, PinLimit::Bytes(65_536));
        assert!(text.contains("(RLIMIT_MEMLOCK): allow 65537 bytes"), "{text}");
        assert!(no_memory(1, PinLimit::Unlimited).contains("memory.max"));
        let thread = KernelThread { cpu: Some(99), idle_ms: 1 };
        let text = setup(Errno::INVAL, ModeName::Sqpoll, thread, 1);
        assert!(text.contains("CPU 99") && text.contains("cpuset"), "{text}");
        let text = setup(Errno::INVAL, ModeName::Iopoll, thread, 1);
        assert!(text.contains("iopoll"), "{text}");
        assert!(setup(Errno::NOSYS, ModeName::Iopoll, thread, 1).contains("io_uring_setup"));
        assert!(setup(Errno::MFILE, ModeName::Iopoll, thread, 1).contains("LimitNOFILE"));
        assert!(register(Errno::OPNOTSUPP).contains("hugetlbfs"));
        assert!(no_poll_queues(None).contains("nvme.poll_queues"));
    }
}
