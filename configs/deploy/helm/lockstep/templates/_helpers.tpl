{{- define "lockstep.name" -}}
{{- if contains "lockstep" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-lockstep{{ end }}
{{- end }}

{{- define "lockstep.selector" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lockstep.labels" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The seconds of a duration such as 1h2m30s, which the schema allows with whole seconds only. */ -}}
{{- define "lockstep.seconds" -}}
{{- $seconds := 0 }}
{{- range regexFindAll "[0-9]+[hms]" . -1 }}
{{- $n := trimSuffix "h" . | trimSuffix "m" | trimSuffix "s" | int }}
{{- if hasSuffix "h" . }}{{ $n = mul $n 3600 }}{{ else if hasSuffix "m" . }}{{ $n = mul $n 60 }}{{ end }}
{{- $seconds = add $seconds $n }}
{{- end }}
{{- $seconds }}
{{- end }}
