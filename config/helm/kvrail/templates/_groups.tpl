{{- /* The groups of nodes: each is the release's values beneath its own, with its name and that of
       its objects. Without groups there is one, of all nodes. */ -}}
{{- define "kvrail.groups" -}}
{{- $name := include "kvrail.name" . -}}
{{- $all := list -}}
{{- range $group, $own := .Values.groups -}}
{{- $values := mergeOverwrite (deepCopy (omit $.Values "groups")) (deepCopy $own) -}}
{{- $all = append $all (dict "group" $group "name" (printf "%s-%s" $name $group) "values" $values) -}}
{{- else -}}
{{- $all = append $all (dict "group" "" "name" $name "values" (omit $.Values "groups")) -}}
{{- end -}}
{{- toJson (dict "groups" $all) -}}
{{- end }}

{{- /* The labels by which objects of a group find its pods. Takes `root`, `group` and `mode`. */ -}}
{{- define "kvrail.group.selector" -}}
app.kubernetes.io/name: {{ eq .mode "serve" | ternary "kvrail" "kvrail-maintenance" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .group }}
kvrail/group: {{ . }}
{{- end }}
{{- end }}

{{- /* The group's part of the configuration, of which each change replaces the group's pods. */ -}}
{{- define "kvrail.group.files" -}}
kvrail.toml: |
  {{- include "kvrail.config" . | nindent 2 }}
volumes.toml: |
  {{- include "kvrail.volumes" (.values.volumes | default list) | nindent 2 }}
node.sh: |
  {{- .root.Files.Get "files/node.sh" | nindent 2 }}
seccomp.json: |
  {{- .root.Files.Get "files/seccomp.json" | nindent 2 }}
{{- end }}

{{- /* The parts of nodes, two files each: its volumes, and how they are made. */ -}}
{{- define "kvrail.group.nodes" -}}
{{- range $node, $volumes := .values.nodes }}
{{ $node }}.toml: |
  {{- include "kvrail.volumes" $volumes | nindent 2 }}
{{ $node }}.create: |
  {{- include "kvrail.create" $volumes | nindent 2 }}
{{- end }}
{{- end }}

