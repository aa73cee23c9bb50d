{{- /* Checks that a schema cannot express; each error names key, value and remedy. */ -}}
{{- define "kvrail.checks" -}}
{{- if and .Values.metrics.networkPolicy.enabled (not .Values.metrics.networkPolicy.from) -}}
{{- fail "metrics.networkPolicy.from is empty: name the peers that may scrape, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" -}}
{{- end -}}
{{- include "kvrail.checks.groups" . -}}
{{- range (include "kvrail.groups" . | fromJson).groups -}}
{{- $prefix := .group | empty | ternary "" (printf "groups.%s." .group) -}}
{{- include "kvrail.checks.group" (merge (dict "prefix" $prefix) .) -}}
{{- end -}}
{{- end }}

{{- /* Two sidecars on one node would fight for its drives: of each two groups a label must differ. */ -}}
{{- define "kvrail.checks.groups" -}}
{{- $groups := .Values.groups -}}
{{- if and $groups (or .Values.volumes .Values.nodes) -}}
{{- fail "groups is set beside volumes or nodes: name volumes and nodes in each group" -}}
{{- end -}}
{{- range $one, $_ := $groups -}}
{{- if has $one (list "nodes" "maintenance" "metrics" "dashboard") -}}
{{- fail (printf "groups.%s: the chart has objects of that name: choose another one" $one) -}}
{{- end -}}
{{- range $other, $_ := $groups -}}
{{- if lt $one $other -}}
{{- $labels := (get $groups $one).nodeSelector | default dict -}}
{{- $apart := false -}}
{{- range $key, $value := (get $groups $other).nodeSelector | default dict -}}
{{- if and (hasKey $labels $key) (ne (get $labels $key) $value) -}}
{{- $apart = true -}}
{{- end -}}
{{- end -}}
{{- if not $apart -}}
{{- fail (printf "groups.%s and groups.%s may select the same node: give both a nodeSelector with one label of different values" $one $other) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Takes `values` of a group and `prefix` of its keys. */ -}}
{{- define "kvrail.checks.group" -}}
{{- $values := .values -}}
{{- $prefix := .prefix -}}
{{- if not (or $values.volumes $values.nodes) -}}
{{- fail (printf "nothing to serve: set %svolumes (the same on all nodes) or %snodes (by node name)"
    $prefix $prefix) -}}
{{- end -}}
{{- $chosen := or $values.nodeSelector $values.affinity -}}
{{- if and $values.nodes (not $values.volumes) (not $chosen) -}}
{{- fail (printf "%snodes names the volumes of some nodes only: set %snodeSelector to a label of these, or %svolumes for all others" $prefix $prefix $prefix) -}}
{{- end -}}
{{- range $values.volumes -}}
{{- $where := printf "%svolumes" $prefix -}}
{{- include "kvrail.checks.volume" (dict "values" $values "volume" . "where" $where) -}}
{{- end -}}
{{- range $node, $volumes := $values.nodes -}}
{{- $where := printf "%snodes.%s" $prefix $node -}}
{{- range $volumes -}}
{{- include "kvrail.checks.volume" (dict "values" $values "volume" . "where" $where) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $values.devices.access "plugin") (not $values.devices.resources) -}}
{{- fail "devices.access is \"plugin\": name its resources in devices.resources" -}}
{{- end -}}
{{- if and $values.devices.resources (ne $values.devices.access "plugin") -}}
{{- fail (printf "devices.resources are for devices.access \"plugin\", which is %q"
    $values.devices.access) -}}
{{- end -}}
{{- if and $values.target (ne $values.devices.access "privileged") -}}
{{- fail (printf "target needs devices.access \"privileged\", which is %q"
    $values.devices.access) -}}
{{- end -}}
{{- if and $values.target $values.metrics.networkPolicy.enabled -}}
{{- fail "metrics.networkPolicy does not hold for a target, whose pods have the node's network: disable it, and close metrics.port on the nodes" -}}
{{- end -}}
{{- include "kvrail.checks.pages" $values -}}
{{- include "kvrail.checks.extra" $values -}}
{{- if ($values.resources.limits | default dict).cpu -}}
{{- fail "resources.limits.cpu is set: a quota stops pollers in the middle of a request; leave it out" -}}
{{- end -}}
{{- $gpus := ($values.config.gpu | default dict).devices -}}
{{- if and $gpus (not $values.gpu.runtimeClassName) -}}
{{- fail "config.gpu.devices needs gpu.runtimeClassName, the class that brings the driver (\"nvidia\")" -}}
{{- end -}}
{{- end }}

