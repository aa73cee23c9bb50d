{{- define "kvrail.name" -}}
{{- if contains "kvrail" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kvrail" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- define "kvrail.selector" -}}
app.kubernetes.io/name: kvrail
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvrail.labels" -}}
{{ include "kvrail.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Takes `root` and `values`, as all that follows. */ -}}
{{- define "kvrail.image" -}}
{{ printf "%s:%s" .values.image.repository (.values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}

{{- /* The container's resources: hugepages and devices are requested by their limits. */ -}}
{{- define "kvrail.resources" -}}
{{- $limits := deepCopy (.values.resources.limits | default dict) -}}
{{- range $resource, $count := .values.devices.resources -}}
{{- $_ := set $limits $resource $count -}}
{{- end -}}
{{- with .values.hugepages -}}
{{- if .amount -}}
{{- $_ := set $limits (printf "hugepages-%s" .size) .amount -}}
{{- end -}}
{{- end -}}
{{- $resources := deepCopy .values.resources -}}
{{- if $limits -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- /* Of a container that has the devices and does little. */ -}}
{{- define "kvrail.resources.small" -}}
{{- $resources := dict "requests" (dict "cpu" "100m" "memory" "64Mi") -}}
{{- with .values.devices.resources -}}
{{- $_ := set $resources "limits" . -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}
