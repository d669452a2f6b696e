{{/* With a client's name (at most 20) and what Kubernetes adds for a pod, it must stay below 64. */}}
{{- define "coterie.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{ $name | trunc 30 | trimSuffix "-" }}
{{- end }}

{{- define "coterie.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "coterie.labels" -}}
{{ include "coterie.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "coterie.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What server and clients have in common of a pod, beside containers and volumes; called with (list root part). */}}
{{- define "coterie.pod" -}}
{{- $root := index . 0 }}{{ $part := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A volume that outlives the pod; called with (list name storage). */}}
{{- define "coterie.claim" -}}
{{- $storage := index . 1 -}}
- metadata:
    name: {{ index . 0 }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with $storage.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ $storage.size }}
{{- end }}
