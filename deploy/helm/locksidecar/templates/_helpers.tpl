{{- define "locksidecar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "locksidecar.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
locksidecar.io/release: {{ include "locksidecar.fullname" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where the socket is: docs, clients and tests name these too. */}}
{{- define "locksidecar.directory" -}}/run/locksidecar{{- end -}}
{{- define "locksidecar.socket" -}}/run/locksidecar/locksidecar.sock{{- end -}}
{{- define "locksidecar.files" -}}/run/secrets/locksidecar{{- end -}}

{{/* What the annotation locksidecar.io/status says: which release has put the sidecar in. */}}
{{- define "locksidecar.status" -}}injected by {{ include "locksidecar.fullname" . }}{{- end -}}

{{/*
locksidecar.otherPolicies fails where the cluster has policies that these must not stand beside, or in place of. Another
release serves the same pods: the API server chooses who comes first, and so whose store pods get. And with another
mode, names of locks are other ones in the store. helm template and GitOps cannot look into the cluster; there the
policies refuse the pods of two releases. Argument: {root, api}
*/}}
{{- define "locksidecar.otherPolicies" -}}
{{- $own := include "locksidecar.fullname" .root -}}
{{- $values := .root.Values -}}
{{- range (lookup .api "MutatingAdmissionPolicy" "" "").items -}}
{{- $other := dig "metadata" "labels" "locksidecar.io/release" "" . -}}
{{- if and $other (ne $other $own) -}}
{{- fail (printf "\n\nThis cluster has another release of the chart, %q (helm list -A, kubectl get mutatingadmissionpolicies -L locksidecar.io/release). Both would act on the same pods, with different stores. Upgrade that one, or uninstall it first.\n" $other) -}}
{{- end -}}
{{- $mode := dig "metadata" "labels" "locksidecar.io/mode" "sidecar" . -}}
{{- if and $other (ne $mode $values.mode) (not $values.allowModeChange) -}}
{{- fail (printf "\n\nThis release has mode: %s, and mode: %s gives locks other names in the store: pods from before and after the change would not exclude each other. Stop the apps that take locks, or see to it that the names stay the same (\"One sidecar per node\" in docs/kubernetes.md), and set allowModeChange=true for this upgrade.\n" $mode $values.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The API version of MutatingAdmissionPolicy that is to be used. */}}
{{- define "locksidecar.mutatingAPI" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if .Values.injection.apiVersion -}}
{{- .Values.injection.apiVersion -}}
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1beta1
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- /* helm template knows what a cluster of this version serves by its number only */ -}}
{{- $group }}/v1
{{- else -}}
{{- fail (printf "\n\nThis cluster (Kubernetes %s) does not serve MutatingAdmissionPolicy, which puts the sidecar into pods; Kubernetes 1.36 and later do.\n- On an older cluster set injection.enabled=false and include the chart's named templates in your app's chart: see \"Older clusters\" in docs/kubernetes.md.\n- Where the chart is rendered away from its cluster set its version (helm template --kube-version 1.36), or injection.apiVersion=%s/v1.\n" .Capabilities.KubeVersion.Version $group) -}}
{{- end -}}
{{- end -}}
