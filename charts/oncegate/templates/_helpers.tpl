{{- define "oncegate.name" -}}
{{ .Release.Name }}-oncegate
{{- end -}}

{{- define "oncegate.selector" -}}
app.kubernetes.io/name: oncegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "oncegate.labels" -}}
{{ include "oncegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "oncegate.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - configMapRef:
      name: {{ include "oncegate.name" . }}-env
{{- if .Values.existingSecret }}
  - secretRef:
      name: {{ .Values.existingSecret }}
{{- end }}
{{- if .Values.secrets }}
  - secretRef:
      name: {{ include "oncegate.name" . }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/oncegate
    readOnly: true
{{- end -}}

{{- define "oncegate.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
automountServiceAccountToken: false
{{- if .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml .Values.imagePullSecrets | nindent 2 }}
{{- end }}
{{- if .Values.nodeSelector }}
nodeSelector:
  {{- toYaml .Values.nodeSelector | nindent 2 }}
{{- end }}
{{- if .Values.tolerations }}
tolerations:
  {{- toYaml .Values.tolerations | nindent 2 }}
{{- end }}
volumes:
  - name: config
    configMap:
      name: {{ include "oncegate.name" . }}
{{- end -}}
