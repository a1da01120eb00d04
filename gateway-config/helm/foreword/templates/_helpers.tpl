{{- define "foreword.labels" -}}
app.kubernetes.io/name: foreword
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Where the gateway sends requests: the engines that are named, or the chart's own host. */}}
{{- define "foreword.engines" -}}
{{- if .Values.engines }}
{{- toJson .Values.engines }}
{{- else }}
{{- toJson (list (dict "address" (printf "%s-host.%s.svc" .Release.Name .Release.Namespace) "port" 8000)) }}
{{- end }}
{{- end }}

{{- /* What no container here needs, it must not have. */}}
{{- define "foreword.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "foreword.pod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
