{{- define "foreword.labels" -}}
{{- /* Services are named after the release, and their names are stricter than Helm's. */}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) }}
{{- fail (printf "the release's name is %q: a Service's name begins with a letter and has no dots, so choose one of small letters, digits and hyphens" .Release.Name) }}
{{- end -}}
app.kubernetes.io/name: foreword
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
{{- if gt (len (default list $plugin.engines)) 1 }}
{{- fail "gateway.plugin.engines: the chart's cluster chooses among its endpoints by itself, so that one engine can be described; gateway-config/envoy/engines.yaml has a cluster that follows the filter" }}
{{- end }}
{{- $retrieval := default dict $plugin.retrieval }}
{{- $clusters := list "engine" }}
{{- if and .Values.host.feedKeySecret (not .Values.engines) }}
{{- $clusters = append $clusters "feed" }}
{{- end }}
{{- range $field, $object := dict "retrieval" $retrieval "retrieval.embedding" $retrieval.embedding "retrieval.warm_up" $retrieval.warm_up "engines[0].feed" (default dict (first (default list $plugin.engines))).feed }}
{{- with (default dict $object).cluster }}
{{- if not (has . $clusters) }}
{{- fail (printf "gateway.plugin.%s.cluster: the chart writes no cluster %q; take Envoy's configuration of gateway-config/envoy/envoy.yaml, and add it" $field .) }}
{{- end }}
{{- end }}
{{- end }}
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
