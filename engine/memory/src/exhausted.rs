//! Remedies where the kernel refuses a descriptor or a thread, by the limit that was met.

use rustix::io::Errno;

/// The remedy for a descriptor, or a mapping of one, that could not be made.
#[must_use]
pub fn descriptor_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => "raise the limit of open files (LimitNOFILE=, ulimit -n)",
        Errno::NFILE => "raise the host's limit of open files (sysctl fs.file-max)",
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => FORBIDDEN,
        Errno::NOMEM => NO_MEMORY,
        _ => "see dmesg",
    }
}

/// The remedy for a thread that could not be started.
#[must_use]
pub fn thread_remedy(errno: Errno) -> &'static str {
    match errno {
        // The C library returns the same for a stack that cannot be mapped.
        Errno::AGAIN => {
            "raise the limit of processes and threads (TasksMax=, pids.max, ulimit -u), or that of \
             the address space (LimitAS=, ulimit -v)"
        }
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => FORBIDDEN,
        Errno::NOMEM => NO_MEMORY,
        _ => "see dmesg",
    }
}

/// Container profiles answer so for calls that they do not list.
const FORBIDDEN: &str = "a seccomp profile or security module forbids the call: allow it there \
                         (containers: --security-opt seccomp=...)";

const NO_MEMORY: &str =
    "raise the limit of the address space (LimitAS=, ulimit -v), or free memory";

#[cfg(test)]
mod tests {
    use super::{descriptor_remedy, thread_remedy};
    use rustix::io::Errno;

    /// A remedy that names a limit that was not met sends people the wrong way.
    #[test]
    fn a_remedy_names_what_was_met() {
        let said = [
            (descriptor_remedy(Errno::MFILE), "ulimit -n"),
            (descriptor_remedy(Errno::PERM), "seccomp"),
            (descriptor_remedy(Errno::NOMEM), "ulimit -v"),
            (thread_remedy(Errno::AGAIN), "TasksMax="),
            (thread_remedy(Errno::AGAIN), "ulimit -v"),
            (thread_remedy(Errno::PERM), "seccomp"),
            (thread_remedy(Errno::NOMEM), "ulimit -v"),
        ];
        for (remedy, word) in said {
            assert!(remedy.contains(word), "no {word} in {remedy}");
            assert!(word == "ulimit -n" || !remedy.contains("open files"), "{remedy}");
        }
    }
}
