{{/*
The sidecar for app charts that bring it themselves: on clusters without
MutatingAdmissionPolicy, or by choice. Native sidecars need Kubernetes 1.29.

  {{ include "locksidecar.container" .Subcharts.locksidecar }}
  {{ include "locksidecar.container" (dict "chart" .Subcharts.locksidecar "profile" "orders" "ttl" "5s") }}

Beside "profile" the dict may have what annotations can say ("ttl", "namespace",
"log-level", "cpu-request", "cpu-limit", "memory-request", "memory-limit", "http-port"), and
"hostNetwork": true for a pod in the host's network, and "guaranteed": true for one whose
other containers all have equal requests and limits. The other templates take the
same argument.

_container_cel.tpl says the same in CEL, for the policy. A change of one is a
change of both; a test compares what they make.
*/}}

{{/* The container: the first of the pod's initContainers. */}}
{{- define "locksidecar.container" -}}
{{- $a := include "locksidecar.argument" . | fromYaml -}}
{{- $s := $a.settings -}}
name: locksidecar
image: {{ $s.image | quote }}
imagePullPolicy: {{ $s.imagePullPolicy }}
restartPolicy: Always
args: [serve]
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: LOCKSIDECAR_SOCKET
    value: {{ include "locksidecar.socket" . }}
  {{- if $s.storeSecret }}
  - name: LOCKSIDECAR_STORE
    valueFrom: {secretKeyRef: {name: {{ $s.storeSecret }}, key: {{ $s.storeSecretKey }}}}
  {{- end }}
  {{- range splitList "\n" $s.env }}
  {{- $name := splitList "=" . | first }}
  {{- if not (or (hasKey $a.env $name) (contains "=\u0001" .)) }}
  - name: {{ $name }}
    value: {{ trimPrefix (printf "%s=" $name) . | quote }}
  {{- end }}
  {{- end }}
  {{- range $name := list "LOCKSIDECAR_TTL" "LOCKSIDECAR_NAMESPACE" "LOCKSIDECAR_LOG_LEVEL" }}
  {{- with get $a.env $name }}
  - name: {{ $name }}
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- if $a.port }}
  - name: LOCKSIDECAR_HTTP_ADDR
    value: {{ printf ":%s" $a.port | quote }}
  {{- end }}
  {{- with dig "limits" "memory" "" $a.resources }}
  {{- if not (regexMatch "(?m)^GOMEMLIMIT=" $s.env) }}
  - name: GOMEMLIMIT
    value: {{ printf "%dMiB" (divf (mulf (include "locksidecar.quantity" . | float64) 0.9) 1048576.0 | int64) | quote }}
  {{- end }}
  {{- end }}
  {{- range splitList "\n" $s.env }}
  {{- if contains "=\u0001" . }}
  {{- $from := splitList "\u0001" . }}
  - name: {{ index $from 0 | trimSuffix "=" }}
    valueFrom:
      {{- if eq (index $from 1) "fieldRef" }}
      fieldRef: {fieldPath: {{ index $from 2 | quote }}}
      {{- else }}
      {{ index $from 1 }}: {name: {{ index $from 2 | quote }}, key: {{ index $from 3 | quote }}}
      {{- end }}
  {{- end }}
  {{- end }}
{{- if $a.port }}
ports:
  - {name: locksidecar, containerPort: {{ $a.port }}, protocol: TCP}
{{- end }}
startupProbe:
  exec: {command: [/locksidecar, health, --live]}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
{{- if ne $s.readiness "never" }}
readinessProbe:
  {{- $once := eq $s.readiness "once" }}
  {{- if $a.port }}
  httpGet: {path: {{ $once | ternary "/readyz?once=true" "/readyz" | quote }}, port: {{ $a.port }}}
  {{- else }}
  exec: {command: [/locksidecar, health{{ if $once }}, --once{{ end }}]}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}
resources:
  {{- toYaml $a.resources | nindent 2 }}
securityContext:
  {{- if $s.runAsUser }}
  runAsUser: {{ $s.runAsUser }}
  runAsGroup: {{ $s.runAsUser }}
  {{- end }}
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  privileged: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: locksidecar, mountPath: {{ include "locksidecar.directory" . }}}
  {{- if $s.filesSecret }}
  - {name: locksidecar-files, mountPath: {{ include "locksidecar.files" . }}, readOnly: true}
  {{- end }}
{{- end -}}

