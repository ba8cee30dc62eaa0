{{/*
What must never be rendered, each with a message that names the value.
*/}}
{{- define "fencepost.checks" -}}
{{- if eq (include "fencepost.store" .) "embedded" -}}
{{- if ne (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount must be 1 with the embedded store, not %d: each server would have locks of its own. Use a namespace on redis, redlock, etcd or zookeeper for more" (int .Values.replicaCount)) -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled must be false with the embedded store: each server would have locks of its own" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) -}}
{{- fail "autoscaling.maxReplicas must be at least autoscaling.minReplicas" -}}
{{- end -}}
{{- if and .Values.certificate.enabled (not .Values.certificate.issuerRef.name) -}}
{{- fail "certificate.issuerRef.name must name the issuer" -}}
{{- end -}}
{{- if and .Values.certificate.enabled (not .Values.tls.enabled) -}}
{{- fail "tls.enabled must be true where certificate.enabled is" -}}
{{- end -}}
{{- with include "fencepost.noGrpcProbe" . -}}
{{- if eq $.Values.probes.kind "grpc" -}}
{{- fail (printf "probes.kind must be http %s" .) -}}
{{- end -}}
{{- end -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- if and $config.auth (not .Values.tls.enabled) (not (hasKey $config "insecure")) -}}
{{- fail "tls.enabled must be true where config.auth is set, or config.insecure must say true: bearer tokens would cross the network in plain text" -}}
{{- end -}}
{{- if kindIs "string" .Values.config -}}
{{- include "fencepost.textChecks" . -}}
{{- else if and .Values.tls.enabled (ne .Values.tls.clientAuth "none") (not .Values.tls.clientCaSecret) -}}
{{- fail "tls.clientCaSecret must name the secret with the authority of clients where tls.clientAuth is not none: the issuer of the server's certificate may give a certificate with any name to others too" -}}
{{- end -}}
{{- if eq (int .Values.service.grpcPort) (int .Values.service.httpPort) -}}
{{- fail "service.httpPort must differ from service.grpcPort" -}}
{{- end -}}
{{- if has (int .Values.service.consolePort) (list (int .Values.service.grpcPort) (int .Values.service.httpPort)) -}}
{{- fail "service.consolePort must differ from service.grpcPort and service.httpPort" -}}
{{- end -}}
{{- if and (eq (include "fencepost.store" .) "shared") (le (int .Values.firstContactSeconds) (int .Values.progressDeadlineSeconds)) -}}
{{- fail (printf "firstContactSeconds must be longer than progressDeadlineSeconds (%d), not %d: a rollout whose servers reach no store would go on before it is reported as failed" (int .Values.progressDeadlineSeconds) (int .Values.firstContactSeconds)) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.metrics) (not .Values.autoscaling.targetCPUUtilizationPercentage) -}}
{{- fail "autoscaling.metrics must have an entry where autoscaling.targetCPUUtilizationPercentage is 0" -}}
{{- end -}}
{{- if and .Values.grpcRoute.enabled (not .Values.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute.parentRefs must name the Gateway where grpcRoute.enabled is true" -}}
{{- end -}}
{{- if and .Values.etcd.create (kindIs "string" .Values.config) -}}
{{- fail "etcd.create must be false with a config given as text: the chart fills in the endpoints of a map" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts must name a host where ingress.enabled is true" -}}
{{- end -}}
{{- include "fencepost.hardened" . -}}
{{- include "fencepost.memoryFits" . -}}
{{- include "fencepost.noMove" . -}}
{{- end -}}

{{/* What the chart would fill into a map must be in a text, as the pods are made for it. */}}
{{- define "fencepost.textChecks" -}}
{{- $config := include "fencepost.parsed" . | fromJson -}}
{{- $ports := dict "listen" .Values.service.grpcPort "metrics_listen" .Values.service.httpPort -}}
{{- range $key, $port := $ports -}}
{{- $found := false -}}
{{- $at := dig $key "" $config -}}
{{- range ternary $at (list $at) (kindIs "slice" $at) -}}
{{- if hasSuffix (printf ":%d" (int $port)) (toString .) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "%s of a config given as text must be at port %d, as the service has it" $key (int $port)) -}}
{{- end -}}
{{- end -}}
{{- with int .Values.service.consolePort -}}
{{- if ne (dig "console_listen" "" $config) (printf "127.0.0.1:%d" .) -}}
{{- fail (printf "console_listen of a config given as text must be \"127.0.0.1:%d\", as service.consolePort says" .) -}}
{{- end -}}
{{- end -}}
{{- $drain := printf "%ds" (int .Values.drainSeconds) -}}
{{- /* The server's own default. */}}
{{- if ne (dig "drain_timeout" "20s" $config) $drain -}}
{{- fail (printf "drain_timeout of a config given as text must be %q, as drainSeconds says: the time that a pod is given to end is computed from it" $drain) -}}
{{- end -}}
{{- $contact := printf "%ds" (int .Values.firstContactSeconds) -}}
{{- if ne (dig "first_contact_timeout" "900s" $config) $contact -}}
{{- fail (printf "first_contact_timeout of a config given as text must be %q, as firstContactSeconds says: it is compared with progressDeadlineSeconds" $contact) -}}
{{- end -}}
{{- if ne (hasKey $config "tls") .Values.tls.enabled -}}
{{- fail "tls.enabled must be true where a config given as text has a table tls, and nowhere else: it says how probes, scrapers and the test ask" -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq (dig "metrics_insecure" false $config) .Values.tls.metrics) -}}
{{- fail "tls.metrics must be false where a config given as text says metrics_insecure = true, and true elsewhere" -}}
{{- end -}}
{{- end -}}
