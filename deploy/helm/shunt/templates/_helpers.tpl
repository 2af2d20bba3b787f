{{- define "shunt.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "shunt.selector" -}}
app.kubernetes.io/name: shunt
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "shunt.labels" -}}
{{ include "shunt.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: service-proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "shunt.serviceAccount" -}}
{{- default (include "shunt.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "shunt.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Where the configuration lies in the container. */}}
{{- define "shunt.configFile" -}}
{{- if .Values.existingConfigMap.name -}}
{{ .Values.existingConfigMap.mountPath }}/{{ .Values.existingConfigMap.key }}
{{- else -}}
/etc/shunt/config.yaml
{{- end -}}
{{- end -}}

{{/*
The two documents. kubelet gives a node-critical pod an oom_score_adj of -997, which can be kept
without rights, and the host's connection tracking is left alone where nobody may change it.
*/}}
{{- define "shunt.config" -}}
{{- $defaults := dict "oomScoreAdj" -997 -}}
{{- if not .Values.hostSetup.enabled -}}
{{- $none := dict "maxPerCore" 0 "min" 0 "tcpEstablishedTimeout" "0s" "tcpCloseWaitTimeout" "0s" -}}
{{- $_ := set $defaults "conntrack" $none -}}
{{- end -}}
{{- $kubeProxy := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" -}}
{{- $shunt := dict "apiVersion" "shunt.dev/v1alpha1" "kind" "ShuntConfiguration" -}}
{{ toYaml (merge $kubeProxy .Values.config.kubeProxy $defaults) }}
---
{{ toYaml (merge $shunt .Values.config.shunt) }}
{{- end -}}

{{/* "true" if sockets of pods are to be destroyed: only where socket LB serves pods at all. */}}
{{- define "shunt.entersPods" -}}
{{- if and .Values.destroyPodSockets (eq (default "all" .Values.config.shunt.socketLB) "all") -}}true{{- end -}}
{{- end -}}

{{- define "shunt.metricsAddress" -}}
{{- if .Values.metrics.bindAddress -}}
{{ .Values.metrics.bindAddress }}
{{- else if .Values.metrics.podMonitor.enabled -}}
0.0.0.0:10249
{{- else -}}
127.0.0.1:10249
{{- end -}}
{{- end -}}

{{- define "shunt.port" -}}
{{ . | splitList ":" | last }}
{{- end -}}

{{- define "shunt.securityContext" -}}
{{- if .Values.privileged -}}
privileged: true
{{- else -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add:
    - BPF
    - NET_ADMIN
    - PERFMON
    {{- if include "shunt.entersPods" . }}
    - SYS_ADMIN
    {{- end }}
    {{- range .Values.extraCapabilities }}
    - {{ . }}
    {{- end }}
{{- with .Values.appArmorProfile }}
appArmorProfile: {{- toYaml . | nindent 2 }}
{{- end }}
seccompProfile: {{- toYaml .Values.seccompProfile | nindent 2 }}
{{- end }}
readOnlyRootFilesystem: true
runAsUser: 0
{{- end -}}

{{/* What every container of ours gets from the node. */}}
{{- define "shunt.mounts" -}}
- name: bpffs
  mountPath: /host/bpf
- name: cgroup
  mountPath: /host/cgroup
  readOnly: true
{{- end -}}

{{- define "shunt.env" -}}
- name: SHUNT_BPFFS
  value: /host/bpf/shunt
- name: SHUNT_CGROUP
  value: /host/cgroup
{{- end -}}
