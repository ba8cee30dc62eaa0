{{/*
The pod, the same in a Deployment and in a StatefulSet.
*/}}
{{- define "fencepost.pod" -}}
{{- $embedded := eq (include "fencepost.store" .) "embedded" -}}
metadata:
  labels:
    {{- include "fencepost.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Of what a running server cannot take up.
    checksum/read-at-start: {{ include "fencepost.readAtStart" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "fencepost.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- range $key := list "runtimeClassName" "dnsPolicy" "dnsConfig" "hostAliases" "initContainers" }}
  {{- with get $.Values $key }}
  {{- toYaml (dict $key .) | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    {{- with .Values.podSecurity.runAsUser }}
    runAsUser: {{ int64 . }}
    {{- end }}
    {{- with .Values.podSecurity.runAsGroup }}
    runAsGroup: {{ int64 . }}
    {{- end }}
    {{- with .Values.podSecurity.fsGroup }}
    fsGroup: {{ int64 . }}
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile:
      type: RuntimeDefault
  {{- /* The announcement and the drain; then cutting what is left (1 s), undoing it and closing the stores (7 s),
  namespaces that a change removed (5 s), the last spans (2 s) and the last moment (1 s). */}}
  terminationGracePeriodSeconds: {{ add (int .Values.preStopSeconds) (int .Values.drainSeconds) 17 }}
  containers:
    - name: fencepost
      image: {{ include "fencepost.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --config
        - {{ include "fencepost.configDir" . }}/fencepost.toml
        {{- with .Values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.env }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: grpc
          containerPort: {{ int .Values.service.grpcPort }}
        - name: http
          containerPort: {{ int .Values.service.httpPort }}
      securityContext:
        allowPrivilegeEscalation: false
        privileged: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        capabilities:
          drop: [ALL]
        seccompProfile:
          type: RuntimeDefault
      lifecycle:
        preStop:
          sleep:
            seconds: {{ int .Values.preStopSeconds }}
      startupProbe:
        {{- include "fencepost.probe" (dict "root" . "path" "/healthz") | nindent 8 }}
        failureThreshold: {{ max 1 (div (int .Values.probes.startupSeconds) (int .Values.probes.periodSeconds)) }}
      livenessProbe:
        {{- include "fencepost.probe" (dict "root" . "path" "/healthz") | nindent 8 }}
        failureThreshold: {{ int .Values.probes.failureThreshold }}
      readinessProbe:
        {{- include "fencepost.probe" (dict "root" . "path" "/readyz" "isReadiness" true) | nindent 8 }}
        failureThreshold: {{ int .Values.probes.failureThreshold }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: {{ include "fencepost.configDir" . }}
          readOnly: true
        {{- if $embedded }}
        - name: data
          mountPath: {{ include "fencepost.dataDir" . }}
        {{- end }}
        {{- if .Values.tls.enabled }}
        - name: tls
          mountPath: {{ include "fencepost.tlsDir" . }}
          readOnly: true
        {{- end }}
        {{- if and .Values.tls.enabled .Values.tls.clientCaSecret }}
        - name: client-ca
          mountPath: {{ include "fencepost.clientCaDir" . }}
          readOnly: true
        {{- end }}
        {{- range $index, $files := .Values.secretFiles }}
        - name: secret-{{ $index }}
          mountPath: {{ $files.mountPath }}
          readOnly: true
        {{- end }}
        {{- range $index, $files := .Values.configMapFiles }}
        - name: config-map-{{ $index }}
          mountPath: {{ $files.mountPath }}
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "fencepost.fullname" . }}
    {{- if .Values.tls.enabled }}
    - name: tls
      secret:
        secretName: {{ include "fencepost.tlsSecret" . }}
        defaultMode: 0440
    {{- end }}
    {{- if and .Values.tls.enabled .Values.tls.clientCaSecret }}
    - name: client-ca
      secret:
        secretName: {{ .Values.tls.clientCaSecret }}
        defaultMode: 0440
        # Not the authority's key.
        items:
          - key: ca.crt
            path: ca.crt
    {{- end }}
    {{- include "fencepost.secretVolumes" .Values.secretFiles | nindent 4 }}
    {{- range $index, $files := .Values.configMapFiles }}
    - name: config-map-{{ $index }}
      configMap:
        name: {{ $files.name }}
        {{- with $files.items }}
        items:
          {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "fencepost.selectorLabels" $ | fromYaml)) }}
    - {{- toYaml (merge (deepCopy .) $own) | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Why kubelets cannot ask over gRPC; empty: they can. */}}
{{- define "fencepost.noGrpcProbe" -}}
{{- if or .Values.tls.enabled (hasKey (include "fencepost.parsed" . | fromJson) "tls") -}}
with TLS: kubelets do not ask over it
{{- else if include "fencepost.healthIsClosed" . -}}
where config.auth.health is closed: kubelets cannot say who they are
{{- end -}}
{{- end -}}

{{/* How a kubelet asks. Over gRPC a server that has as many calls or connections as it may, or whose store has not served
     yet, refuses a kubelet too: it should then get no clients, but not be restarted, so only readiness is asked over
     gRPC. */}}
{{- define "fencepost.probe" -}}
{{- if and (eq .root.Values.probes.kind "grpc") .isReadiness -}}
grpc:
  port: {{ int .root.Values.service.grpcPort }}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ include "fencepost.httpScheme" .root | upper }}
{{- end }}
periodSeconds: {{ int .root.Values.probes.periodSeconds }}
timeoutSeconds: {{ int .root.Values.probes.timeoutSeconds }}
{{- end -}}

{{/* The volumes of secrets as files. */}}
{{- define "fencepost.secretVolumes" -}}
{{- range $index, $files := . }}
- name: secret-{{ $index }}
  secret:
    secretName: {{ $files.secretName }}
    defaultMode: 0440
    {{- with $files.items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- end -}}
