//! The Kubernetes pod of a process, by the name that the kubelet gives its control group.

use uuid::Uuid;

/// The pod's uid, as the API has it, from the text of `/proc/PID/cgroup`. The kubelet makes the
/// outermost group of a path that names a pod; those below may be the pod's own work.
pub(crate) fn pod_of(cgroups: &str) -> Option<String> {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(|path| path.split('/').find_map(uid)).next()
}

/// `pod0f3c1a52-...` (cgroupfs), `kubepods-burstable-pod0f3c1a52_....slice` (systemd), or a static
/// pod's digest without dashes.
fn uid(group: &str) -> Option<String> {
    let group = group.strip_suffix(".slice").unwrap_or(group);
    let name = match group.strip_prefix("kubepods") {
        Some(rest) => rest.split_once("-pod")?.1,
        None => group.strip_prefix("pod")?,
    };
    let dashed = name.replace('_', "-");
    Uuid::try_parse(&dashed).is_ok().then_some(dashed)
}

#[cfg(test)]
mod tests {
    use super::pod_of;

    const UID: &str = "0f3c1a52-5d1c-44e0-8412-3fcf7d99df27";

    #[test]
    fn each_way_to_name_a_pods_group_is_read() {
        let systemd = UID.replace('-', "_");
        let digest = UID.replace('-', "");
        for (text, pod) in [
            (
                format!("0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-ab.scope"),
                UID,
            ),
            (
                format!(
                    "0::/../../kubepods-burstable-pod{systemd}.slice/cri-containerd-ab.scope\n"
                ),
                UID,
            ),
            (format!("12:memory:/kubepods/besteffort/pod{UID}/ab\n1:cpu:/other\n"), UID),
            (format!("0::/kubepods/burstable/pod{digest}/ab"), &digest),
            // The kubelet's group is above one that the pod has made.
            (format!("0::/kubepods/pod{UID}/ab/pod{digest}"), UID),
        ] {
            assert_eq!(pod_of(&text).as_deref(), Some(pod), "{text}");
        }
    }

    #[test]
    fn a_process_of_no_pod_has_none() {
        for text in [
            "",
            "0::/",
            "0::/system.slice/kvrail.service",
            "0::/machine.slice/libpod-abcdef.scope",
            "0::/kubepods.slice/kubepods-podx.slice",
            "0::/podman/pod",
            "no line of it",
        ] {
            assert_eq!(pod_of(text), None, "{text}");
        }
    }
}