{{- define "kvrail.checks.pages" -}}
{{- $pages := (.config.memory | default dict).pages | default "auto" -}}
{{- $amount := .hugepages.amount -}}
{{- $sizes := dict "2MiB" "2Mi" "1GiB" "1Gi" -}}
{{- $size := get $sizes $pages -}}
{{- if and $size (not (and $amount (eq $size .hugepages.size))) -}}
{{- fail (printf "config.memory.pages is %q: set hugepages.size to %q and hugepages.amount" $pages
    $size) -}}
{{- end -}}
{{- if and $amount (eq .hugepages.size "1Gi") (ne $pages "1GiB") -}}
{{- fail "hugepages.size is \"1Gi\": set config.memory.pages to \"1GiB\", or nothing uses them" -}}
{{- end -}}
{{- end }}

{{- /* Names that the chart itself has: the API refuses two of one name, without this word. */ -}}
{{- define "kvrail.checks.extra" -}}
{{- range .extraEnv -}}
{{- if has .name (list "NODE_NAME" "KVRAIL_CONFIG" "EXIT_WITHIN" "NVIDIA_VISIBLE_DEVICES" "NVIDIA_DRIVER_CAPABILITIES") -}}
{{- fail (printf "extraEnv: the chart sets %s itself: leave it out" .name) -}}
{{- end -}}
{{- end -}}
{{- $own := list "own" "group" "nodes" "socket" "files" "seccomp" "dev" "dev-disk" "udev" "configfs" "target-state" -}}
{{- $extra := list -}}
{{- range .extraVolumes -}}
{{- if has .name $own -}}
{{- fail (printf "extraVolumes: the chart has a volume %q itself: choose another name" .name) -}}
{{- end -}}
{{- $extra = append $extra .name -}}
{{- end -}}
{{- range .extraVolumeMounts -}}
{{- if not (has .name $extra) -}}
{{- fail (printf "extraVolumeMounts: no volume %q is in extraVolumes: add it there" .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Takes `values`, `volume` and `where`. */ -}}
{{- define "kvrail.checks.volume" -}}
{{- $name := .volume.name -}}
{{- $create := .volume.create | default dict -}}
{{- range $member := .volume.members -}}
{{- $where := printf "%s: member %q of volume %q" $.where $member $name -}}
{{- if regexMatch "^/dev/(nvme|ng|sd|vd|xvd|dm-|md[0-9])" $member -}}
{{- fail (printf "%s is a kernel name, which changes from boot to boot: use pci:, serial:, wwid: or /dev/disk/by-id/..." $where) -}}
{{- else if regexMatch "^(/dev/|pci:|serial:|wwid:)" $member -}}
{{- if not $.values.devices.access -}}
{{- fail (printf "%s is a device: set devices.access to \"plugin\" or \"privileged\"" $where) -}}
{{- end -}}
{{- else if hasPrefix "/" $member -}}
{{- if not (and $.values.files (hasPrefix (printf "%s/" $.values.files) $member)) -}}
{{- fail (printf "%s is a file outside of files (%q): set files to its folder" $where
    $.values.files) -}}
{{- end -}}
{{- if and $create (not $create.size) -}}
{{- fail (printf "%s is a file: set create.size, the size of the whole volume" $where) -}}
{{- end -}}
{{- else if $create -}}
{{- fail (printf "%s moves no bytes and is never made: leave create out" $where) -}}
{{- end -}}
{{- end -}}
{{- $foreign := eq ($create.kind | default "") "raw" | ternary (list "segment" "blockMean") (list "stripe") -}}
{{- range $key := $foreign -}}
{{- if hasKey $create $key -}}
{{- fail (printf "%s: create.%s of volume %q: a %s volume has none" $.where $key $name $create.kind) -}}
{{- end -}}
{{- end -}}
{{- end }}
