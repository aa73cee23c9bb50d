{{- /* As root, without devices: folders of the node, and the group's part. */ -}}
{{- define "kvrail.container.configure" -}}
{{- $values := .values -}}
{{- $seccomp := and (ne $values.devices.access "privileged") $values.seccomp.install -}}
name: configure
image: {{ include "kvrail.image" . }}
imagePullPolicy: {{ $values.image.pullPolicy }}
command: [/bin/bash, /etc/kvrail-group/node.sh, configure]
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  - {name: OWNER, value: {{ printf "%d:%d" (int64 $values.user) (int64 $values.group) | quote }}}
  - {name: SECCOMP_PROFILE, value: {{ $values.seccomp.profile | quote }}}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL], add: [CHOWN]}
  seccompProfile: {type: RuntimeDefault}
resources:
  requests: {cpu: 10m, memory: 16Mi}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: own, mountPath: /etc/kvrail}
  - {name: group, mountPath: /etc/kvrail-group, readOnly: true}
  - {name: socket, mountPath: /node/socket}
  {{- if $values.files }}
  - {name: files, mountPath: /node/files}
  {{- end }}
  {{- if $seccomp }}
  - {name: seccomp, mountPath: /node/seccomp}
  {{- end }}
{{- end }}

{{- /* As the sidecar's user, with its devices: makes volumes where nothing is. A volume that is
       refused keeps this node's pod here, with the reason in its state. */ -}}
{{- define "kvrail.container.volumes" -}}
name: volumes
image: {{ include "kvrail.image" . }}
imagePullPolicy: {{ .values.image.pullPolicy }}
command: [/bin/bash, /etc/kvrail/node.sh, create]
env: {{- include "kvrail.env" . | nindent 2 }}
securityContext: {{- include "kvrail.security" (merge (dict "raise" false) .) | nindent 2 }}
resources: {{- include "kvrail.resources.small" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts: {{- include "kvrail.mounts" . | nindent 2 }}
{{- end }}

{{- define "kvrail.container.sidecar" -}}
{{- $values := .values -}}
{{- $serves := eq .mode "serve" -}}
{{- $raise := and $serves (eq $values.memlock "raise") (not $values.target) -}}
name: kvrail
image: {{ include "kvrail.image" . }}
imagePullPolicy: {{ $values.image.pullPolicy }}
command:
  {{- if $raise }}
  - /usr/bin/prlimit
  - --memlock=unlimited:unlimited
  - /usr/bin/setpriv
  - --reuid={{ int64 $values.user }}
  - --regid={{ int64 $values.group }}
  - --keep-groups
  - --inh-caps=-all
  - --bounding-set=-all
  - --no-new-privs
  {{- end }}
  - /bin/bash
  - /etc/kvrail/node.sh
args: [{{ $serves | ternary "serve" "wait" }}]
env:
  {{- include "kvrail.env" . | nindent 2 }}
  {{- if $values.gpu.runtimeClassName }}
  # The container sees all GPUs, and takes none from the scheduler.
  - {name: NVIDIA_VISIBLE_DEVICES, value: all}
  - {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility"}
  {{- end }}
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext: {{- include "kvrail.security" (merge (dict "raise" $raise) .) | nindent 2 }}
{{- if $serves }}
ports:
  - {name: metrics, containerPort: {{ int64 $values.metrics.port }}}
# The endpoint answers while devices are timed and stores recover.
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (add $values.startupSeconds 1) 2 }}
# Not /healthz, which a single hung drive fails: a restart would stop the other drives.
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
resources: {{- include "kvrail.resources" . | nindent 2 }}
{{- else }}
resources: {{- include "kvrail.resources.small" . | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts: {{- include "kvrail.mounts" . | nindent 2 }}
{{- end }}

{{- define "kvrail.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: KVRAIL_CONFIG, value: /etc/kvrail/kvrail.toml}
- {name: EXIT_WITHIN, value: {{ printf "%ds" (int64 .values.nodeChangeSpreadSeconds) | quote }}}
{{- end }}

{{- /* Of the containers with devices. `raise` has it start as root, to raise memlock. */ -}}
{{- define "kvrail.security" -}}
{{- $values := .values -}}
{{- if or .raise $values.target -}}
runAsUser: 0
{{- else -}}
runAsUser: {{ int64 $values.user }}
runAsNonRoot: true
{{- end }}
# The socket's group, so that `kubectl exec` may read the status.
runAsGroup: {{ int64 $values.group }}
readOnlyRootFilesystem: true
{{- if and $values.appArmor (semverCompare ">=1.30-0" .root.Capabilities.KubeVersion.Version) }}
appArmorProfile: {{- toYaml $values.appArmor | nindent 2 }}
{{- end }}
{{- if eq $values.devices.access "privileged" }}
# For the devices alone: only privileged containers can open devices of hostPath mounts.
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if .raise }}
  # To raise the limit of locked memory and to become another user.
  add: [SYS_RESOURCE, SETUID, SETGID, SETPCAP]
  {{- end }}
seccompProfile: {type: Localhost, localhostProfile: {{ $values.seccomp.profile | quote }}}
{{- end }}
{{- end }}

{{- define "kvrail.mounts" -}}
{{- $values := .values -}}
- {name: own, mountPath: /etc/kvrail}
- {name: nodes, mountPath: /etc/kvrail-nodes, readOnly: true}
- {name: socket, mountPath: {{ $values.socket.folder }}}
{{- with $values.files }}
- {name: files, mountPath: {{ . }}}
{{- end }}
{{- if eq $values.devices.access "privileged" }}
- {name: dev, mountPath: /dev}
{{- else if $values.devices.access }}
# Names that stay; the plugin supplies their targets.
- {name: dev-disk, mountPath: /dev/disk, readOnly: true}
{{- end }}
{{- if $values.devices.access }}
- {name: udev, mountPath: /run/udev, readOnly: true}
{{- end }}
{{- with $values.target }}
- {name: configfs, mountPath: {{ .configfs | default "/sys/kernel/config/nvmet" }}}
- {name: target-state, mountPath: {{ .state_dir | default "/var/lib/kvrail/target" }}}
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
