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

{{- define "kvrail.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* The container's resources: hugepages and devices are requested by their limits. */ -}}
{{- define "kvrail.resources" -}}
{{- $limits := deepCopy (.Values.resources.limits | default dict) -}}
{{- range $resource, $count := .Values.devices.resources -}}
{{- $_ := set $limits $resource $count -}}
{{- end -}}
{{- with .Values.hugepages -}}
{{- if .amount -}}
{{- $_ := set $limits (printf "hugepages-%s" .size) .amount -}}
{{- end -}}
{{- end -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if $limits -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}
