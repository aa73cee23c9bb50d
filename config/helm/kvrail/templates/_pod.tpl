{{- /* The API takes limits of a rolling update with that type alone. */ -}}
{{- define "kvrail.updates" -}}
{{- $strategy := .updateStrategy -}}
{{- toYaml (eq $strategy.type "OnDelete" | ternary (dict "type" "OnDelete") $strategy) -}}
{{- end }}

{{- /* The values' affinity, and in each of its terms whether the node is in maintenance. */ -}}
{{- define "kvrail.affinity" -}}
{{- $operator := eq .mode "serve" | ternary "DoesNotExist" "Exists" -}}
{{- $own := dict "key" "kvrail/maintenance" "operator" $operator -}}
{{- $affinity := deepCopy (.values.affinity | default dict) -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $expressions := append (.matchExpressions | default list) $own -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) .) -}}
{{- end -}}
{{- $required = dict "nodeSelectorTerms" $terms -}}
{{- $node = merge (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) $node -}}
{{- toYaml (merge (dict "nodeAffinity" $node) $affinity) -}}
{{- end }}

{{- /* Takes `root`, `group`, `name`, `values` and `mode`: "serve" or "maintenance". */ -}}
{{- define "kvrail.pod" -}}
{{- $values := .values -}}
{{- $serves := eq .mode "serve" -}}
{{- $privileged := eq $values.devices.access "privileged" -}}
metadata:
  labels:
    {{- include "kvrail.group.selector" . | nindent 4 }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # A change of the group's part replaces its pods, as updateStrategy has it.
    kvrail/config: {{ include "kvrail.group.files" . | sha256sum }}
    {{- if and $values.appArmor (semverCompare "<1.30-0" .root.Capabilities.KubeVersion.Version) }}
    container.apparmor.security.beta.kubernetes.io/kvrail: {{ include "kvrail.apparmor" $values.appArmor }}
    container.apparmor.security.beta.kubernetes.io/volumes: {{ include "kvrail.apparmor" $values.appArmor }}
    {{- end }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "kvrail.name" .root }}
  automountServiceAccountToken: false
  # Variables of Services would begin with KVRAIL_, which are keys of the configuration.
  enableServiceLinks: false
  # SIGTERM drains for sidecar.drain_timeout: no preStop is needed.
  terminationGracePeriodSeconds: {{ $serves | ternary (add $values.drainSeconds 15) 15 }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.gpu.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if $values.hostPID }}
  # The sidecar sees the processes of its clients, and by their control groups their pods.
  hostPID: true
  {{- end }}
  {{- if and $values.target $serves }}
  # The target's addresses are the node's.
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  affinity: {{- include "kvrail.affinity" . | nindent 4 }}
  {{- if or $values.devices.groups $values.seLinuxOptions }}
  securityContext:
    {{- with $values.devices.groups }}
    supplementalGroups: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.seLinuxOptions }}
    seLinuxOptions: {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  initContainers:
    - {{- include "kvrail.container.configure" . | nindent 6 }}
    {{- if $serves }}
    - {{- include "kvrail.container.volumes" . | nindent 6 }}
    {{- end }}
  containers:
    - {{- include "kvrail.container.sidecar" . | nindent 6 }}
  volumes: {{- include "kvrail.pod.volumes" . | nindent 4 }}
{{- end }}

{{- define "kvrail.apparmor" -}}
{{- if eq .type "Localhost" -}}
localhost/{{ .localhostProfile }}
{{- else -}}
{{ eq .type "Unconfined" | ternary "unconfined" "runtime/default" }}
{{- end -}}
{{- end }}

{{- /* All that the pod mounts, by the names that extraVolumes may not have. */ -}}
{{- define "kvrail.pod.volumes" -}}
{{- $values := .values -}}
{{- $privileged := eq $values.devices.access "privileged" -}}
- name: own
  emptyDir: {}
- name: group
  configMap: {name: {{ .name }}}
- name: nodes
  configMap: {name: {{ .name }}-nodes}
- name: socket
  hostPath: {path: {{ $values.socket.folder }}, type: DirectoryOrCreate}
{{- with $values.files }}
- name: files
  hostPath: {path: {{ . }}, type: DirectoryOrCreate}
{{- end }}
{{- if and (not $privileged) $values.seccomp.install }}
- name: seccomp
  hostPath: {path: {{ $values.seccomp.folder }}, type: DirectoryOrCreate}
{{- end }}
{{- if $privileged }}
- name: dev
  hostPath: {path: /dev, type: Directory}
{{- else if $values.devices.access }}
- name: dev-disk
  hostPath: {path: /dev/disk, type: Directory}
{{- end }}
{{- if $values.devices.access }}
- name: udev
  hostPath: {path: /run/udev, type: Directory}
{{- end }}
{{- with $values.target }}
- name: configfs
  hostPath: {path: {{ .configfs | default "/sys/kernel/config/nvmet" }}, type: Directory}
- name: target-state
  hostPath: {path: {{ .state_dir | default "/var/lib/kvrail/target" }}, type: DirectoryOrCreate}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
