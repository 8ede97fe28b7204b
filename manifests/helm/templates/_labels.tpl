{{- define "rover-kf.labels" -}}
app.kubernetes.io/name: rover-kf
app.kubernetes.io/part-of: rover-kf
{{- end }}

{{- define "rover-kf.account" -}}
- kind: ServiceAccount
  name: rover-kf-controller
  namespace: {{ .Release.Namespace }}
{{- end }}
