{{/*
What production should not run without, unless it is waived by name; and that the memory is enough.
*/}}
{{- define "fencepost.hardened" -}}
{{- if .Values.hardening.enforced -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $policy := .Values.networkPolicy -}}
{{- $needs := list
  (dict "name" "tls" "is" .Values.tls.enabled "say" "tls.enabled must be true: calls and proofs of who calls would cross the network in plain text")
  (dict "name" "rules" "is" (dig "rules" list ($config.auth | default dict)) "say" "config.auth.rules must say who may do what: everybody may use every lock")
  (dict "name" "clients" "is" (and $policy.enabled $policy.clients) "say" "networkPolicy.enabled and networkPolicy.clients must say who may call")
  (dict "name" "scrapers" "is" (and $policy.enabled $policy.scrapers) "say" "networkPolicy.enabled and networkPolicy.scrapers must say who may read the metrics")
  (dict "name" "egress" "is" (and $policy.enabled $policy.egress) "say" "networkPolicy.enabled and networkPolicy.egress must say where the servers may connect to")
  (dict "name" "digest" "is" .Values.image.digest "say" "image.digest must name the image: a tag can be moved to another one")
-}}
{{- range $need := $needs -}}
{{- if not (or $need.is (has $need.name $.Values.hardening.waive)) -}}
{{- fail (printf "%s; or waive it: hardening.waive={%s}" $need.say $need.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The most memory that the limits of a configuration may need, in MiB: what a server at rest has, and for each
     that a limit lets in what tests/chart/memory.rs measures, and the answers and the incomplete messages that wait for
     their clients. The limits left out are the server's own. */}}
{{- define "fencepost.memoryNeeded" -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $server := $config.server | default dict -}}
{{- $kib := add 65536 (div (dig "unsent_bytes_limit" 134217728 $server | int64) 1024) -}}
{{- $each := list (list "acquire_limit" 50000 24) (list "call_limit" 10000 16) (list "stream_limit" 10000 16) (list "kept_lease_limit" 50000 1) (list "connection_limit" 10000 32) -}}
{{- range $each -}}
{{- $kib = add $kib (mul (dig (index . 0) (index . 1) $server | int64) (index . 2)) -}}
{{- end -}}
{{- range $name, $namespace := include "fencepost.namespaces" . | fromJson -}}
{{- if eq (dig "backend" "embedded" $namespace) "embedded" -}}
{{- $kib = add $kib (mul 6 (dig "embedded" "claim_limit" 200000 $namespace | int64)) -}}
{{- end -}}
{{- end -}}
{{- div (add $kib 1023) 1024 -}}
{{- end -}}

{{/* A quantity of Kubernetes in MiB, rounded down. */}}
{{- define "fencepost.mebibytes" -}}
{{- $text := toString . -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if not (and (hasKey $units $unit) (regexMatch "^[0-9]+(\\.[0-9]+)?[A-Za-z]*$" $text)) -}}
{{- fail (printf "resources.limits.memory must be a quantity such as 2Gi, not %q" $text) -}}
{{- end -}}
{{- div (mulf (trimSuffix $unit $text | float64) (get $units $unit) | int64) 1048576 -}}
{{- end -}}

{{- define "fencepost.memoryFits" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- if and $limit (not (has "memory" .Values.hardening.waive)) -}}
{{- $needed := include "fencepost.memoryNeeded" . | int64 -}}
{{- if lt (include "fencepost.mebibytes" (ternary (printf "%d" ($limit | int64)) $limit (kindIs "float64" $limit)) | int64) $needed -}}
{{- fail (printf "resources.limits.memory must be at least %dMi, which the limits in config.server and claim_limit may need, or those must be lower; or waive it: hardening.waive={memory}" $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}
