{{- define "planner.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "planner.labels" -}}
app.kubernetes.io/name: planner
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "planner.selector" -}}
app.kubernetes.io/name: planner
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "planner.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "planner.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "planner.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Of every pod: nobody in particular, with nothing but what the runtime gives everyone. */}}
{{- define "planner.pod" -}}
automountServiceAccountToken: false
# Kubernetes would set PLANNER_PORT to the address of a service called planner, and that is a setting.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: data
    emptyDir: {sizeLimit: {{ .Values.worker.scratch }}}
  - name: tmp
    emptyDir: {sizeLimit: 1Gi}
  - name: store
    secret: {secretName: {{ .Values.store.secret }}, defaultMode: 0440}
{{- end -}}

{{/* Of every container. */}}
{{- define "planner.container" -}}
image: {{ include "planner.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
  - {name: store, mountPath: /run/secrets/planner, readOnly: true}
env:
  - {name: PLANNER_STORE, value: {{ .Values.store.url | quote }}}
  - {name: PLANNER_BLOBS, value: {{ .Values.store.blobs | quote }}}
  - {name: PLANNER_SANDBOX, value: {{ .Values.sandbox | quote }}}
  - {name: PGSERVICEFILE, value: /run/secrets/planner/pg_service}
  - {name: AWS_SHARED_CREDENTIALS_FILE, value: /run/secrets/planner/s3_credentials}
  {{- with .Values.otlpEndpoint }}
  - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
  {{- end }}
{{- end -}}

{{- define "planner.places" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
