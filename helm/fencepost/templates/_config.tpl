{{/*
The service's configuration: values.config as its TOML file, with what only the chart knows filled in.
*/}}

{{/* The configuration as JSON, whether it is given as a map or as text, for all that looks into it. */}}
{{- define "fencepost.parsed" -}}
{{- if kindIs "string" .Values.config -}}
{{- $parsed := fromToml .Values.config -}}
{{- /* Where it is no TOML, Helm puts what is wrong there. The server knows no such key. */}}
{{- with $parsed.Error -}}
{{- fail (printf "config is no TOML file: %v" .) -}}
{{- end -}}
{{- /* As the schema has it for a map. */}}
{{- $tables := pick $parsed "auth" "log" "namespaces" "tls" -}}
{{- range $name, $table := merge (deepCopy $tables) (dig "namespaces" dict (ternary $parsed dict (kindIs "map" $parsed.namespaces))) -}}
{{- if not (kindIs "map" $table) -}}
{{- fail (printf "%s in config must be a table" $name) -}}
{{- end -}}
{{- end -}}
{{- toJson $parsed -}}
{{- else -}}
{{- toJson (include "fencepost.withEtcd" . | fromJson) -}}
{{- end -}}
{{- end -}}

{{/* The configuration with the members of the chart's own etcd: of each namespace on etcd that names no endpoints, and of
     `default` where there is no namespace. */}}
{{- define "fencepost.withEtcd" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.etcd.create -}}
{{- if not $config.namespaces -}}
{{- $_ := set $config "namespaces" (dict "default" (dict "backend" "etcd" "guarantee" "cp")) -}}
{{- end -}}
{{- range $name, $namespace := $config.namespaces -}}
{{- if and $namespace (eq (dig "backend" "" $namespace) "etcd") (not (dig "etcd" "endpoints" "" $namespace)) -}}
{{- $own := dict "endpoints" (include "fencepost.etcdEndpoints" $ | fromJsonArray) -}}
{{- $_ := set $namespace "etcd" (merge (dig "etcd" dict $namespace) $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* The configuration file. It ends in a ConfigMap, which is no place for a password. */}}
{{- define "fencepost.config" -}}
{{- $file := include "fencepost.configFile" . -}}
{{- if regexMatch "://[^/\\s\"]*:[^/\\s\"]*@" $file -}}
{{- fail "config has a password in a URL, but ends in a ConfigMap: use password_file with secretFiles, or password_env with env" -}}
{{- end -}}
{{- $file -}}
{{- end -}}

{{- define "fencepost.configFile" -}}
{{- if kindIs "string" .Values.config -}}
{{ .Values.config }}
{{- else -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $instead := dict "listen" "service.grpcPort" "metrics_listen" "service.httpPort" "metrics_insecure" "tls.metrics" "data_dir" "persistence" "drain_timeout" "drainSeconds" "first_contact_timeout" "firstContactSeconds" -}}
{{- range $key, $value := $instead -}}
{{- if hasKey $config $key -}}
{{- fail (printf "config.%s is filled in by the chart: set %s, or give the whole config as text" $key $value) -}}
{{- end -}}
{{- end -}}
{{- $host := ternary "[::]" "0.0.0.0" (eq .Values.service.listenAddress "::") -}}
{{- $_ := set $config "listen" (list (printf "%s:%d" $host (int .Values.service.grpcPort))) -}}
{{- $_ := set $config "metrics_listen" (printf "%s:%d" $host (int .Values.service.httpPort)) -}}
{{- with int .Values.service.consolePort -}}
{{- if hasKey $config "console_listen" -}}
{{- fail "config.console_listen is filled in by the chart where service.consolePort is not 0" -}}
{{- end -}}
{{- $_ := set $config "console_listen" (printf "127.0.0.1:%d" .) -}}
{{- end -}}
{{- $_ := set $config "data_dir" (include "fencepost.dataDir" .) -}}
{{- $_ := set $config "drain_timeout" (printf "%ds" (int .Values.drainSeconds)) -}}
{{- $_ := set $config "first_contact_timeout" (printf "%ds" (int .Values.firstContactSeconds)) -}}
{{- if .Values.tls.enabled -}}
{{- if hasKey $config "tls" -}}
{{- fail "config.tls is filled in by the chart where tls.enabled is true: set tls.*, or give the whole config as text" -}}
{{- end -}}
{{- $files := include "fencepost.tlsDir" . -}}
{{- $tls := dict "certificate" (printf "%s/tls.crt" $files) "key" (printf "%s/tls.key" $files) "client_auth" .Values.tls.clientAuth -}}
{{- if ne .Values.tls.clientAuth "none" -}}
{{- $_ := set $tls "client_ca" (printf "%s/ca.crt" (include "fencepost.clientCaDir" .)) -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- if not .Values.tls.metrics -}}
{{- $_ := set $config "metrics_insecure" true -}}
{{- end -}}
{{- else if not (hasKey $config "insecure") -}}
{{- $_ := set $config "insecure" true -}}
{{- end -}}
{{- if $config.namespaces -}}
{{- /* A table without keys, or it would not be written. */}}
{{- $_ := set $config "namespaces" (include "fencepost.namespaces" . | fromJson) -}}
{{- end -}}
{{- include "fencepost.toml" (dict "path" "" "table" $config) | trim -}}
{{- end -}}
{{- end -}}

{{/* Whether health is for those alone who say who they are; empty: for everybody. */}}
{{- define "fencepost.healthIsClosed" -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- if eq (dig "health" "open" ($config.auth | default dict)) "closed" -}}true{{- end -}}
{{- end -}}

{{/* What of the configuration is read at the start only. Pods are replaced when it changes, for a server
     would refuse it. A server takes up namespaces that come or go, but here they count: a checksum knows no
     before, and the store of a namespace that comes would look like one that moved. So does each ttl_max over
     a Redis, of which a server refuses only one that is longer than all before: a Redis that lost its memory
     is not believed for as long. */}}
{{- define "fencepost.readAtStart" -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $stores := dict -}}
{{- range $name, $namespace := include "fencepost.namespaces" . | fromJson -}}
{{- $store := pick $namespace "backend" "embedded" "redis" "etcd" "redlock" "zookeeper" "postgres" "mysql" -}}
{{- if has $namespace.backend (list "redis" "redlock") -}}
{{- $store = merge $store (pick $namespace "ttl_max") -}}
{{- end -}}
{{- $_ := set $stores $name $store -}}
{{- end -}}
{{- $log := omit ($config.log | default dict) "level" -}}
{{- $tls := pick ($config.tls | default dict) "listeners" -}}
{{- /* Without rules, only this limits who can call the server. */}}
{{- $clientAuth := dig "client_auth" .Values.tls.clientAuth ($config.tls | default dict) -}}
{{- $required := and (not (hasKey $config "auth")) (eq $clientAuth "required") -}}
{{- $start := omit $config "auth" "log" "namespaces" "ready_namespaces" "tls" -}}
{{- toJson (dict "config" $start "log" $log "listeners" $tls "stores" $stores "auth" (hasKey $config "auth") "required" $required "tls" .Values.tls.enabled "metrics" .Values.tls.metrics "service" (list .Values.service.listenAddress .Values.service.grpcPort .Values.service.httpPort .Values.service.consolePort) "drain" .Values.drainSeconds "contact" .Values.firstContactSeconds) -}}
{{- end -}}

{{/* The namespaces, as the server has them: of an empty configuration the one that it makes itself, and a
     namespace about which nothing is said with every default. */}}
{{- define "fencepost.namespaces" -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $namespaces := dict -}}
{{- range $name, $namespace := $config.namespaces | default (dict "default" dict) -}}
{{- $_ := set $namespaces $name ($namespace | default dict) -}}
{{- end -}}
{{- toJson $namespaces -}}
{{- end -}}

{{/* The namespaces whose store grants nothing at first, because it is empty. */}}
{{- define "fencepost.quarantined" -}}
{{- $found := list -}}
{{- range $name, $namespace := include "fencepost.namespaces" . | fromJson -}}
{{- $kind := dig "backend" "embedded" $namespace -}}
{{- if and (has $kind (list "redis" "redlock")) (ne (dig $kind "on_empty_store" "quarantine" $namespace) "admit") -}}
{{- $found = append $found $name -}}
{{- end -}}
{{- end -}}
{{- join " " $found -}}
{{- end -}}

{{/* Where locks are kept: embedded or shared. */}}
{{- define "fencepost.store" -}}
{{- $found := "shared" -}}
{{- range $name, $namespace := include "fencepost.namespaces" . | fromJson -}}
{{- if eq (dig "backend" "embedded" $namespace) "embedded" -}}
{{- $found = "embedded" -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.store "auto") (ne .Values.store $found) -}}
{{- fail (printf "store is %q, but the namespaces of config use %s ones" .Values.store $found) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* A table as TOML: its keys, then the tables in it. Numbers of values are floats, so helm's own toToml
     would write 64.0 for 64. */}}
{{- define "fencepost.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .table }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "fencepost.tomlKey" $key }} = {{ include "fencepost.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $below := printf "%s%s" $path (include "fencepost.tomlKey" $key) }}

[{{ $below }}]
{{- include "fencepost.toml" (dict "path" (printf "%s." $below) "table" $value) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A key: bare where it may be. A JSON string is a TOML string. */}}
{{- define "fencepost.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}{{ . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* A value that is no table of its own. */}}
{{- define "fencepost.tomlValue" -}}
{{- if kindIs "slice" . -}}
{{- $all := list -}}
{{- range . -}}{{- $all = append $all (include "fencepost.tomlValue" .) -}}{{- end -}}
[{{ join ", " $all }}]
{{- else if kindIs "map" . -}}
{{- $all := list -}}
{{- range $key, $value := . -}}
{{- $all = append $all (printf "%s = %s" (include "fencepost.tomlKey" $key) (include "fencepost.tomlValue" $value)) -}}
{{- end -}}
{ {{- join ", " $all -}} }
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}
