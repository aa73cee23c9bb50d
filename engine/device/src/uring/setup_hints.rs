//! Why a ring could not be set up or memory not be registered, in words an operator can act on.

use rustix::io::Errno;

use crate::queue::Queue;
use crate::system::{KERNEL_MIN, io_uring_disabled, kernel_version, memlock_bytes};
use crate::uring::kernel_thread::KernelThread;
use crate::uring::mode::ModeName;

/// Says why this kernel is too old, if it is.
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

/// The likely cause of a failed `io_uring_setup`, and what to do.
pub(super) fn setup(errno: Errno, mode: ModeName, thread: KernelThread) -> String {
    match errno {
        Errno::PERM => forbidden(io_uring_disabled()),
        Errno::NOSYS => "the kernel has no io_uring, or a seccomp profile hides it (containers \
             often do): allow io_uring_setup, io_uring_enter and io_uring_register"
            .into(),
        Errno::NOMEM => memlock(0, memlock_bytes()),
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
        Errno::INVAL => format!("this kernel does not know the flags of mode {mode}"),
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

/// The likely cause of a failed registration of `bytes` bytes, and what to do.
pub(super) fn register(errno: Errno, bytes: u64) -> String {
    match errno {
        Errno::NOMEM => memlock(bytes, memlock_bytes()),
        Errno::OPNOTSUPP | Errno::FAULT => "the kernel cannot pin this memory for I/O: use \
             anonymous, shmem or hugetlbfs memory"
            .into(),
        Errno::BUSY => "an earlier region there is not yet forgotten: try again".into(),
        _ => "see io_uring_register(2)".into(),
    }
}

fn memlock(needed: u64, limit: Option<u64>) -> String {
    match limit {
        None => "the kernel is out of memory (memlock is unlimited)".into(),
        Some(limit) => format!(
            "RLIMIT_MEMLOCK is {limit} bytes and {needed} more are needed: raise it (ulimit -l, \
             LimitMEMLOCK=infinity) or give CAP_IPC_LOCK"
        ),
    }
}

/// Why a polled read was refused, and what to do.
pub(super) fn no_poll_queues(queue: Option<&Queue>) -> String {
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

    use super::{forbidden, memlock, no_poll_queues, register, setup};
    use crate::uring::kernel_thread::KernelThread;
    use crate::uring::mode::ModeName;

    #[test]
    fn each_cause_is_named_with_value_and_remedy() {
        assert!(forbidden(Some(2)).contains("io_uring_disabled is 2: set it to 0"));
        assert!(forbidden(Some(1)).contains("io_uring_disabled is 1"));
        assert!(forbidden(Some(0)).contains("seccomp") && forbidden(None).contains("seccomp"));
        let text = memlock(4096, Some(65_536));
        assert!(text.contains("65536 bytes and 4096 more") && text.contains("LimitMEMLOCK"));
        assert!(memlock(1, None).contains("unlimited"));
        let thread = KernelThread { cpu: Some(99), idle_ms: 1 };
        let text = setup(Errno::INVAL, ModeName::Sqpoll, thread);
        assert!(text.contains("CPU 99") && text.contains("cpuset"), "{text}");
        let text = setup(Errno::INVAL, ModeName::Iopoll, thread);
        assert!(text.contains("iopoll"), "{text}");
        assert!(setup(Errno::NOSYS, ModeName::Iopoll, thread).contains("io_uring_setup"));
        assert!(setup(Errno::MFILE, ModeName::Iopoll, thread).contains("LimitNOFILE"));
        assert!(register(Errno::OPNOTSUPP, 1).contains("hugetlbfs"));
        assert!(no_poll_queues(None).contains("nvme.poll_queues"));
    }
}
