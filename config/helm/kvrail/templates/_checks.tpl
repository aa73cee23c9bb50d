{{- /* Checks that a schema cannot express; each error names key, value and remedy. */ -}}
{{- define "kvrail.checks" -}}
{{- $values := .Values -}}
{{- if and $values.volumes $values.nodes -}}
{{- fail "volumes and nodes are both set: name volumes for all nodes (volumes) or by node (nodes)" -}}
{{- end -}}
{{- if not (or $values.volumes $values.nodes) -}}
{{- fail "nothing to serve: set volumes (the same on all nodes) or nodes (by node name)" -}}
{{- end -}}
{{- range $values.volumes -}}
{{- include "kvrail.checks.volume" (dict "values" $values "volume" . "where" "volumes") -}}
{{- end -}}
{{- range $node, $volumes := $values.nodes -}}
{{- $where := printf "nodes.%s" $node -}}
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
{{- include "kvrail.checks.pages" . -}}
{{- if ($values.resources.limits | default dict).cpu -}}
{{- fail "resources.limits.cpu is set: a quota stops pollers in the middle of a request; leave it out" -}}
{{- end -}}
{{- $gpus := ($values.config.gpu | default dict).devices -}}
{{- if and $gpus (not $values.gpu.runtimeClassName) -}}
{{- fail "config.gpu.devices needs gpu.runtimeClassName, the class that brings the driver (\"nvidia\")" -}}
{{- end -}}
{{- end }}

{{- define "kvrail.checks.pages" -}}
{{- $pages := ($.Values.config.memory | default dict).pages | default "auto" -}}
{{- $amount := $.Values.hugepages.amount -}}
{{- $sizes := dict "2MiB" "2Mi" "1GiB" "1Gi" -}}
{{- $size := get $sizes $pages -}}
{{- if and $size (not (and $amount (eq $size $.Values.hugepages.size))) -}}
{{- fail (printf "config.memory.pages is %q: set hugepages.size to %q and hugepages.amount" $pages
    $size) -}}
{{- end -}}
{{- if and $amount (eq $.Values.hugepages.size "1Gi") (ne $pages "1GiB") -}}
{{- fail "hugepages.size is \"1Gi\": set config.memory.pages to \"1GiB\", or nothing uses them" -}}
{{- end -}}
{{- end }}

{{- /* Takes `values`, `volume` and `where`. */ -}}
{{- define "kvrail.checks.volume" -}}
{{- range $member := .volume.members -}}
{{- $where := printf "%s: member %q of volume %q" $.where $member $.volume.name -}}
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
{{- end -}}
{{- end -}}
{{- end }}
