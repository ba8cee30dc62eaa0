{{/*
What must never be rendered, each with a message that names the value.
*/}}
{{- define "fencepost.checks" -}}
{{- if eq (include "fencepost.store" .) "embedded" -}}
{{- if ne (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount must be 1 with the embedded store, not %d: each server would have locks of its own. Use a redis or etcd namespace for more" (int .Values.replicaCount)) -}}
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
{{- if and .Values.tls.enabled (eq .Values.probes.kind "grpc") -}}
{{- fail "probes.kind must be http or auto with TLS: kubelets do not ask over it" -}}
{{- end -}}
{{- if and (eq .Values.probes.kind "grpc") (include "fencepost.healthIsClosed" .) -}}
{{- fail "probes.kind must be http or auto where config.auth.health is closed: kubelets cannot say who they are" -}}
{{- end -}}
{{- if kindIs "map" .Values.config -}}
{{- if and .Values.config.auth (not .Values.tls.enabled) (not (hasKey .Values.config "insecure")) -}}
{{- fail "tls.enabled must be true where config.auth is set, or config.insecure must say true: bearer tokens would cross the network in plain text" -}}
{{- end -}}
{{- if and .Values.tls.enabled (ne .Values.tls.clientAuth "none") (not .Values.tls.clientCaSecret) -}}
{{- fail "tls.clientCaSecret must name the secret with the authority of clients where tls.clientAuth is not none: the issuer of the server's certificate may give a certificate with any name to others too" -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.service.grpcPort) (int .Values.service.httpPort) -}}
{{- fail "service.httpPort must differ from service.grpcPort" -}}
{{- end -}}
{{- end -}}
