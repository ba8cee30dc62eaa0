{{/*
The etcd that the chart installs for those who have no store: three members, which only the servers of this release reach.
*/}}
{{- define "fencepost.etcd" -}}
{{- include "fencepost.fullname" . }}-etcd
{{- end -}}

{{- define "fencepost.etcdLabels" -}}
app.kubernetes.io/name: {{ include "fencepost.name" . }}-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The name of each member in DNS, as JSON. */}}
{{- define "fencepost.etcdHosts" -}}
{{- $name := include "fencepost.etcd" . -}}
{{- $hosts := list -}}
{{- range $number := until 3 -}}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc" $name $number $name $.Release.Namespace) -}}
{{- end -}}
{{- toJson $hosts -}}
{{- end -}}

{{- define "fencepost.etcdEndpoints" -}}
{{- $all := list -}}
{{- range include "fencepost.etcdHosts" . | fromJsonArray -}}
{{- $all = append $all (printf "http://%s:2379" .) -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{- define "fencepost.etcdCluster" -}}
{{- $all := list -}}
{{- range $number, $host := include "fencepost.etcdHosts" . | fromJsonArray -}}
{{- $all = append $all (printf "%s-%d=http://%s:2380" (include "fencepost.etcd" $) $number $host) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
