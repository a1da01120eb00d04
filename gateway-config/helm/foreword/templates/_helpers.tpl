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

{{- /* Variables of the gateway's environment that come from Secrets: those of `gateway.secrets`, and the feed's key. */}}
{{- define "foreword.secrets" -}}
{{- $secrets := .Values.gateway.secrets }}
{{- if and .Values.host.feedKeySecret (not .Values.engines) }}
{{- $secrets = append $secrets (dict "env" "FOREWORD_FEED_KEY" "secret" .Values.host.feedKeySecret "key" "key") }}
{{- end }}
{{- toJson $secrets }}
{{- end }}

{{- /* The plugin's configuration; with the feed's key it follows the chart's own host, unless it says itself what engines
there are. */}}
{{- define "foreword.plugin" -}}
{{- $plugin := deepCopy .Values.gateway.plugin }}
{{- if and .Values.host.feedKeySecret (not .Values.engines) (not $plugin.engines) }}
{{- if gt (int .Values.host.replicas) 1 }}
{{- fail "host.feedKeySecret: the gateway can follow one host, and host.replicas is more; set host.replicas to 1, or leave host.feedKeySecret empty" }}
{{- end }}
{{- $feed := dict "cluster" "feed" "key_env" "FOREWORD_FEED_KEY" }}
{{- $_ := set $plugin "engines" (list (dict "name" "host" "feed" $feed)) }}
{{- end }}
{{- /* The chart's own host reads salts on all of these. */}}
{{- if and $plugin.salt (not .Values.engines) (not .Values.gateway.plugin.engines) }}
{{- $host := first (default (list (dict "name" "host")) $plugin.engines) }}
{{- $_ := set $host "salts" (list "/v1/chat/completions" "/v1/messages" "/v1/responses") }}
{{- $_ := set $plugin "engines" (list $host) }}
{{- end }}
{{- toJson $plugin }}
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
