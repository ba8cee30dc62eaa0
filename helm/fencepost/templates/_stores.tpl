{{/*
The store of each namespace, and what refuses an upgrade that changes it. Leases are in the store alone: a server that has
another one for the same namespace grants what is held in the one before.
*/}}

{{/* By namespace: what names its store, how its servers are reached, and its ttl_max, as JSON. */}}
{{- define "fencepost.stores" -}}
{{- $known := .Files.Get "files/stores.yaml" | fromYaml -}}
{{- $stores := dict -}}
{{- range $name, $namespace := include "fencepost.namespaces" . | fromJson -}}
{{- $kind := dig "backend" "embedded" $namespace -}}
{{- $table := dig $kind dict $namespace -}}
{{- $keys := dig $kind dict $known -}}
{{- $parts := list $kind -}}
{{- range $key, $default := dig "names" dict $keys -}}
{{- $value := dig $key $default $table | toString -}}
{{- if $value -}}
{{- $parts = append $parts (printf "%s %s" $key $value) -}}
{{- end -}}
{{- end -}}
{{- $servers := list -}}
{{- range $key, $default := dig "servers" dict $keys -}}
{{- $servers = dig $key $default $table | sortAlpha -}}
{{- end -}}
{{- $_ := set $stores $name (dict "store" (join ", " $parts) "servers" $servers "ttl_max" (dig "ttl_max" "1day" $namespace)) -}}
{{- end -}}
{{- toJson $stores -}}
{{- end -}}

{{/* The workload that runs now, as JSON; empty where there is none, or where Helm asks no cluster. */}}
{{- define "fencepost.running" -}}
{{- range $kind := list "Deployment" "StatefulSet" -}}
{{- with lookup "apps/v1" $kind $.Release.Namespace (include "fencepost.fullname" $) -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The stores of the running workload, as JSON; empty where they are not known. */}}
{{- define "fencepost.storesBefore" -}}
{{- with include "fencepost.running" . -}}
{{- dig "metadata" "annotations" "fencepost/stores" "" (fromJson .) -}}
{{- end -}}
{{- end -}}

{{/* A namespace that is left out keeps its entry, because its leases stay in its store. */}}
{{- define "fencepost.storesAnnotation" -}}
{{- $stores := include "fencepost.stores" . | fromJson -}}
{{- with include "fencepost.storesBefore" . -}}
{{- /* Not `merge`, which would fill an empty list of servers with those before. */}}
{{- range $name, $was := fromJson . -}}
{{- if not (hasKey $stores $name) -}}
{{- $_ := set $stores $name $was -}}
{{- end -}}
{{- end -}}
{{- end -}}
fencepost/stores: {{ toJson $stores | quote }}
{{- end -}}

{{/* Refuses a move of a namespace to another store. One server in common is enough to be the same store, because the
     servers of a store are replaced one by one. */}}
{{- define "fencepost.noMove" -}}
{{- with include "fencepost.storesBefore" . -}}
{{- $before := fromJson . -}}
{{- $moves := list -}}
{{- range $name, $now := include "fencepost.stores" $ | fromJson -}}
{{- $was := dig $name dict $before -}}
{{- $shared := false -}}
{{- range $now.servers -}}
{{- if has . ($was.servers | default list) -}}{{- $shared = true -}}{{- end -}}
{{- end -}}
{{- if and $was (or (ne $was.store $now.store) (not (or $shared (eq (toJson $was.servers) (toJson $now.servers))))) -}}
{{- $moves = append $moves (printf "%s from %s [%s] with ttl_max %s to %s [%s]" $name $was.store (join " " $was.servers) $was.ttl_max $now.store (join " " $now.servers)) -}}
{{- end -}}
{{- end -}}
{{- if $moves -}}
{{- /* The revision is that of this upgrade, so that an earlier confirmation of the same move does not count. */}}
{{- $code := printf "%d %s" $.Release.Revision (join "; " $moves) | sha256sum | trunc 12 -}}
{{- $running := int (dig "status" "replicas" 0 (include "fencepost.running" $ | fromJson)) -}}
{{- if ne $.Values.confirmMove $code -}}
{{- fail (printf "this moves %s. Old and new servers would grant the same locks, also with strategy Recreate and after scaling to 0, because leases outlive the servers. Stop all servers, wait the longest ttl_max, then confirm with --set confirmMove=%s, and without --atomic or --rollback-on-failure: docs/move-a-namespace.md" (join "; " $moves) $code) -}}
{{- else if $running -}}
{{- fail (printf "confirmMove is right, but %d servers still run: scale to 0, and wait the longest ttl_max after the last one has ended: docs/move-a-namespace.md" $running) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