{{/* The volumes, a list: the socket's, and the sidecar's files where the profile has some. */}}
{{- define "locksidecar.volume" -}}
{{- $a := include "locksidecar.argument" . | fromYaml -}}
- name: locksidecar
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- with $a.settings.filesSecret }}
- name: locksidecar-files
  secret: {secretName: {{ . }}}
{{- end }}
{{- end -}}

{{/* The mount for each container that takes locks, a list of one. To connect to a socket a mount may be read-only. */}}
{{- define "locksidecar.volumeMount" -}}
- name: locksidecar
  mountPath: {{ include "locksidecar.directory" . }}
  readOnly: true
{{- end -}}

{{/* The variable for each container that takes locks, a list of one: clients find the socket by it. */}}
{{- define "locksidecar.env" -}}
- name: LOCKSIDECAR_SOCKET
  value: {{ include "locksidecar.socket" . }}
{{- end -}}

{{/*
locksidecar.argument is the argument of these templates in one form:
{settings, env (that wins over the settings'), port ("": none), resources}
*/}}
{{- define "locksidecar.argument" -}}
{{- $a := hasKey . "Chart" | ternary (dict "chart" .) . -}}
{{- $known := list "chart" "profile" "ttl" "namespace" "log-level" "cpu-request" "cpu-limit" "memory-request" "memory-limit" "http-port" "hostNetwork" "guaranteed" -}}
{{- range $key := keys $a -}}
{{- if not (has $key $known) -}}
{{- fail (printf "\n\nlocksidecar: the templates take no %q; they take %s.\n" $key (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if not $a.chart -}}
{{- fail "\n\nlocksidecar: the templates need the chart as their argument: .Subcharts.locksidecar, or (dict \"chart\" .Subcharts.locksidecar \"profile\" \"NAME\").\n" -}}
{{- end -}}
{{- if eq $a.chart.Values.mode "node" -}}
{{- fail "\n\nlocksidecar: the templates are for a sidecar in each pod. With mode: node, give the pod a volume of the driver: see \"One sidecar per node\" in docs/kubernetes.md.\n" -}}
{{- end -}}
{{- $profile := $a.profile | default $a.chart.Values.defaultProfile -}}
{{- $s := include "locksidecar.settings" (dict "chart" $a.chart "profile" $profile) | fromYaml -}}
{{- with $a.ttl -}}
{{- include "locksidecar.checkTTL" (dict "name" $profile "ttl" .) -}}
{{- end -}}
{{- $env := dict -}}
{{- range $key, $name := dict "ttl" "LOCKSIDECAR_TTL" "namespace" "LOCKSIDECAR_NAMESPACE" "log-level" "LOCKSIDECAR_LOG_LEVEL" -}}
{{- with get $a $key -}}
{{- $_ := set $env $name . -}}
{{- end -}}
{{- end -}}
{{- $given := dict -}}
{{- range $resource := list "cpu" "memory" -}}
{{- range $suffix := list "request" "limit" -}}
{{- $name := printf "%s-%s" $resource $suffix -}}
{{- $_ := set $given $name (get $a $name | default (get $s (printf "%ss.%s" $suffix $resource))) -}}
{{- end -}}
{{- end -}}
{{- if $a.guaranteed -}}
{{- $_ := set $given "cpu-limit" (get $given "cpu-limit" | default $s.guaranteedCpu) -}}
{{- $_ := set $given "memory-limit" (get $given "memory-limit" | default (get $given "memory-request")) -}}
{{- range $resource := list "cpu" "memory" -}}
{{- with get $given (printf "%s-limit" $resource) -}}
{{- $_ := set $given (printf "%s-request" $resource) . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $resources := dict -}}
{{- range $kind, $suffix := dict "requests" "request" "limits" "limit" -}}
{{- $of := dict -}}
{{- range $resource := list "cpu" "memory" -}}
{{- with get $given (printf "%s-%s" $resource $suffix) -}}
{{- $_ := set $of $resource . -}}
{{- end -}}
{{- end -}}
{{- with $of -}}
{{- $_ := set $resources $kind . -}}
{{- end -}}
{{- end -}}
{{- $port := "" -}}
{{- if not $a.hostNetwork -}}{{- $port = get $a "http-port" | default $s.httpPort | default "" | toString -}}{{- end -}}
{{- if eq $port "0" -}}{{- $port = "" -}}{{- end -}}
{{- toYaml (dict "settings" $s "env" $env "port" $port "resources" $resources) -}}
{{- end -}}
