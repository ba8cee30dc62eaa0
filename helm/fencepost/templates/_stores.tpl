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

{{/* Each workload of this release that is there, with its servers and stores, as JSON: both kinds after an upgrade between
     them that was interrupted, none where Helm asks no cluster. */}}
{{- define "fencepost.running" -}}
{{- $running := list -}}
{{- range $kind := list "Deployment" "StatefulSet" -}}
{{- with lookup "apps/v1" $kind $.Release.Namespace (include "fencepost.fullname" $) -}}
{{- $servers := max (int (dig "spec" "replicas" 0 .)) (int (dig "status" "replicas" 0 .)) -}}
{{- $stores := dig "metadata" "annotations" "fencepost/stores" "{}" . | fromJson -}}
{{- $running = append $running (dict "kind" $kind "servers" $servers "stores" $stores) -}}
{{- end -}}
{{- end -}}
{{- toJson $running -}}
{{- end -}}

{{/* A namespace that is left out keeps its entry, because its leases stay in its store. */}}
{{- define "fencepost.storesAnnotation" -}}
{{- $stores := include "fencepost.stores" . | fromJson -}}
{{- /* Not `merge`, which would fill an empty list of servers with those before. */}}
{{- range include "fencepost.running" . | fromJsonArray -}}
{{- range $name, $was := .stores -}}
{{- if not (hasKey $stores $name) -}}
{{- $_ := set $stores $name $was -}}
{{- end -}}
{{- end -}}
{{- end -}}
fencepost/stores: {{ toJson $stores | quote }}
{{- end -}}

{{/* Refuses a move of a namespace to another store. One server in common is enough to be the same store, because the
     servers of a store are replaced one by one. Also refuses a StatefulSet beside a Deployment that runs, and the reverse:
     Helm makes the one before it deletes the other. */}}
{{- define "fencepost.noMove" -}}
{{- $running := include "fencepost.running" . | fromJsonArray -}}
{{- $stores := include "fencepost.stores" . | fromJson -}}
{{- $kind := eq (include "fencepost.store" .) "shared" | ternary "Deployment" "StatefulSet" -}}
{{- $moves := list -}}
{{- $servers := 0 -}}
{{- $others := list -}}
{{- range $workload := $running -}}
{{- $servers = add $servers (int $workload.servers) -}}
{{- if and (ne $workload.kind $kind) (int $workload.servers) -}}
{{- $others = append $others $workload -}}
{{- end -}}
{{- range $name, $now := $stores -}}
{{- $was := dig $name dict $workload.stores -}}
{{- $shared := false -}}
{{- range $now.servers -}}
{{- if has . ($was.servers | default list) -}}{{- $shared = true -}}{{- end -}}
{{- end -}}
{{- if and $was (or (ne $was.store $now.store) (not (or $shared (eq (toJson $was.servers) (toJson $now.servers))))) -}}
{{- $moves = append $moves (printf "%s from %s [%s] with ttl_max %s to %s [%s]" $name $was.store (join " " $was.servers) $was.ttl_max $now.store (join " " $now.servers)) | uniq -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $moves -}}
{{- /* The revision is that of this upgrade, so that an earlier confirmation of the same move does not count. */}}
{{- $code := printf "%d %s" $.Release.Revision (join "; " $moves) | sha256sum | trunc 12 -}}
{{- if ne $.Values.confirmMove $code -}}
{{- fail (printf "this moves %s. Old and new servers would grant the same locks, also with strategy Recreate and after scaling to 0, because leases outlive the servers. Stop all servers, wait the longest ttl_max, then confirm with --set confirmMove=%s, and without --atomic or --rollback-on-failure: docs/move-a-namespace.md" (join "; " $moves) $code) -}}
{{- else if $servers -}}
{{- fail (printf "confirmMove is right, but %d servers still run: scale to 0, and wait the longest ttl_max after the last one has ended: docs/move-a-namespace.md" $servers) -}}
{{- end -}}
{{- end -}}
{{- range $others -}}
{{- fail (printf "this makes a %s beside a %s of %d servers, and old and new servers would run with different stores at once: run kubectl scale %s/%s --replicas 0 first, and upgrade once its pods have ended: docs/move-a-namespace.md" $kind .kind (int .servers) (lower .kind) (include "fencepost.fullname" $)) -}}
{{- end -}}
{{- end -}}
