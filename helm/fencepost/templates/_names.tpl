{{/*
Names and labels.
*/}}

{{- define "fencepost.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of everything: room is left for the longest suffix. */}}
{{- define "fencepost.fullname" -}}
{{- $name := include "fencepost.name" . -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $both | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "fencepost.headless" -}}
{{- include "fencepost.fullname" . }}-headless
{{- end -}}

{{- define "fencepost.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fencepost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fencepost.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fencepost.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fencepost.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "fencepost.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "fencepost.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The secret with the server's certificate. */}}
{{- define "fencepost.tlsSecret" -}}
{{- if .Values.tls.secretName -}}
{{ .Values.tls.secretName }}
{{- else if .Values.certificate.enabled -}}
{{ include "fencepost.fullname" . }}-tls
{{- else -}}
{{- fail "tls.secretName must name a secret, unless certificate.enabled is true" -}}
{{- end -}}
{{- end -}}

{{- define "fencepost.configDir" -}}/etc/fencepost/config{{- end -}}
{{- define "fencepost.tlsDir" -}}/etc/fencepost/tls{{- end -}}
{{- define "fencepost.clientCaDir" -}}/etc/fencepost/client-ca{{- end -}}
{{- define "fencepost.dataDir" -}}/var/lib/fencepost{{- end -}}

{{/* How those who watch are answered: http or https. */}}
{{- define "fencepost.httpScheme" -}}
{{- ternary "https" "http" (and .Values.tls.enabled .Values.tls.metrics) -}}
{{- end -}}

{{/* The lock of the test and of the notes, as namespace/name. */}}
{{- define "fencepost.testLock" -}}
{{- $namespaces := include "fencepost.namespaces" . | fromJson | keys | sortAlpha -}}
{{- $lock := .Values.test.lock | default (printf "%s/helm-test" (first $namespaces)) -}}
{{- if not (has (splitList "/" $lock | first) $namespaces) -}}
{{- fail (printf "test.lock must be in a namespace of config (%s), and %q is not" (join ", " $namespaces) $lock) -}}
{{- end -}}
{{- $lock -}}
{{- end -}}

{{/* The families of addresses that both services have. */}}
{{- define "fencepost.addressFamilies" -}}
{{- range $key := list "ipFamilyPolicy" "ipFamilies" }}
{{- with get $.Values.service $key }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end -}}
