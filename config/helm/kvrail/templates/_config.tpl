{{- /* A value as TOML, on one line. JSON's strings, numbers and booleans are TOML's too; toToml
       would turn whole numbers of a values file into floats. */ -}}
{{- define "kvrail.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha -}}
{{- if $index }}, {{ end }}{{ $key }} = {{ include "kvrail.toml" (get $ $key) }}
{{- end -}} }
{{- else if kindIs "slice" . -}}
[{{- range $index, $item := . -}}
{{- if $index }}, {{ end }}{{ include "kvrail.toml" $item }}
{{- end -}}]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end }}

{{- /* All lines of one table. */ -}}
{{- define "kvrail.keys" -}}
{{- range $key := keys . | sortAlpha }}
{{ $key }} = {{ include "kvrail.toml" (get $ $key) }}
{{- end }}
{{- end }}

{{- /* All but the volumes: values, beneath what the chart sets. Takes `values`. */ -}}
{{- define "kvrail.config" -}}
{{- $values := .values -}}
{{- $config := deepCopy $values.config -}}
{{- $sidecar := dict "socket" (printf "%s/kvrail.sock" $values.socket.folder) -}}
{{- $_ := set $sidecar "drain_timeout" (printf "%ds" (int64 $values.drainSeconds)) -}}
{{- $_ := set $config "sidecar" (merge $sidecar ($config.sidecar | default dict)) -}}
{{- $listen := printf "%s:%d" $values.metrics.address (int64 $values.metrics.port) -}}
{{- $_ := set $config "metrics" (merge (dict "listen" $listen) ($config.metrics | default dict)) -}}
{{- if not $values.hugepages.amount -}}
{{- $_ := set $config "memory" (merge ($config.memory | default dict) (dict "pages" "4KiB")) -}}
{{- end -}}
{{- if $values.target -}}
{{- $_ := set $config "target" $values.target -}}
{{- end -}}
{{- range $section := keys $config | sortAlpha }}
[{{ $section }}]
{{- include "kvrail.keys" (get $config $section) }}
{{ end }}
{{- end }}

{{- define "kvrail.volumes" -}}
{{- range . }}
[[volume]]
{{- include "kvrail.keys" (omit . "create") }}
{{ end }}
{{- end }}

{{- /* A line for each volume that a node makes by itself: its name, and options of `kvrail volume
       create`. */ -}}
{{- define "kvrail.create" -}}
{{- $options := dict "kind" "kind" "size" "size" "stripe" "stripe" "segment" "segment"
    "blockMean" "block-mean" "fill" "fill" -}}
{{- range $volume := . }}
{{- with .create }}
{{ $volume.name }}
{{- range $key := keys . | sortAlpha }} --{{ get $options $key }} {{ get $volume.create $key }}{{ end }}
{{- end }}
{{- end }}
{{ end }}
