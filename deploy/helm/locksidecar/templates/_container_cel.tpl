{{/*
The sidecar in CEL, for the JSON patch of the policy: what locksidecar.container is
for app charts, made of the same settings, which here are variables. (CEL reads no JSON; hence the flat maps.)
*/}}
{{- define "locksidecar.containerCEL" -}}
Object.spec.initContainers{
  name: "locksidecar",
  image: {{ include "locksidecar.settingCEL" "image" }},
  imagePullPolicy: {{ include "locksidecar.settingCEL" "imagePullPolicy" }},
  restartPolicy: "Always",
  args: ["serve"],
  env: [
      Object.spec.initContainers.env{name: "POD_NAME", valueFrom: Object.spec.initContainers.env.valueFrom{
        fieldRef: Object.spec.initContainers.env.valueFrom.fieldRef{fieldPath: "metadata.name"}}},
      Object.spec.initContainers.env{name: "LOCKSIDECAR_SOCKET", value: "{{ include "locksidecar.socket" . }}"}
    ]
    + (variables.storeSecret == "" ? [] : [
      Object.spec.initContainers.env{name: "LOCKSIDECAR_STORE", valueFrom: Object.spec.initContainers.env.valueFrom{
        secretKeyRef: Object.spec.initContainers.env.valueFrom.secretKeyRef{
          name: variables.storeSecret, key: {{ include "locksidecar.settingCEL" "storeSecretKey" }}}}}
    ])
    + variables.envWithMemory.filter(e, !e.contains("=\u0001")).map(e, Object.spec.initContainers.env{
      name: e.substring(0, e.indexOf("=")), value: e.substring(e.indexOf("=") + 1)})
    + variables.env.filter(e, e.contains("=\u0001")).map(e, Object.spec.initContainers.env{
      name: e.substring(0, e.indexOf("=")), valueFrom: Object.spec.initContainers.env.valueFrom{
        {{- range $i, $from := list "secretKeyRef" "configMapKeyRef" }}
        ?{{ $from }}: e.split("\u0001")[1] != "{{ $from }}" ? optional.none() : optional.of(
          Object.spec.initContainers.env.valueFrom.{{ $from }}{name: e.split("\u0001")[2], key: e.split("\u0001")[3]}),
        {{- end }}
        ?fieldRef: e.split("\u0001")[1] != "fieldRef" ? optional.none() : optional.of(
          Object.spec.initContainers.env.valueFrom.fieldRef{fieldPath: e.split("\u0001")[2]})}}),
  ports: variables.port == 0 ? [] : [
    Object.spec.initContainers.ports{name: "locksidecar", containerPort: variables.port, protocol: "TCP"}],
  startupProbe: Object.spec.initContainers.startupProbe{
    exec: Object.spec.initContainers.startupProbe.exec{command: ["/locksidecar", "health", "--live"]},
    periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 60},
  ?readinessProbe: variables.readiness == "never" ? optional.none() : optional.of(
    Object.spec.initContainers.readinessProbe{
      ?httpGet: variables.port == 0 ? optional.none() : optional.of(
        Object.spec.initContainers.readinessProbe.httpGet{
          path: variables.readiness == "once" ? "/readyz?once=true" : "/readyz", port: variables.port}),
      ?exec: variables.port != 0 ? optional.none() : optional.of(
        Object.spec.initContainers.readinessProbe.exec{
          command: ["/locksidecar", "health"] + (variables.readiness == "once" ? ["--once"] : [])}),
      periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 2}),
  resources: Object.spec.initContainers.resources{
    {{- range $i, $kind := list "requests" "limits" }}
    {{- if $i }},{{ end }}
    {{ $kind }}: {
      {{- range $j, $resource := list "cpu" "memory" }}
      {{- if $j }}, {{ end -}}
      ?"{{ $resource }}": optional.ofNonZeroValue(variables.{{ $resource }}_{{ trimSuffix "s" $kind }})
      {{- end }}}
    {{- end }}},
  securityContext: Object.spec.initContainers.securityContext{
    ?runAsUser: variables.user == 0 ? optional.none() : optional.of(variables.user),
    ?runAsGroup: variables.user == 0 ? optional.none() : optional.of(variables.user),
    runAsNonRoot: true,
    readOnlyRootFilesystem: true,
    allowPrivilegeEscalation: false,
    privileged: false,
    capabilities: Object.spec.initContainers.securityContext.capabilities{drop: ["ALL"]},
    seccompProfile: Object.spec.initContainers.securityContext.seccompProfile{type: "RuntimeDefault"}},
  terminationMessagePolicy: "FallbackToLogsOnError",
  volumeMounts: [
      Object.spec.initContainers.volumeMounts{name: "locksidecar", mountPath: "{{ include "locksidecar.directory" . }}"}
    ]
    + (variables.filesSecret == "" ? [] : [
      Object.spec.initContainers.volumeMounts{name: "locksidecar-files", mountPath: "{{ include "locksidecar.files" . }}", readOnly: true}
    ])
}
{{- end -}}

{{/* The variables that the expression above needs, beside variables.p. */}}
{{- define "locksidecar.containerVariables" -}}
{{- $env := list }}
{{- range list "storeSecret" "filesSecret" "readiness" }}
- name: {{ . }}
  expression: {{ include "locksidecar.settingCEL" . | quote }}
{{- end }}
- name: mayChange
  expression: {{ printf "(%s).split(',')" (include "locksidecar.settingCEL" "overrides") | quote }}
# What annotations change. A value that is not valid is left out here, and the
# validating policy refuses it.
{{- range include "locksidecar.overrides" . | fromYamlArray }}
- name: the_{{ .name | replace "-" "_" }}
  {{- $value := printf "[variables.annotations[?'locksidecar.io/%s'].orValue('')].filter(v, '%s' in variables.mayChange && %s)" .name .name .valid }}
  {{- with .env }}
  {{- $env = append $env . }}
  expression: {{ $value | quote }}
  {{- else }}
  # The type must be plain for the server: it panics at a map's optional entry of unknown type.
  expression: {{ printf "string((%s + [%s])[0])" $value (include "locksidecar.settingCEL" .setting) | quote }}
  {{- end }}
{{- end }}
# Kubernetes' own rule, without ours: each container has equal requests and limits. (An
# API server makes limits requests where those are missing.)
- name: guaranteed
  expression: >-
    !has(object.spec.resources)
    && (object.spec.containers + variables.initContainers.filter(c, c.name != 'locksidecar')).all(c,
      has(c.resources) && has(c.resources.limits) && ['cpu', 'memory'].all(r,
        r in c.resources.limits && quantity(c.resources.limits[r]).isGreaterThan(quantity('0'))
        && (!has(c.resources.requests) || !(r in c.resources.requests)
          || quantity(c.resources.requests[r]).compareTo(quantity(c.resources.limits[r])) == 0)))
# What the pod as a whole has. The containers' own must stay within it, and there may be no
# room: the sidecar takes its part of the whole, unless the pod says otherwise.
- name: pooled
  expression: >-
    !has(object.spec.resources) ? [] : ['cpu', 'memory'].filter(r,
      (has(object.spec.resources.requests) && r in object.spec.resources.requests || has(object.spec.resources.limits) && r in object.spec.resources.limits)
      && ['request', 'limit'].all(k, variables.annotations[?'locksidecar.io/' + r + '-' + k].orValue('') == ''))
- name: the_whole_cpu_limit
  expression: "string(variables.guaranteed && variables.the_cpu_limit == '' ? {{ include "locksidecar.settingCEL" "guaranteedCpu" }} : variables.the_cpu_limit)"
- name: the_whole_memory_limit
  expression: "string(variables.guaranteed && variables.the_memory_limit == '' ? variables.the_memory_request : variables.the_memory_limit)"
{{- range list "cpu" "memory" }}
- name: {{ . }}_limit
  expression: "string('{{ . }}' in variables.pooled ? '' : variables.the_whole_{{ . }}_limit)"
- name: {{ . }}_request
  expression: "string('{{ . }}' in variables.pooled ? '' : variables.guaranteed && variables.{{ . }}_limit != '' ? variables.{{ . }}_limit : variables.the_{{ . }}_request)"
{{- end }}
- name: user
  expression: {{ printf "int('0' + %s)" (include "locksidecar.settingCEL" "runAsUser") | quote }}
- name: port
  expression: "has(object.spec.hostNetwork) && object.spec.hostNetwork ? 0 : int('0' + variables.the_http_port)"
- name: overrides
  expression: >-
    {{- range $i, $name := $env }}
    {{ if $i }}+ {{ end }}variables.the_{{ $name | trimPrefix "LOCKSIDECAR_" | lower }}.map(v, '{{ $name }}=' + v)
    {{- end }}
- name: own # variables in which the profile differs from the default one
  expression: "variables.profiles[?variables.p + 'env'].orValue('').split('\\n')"
- name: env
  expression: >-
    (variables.base['env'].split('\n').filter(e, !variables.own.exists(o, o == e.substring(0, e.indexOf('=')) || o.startsWith(e.substring(0, e.indexOf('=') + 1))))
      + variables.own.filter(e, e.contains('=')))
    .filter(e, !variables.overrides.exists(o, e.startsWith(o.substring(0, o.indexOf('=') + 1))))
    + variables.overrides
    + (variables.port == 0 ? [] : ['LOCKSIDECAR_HTTP_ADDR=:' + string(variables.port)])
- name: envWithMemory
  expression: >-
    variables.env + (variables.the_whole_memory_limit == '' || variables.env.exists(e, e.startsWith('GOMEMLIMIT=')) ? []
      : ['GOMEMLIMIT=' + string(int(quantity(variables.the_whole_memory_limit).asApproximateFloat() * 0.9 / 1048576.0)) + 'MiB'])
{{- end -}}

{{/*
Patch operations that give each of the pod's own containers the socket. A list is
made empty and then added to: the server panics at a list of objects as a value.
Argument: {list: containers or initContainers}
*/}}
{{- define "locksidecar.appPatchesCEL" -}}
{{- $list := .list -}}
{{- $of := eq $list "containers" | ternary "object.spec.containers" "variables.initContainers" -}}
{{- $type := printf "Object.spec.%s" $list -}}
{{- range $field := list "volumeMounts" "env" }}
{{- $path := printf "\"/spec/%s/\" + string(i) + \"/%s" $list $field }}
{{- $taken := eq $field "env" | ternary "x.name == \"LOCKSIDECAR_SOCKET\"" "x.mountPath.matches(\"^/+run/+locksidecar/*$\")" }}
{{- $value := eq $field "env"
      | ternary (printf "%s.env{name: \"LOCKSIDECAR_SOCKET\", value: %q}" $type (include "locksidecar.socket" $))
                (printf "%s.volumeMounts{name: \"locksidecar\", mountPath: %q, readOnly: true}" $type (include "locksidecar.directory" $)) }}
+ {{ $of }}.transformList(i, c, c.name != "locksidecar" && !has(c.{{ $field }}),
    JSONPatch{op: "add", path: {{ $path }}", value: []})
+ {{ $of }}.transformList(i, c, c.name != "locksidecar" && !(has(c.{{ $field }}) && c.{{ $field }}.exists(x, {{ $taken }})),
    JSONPatch{op: "add", path: {{ $path }}/-", value: {{ $value }}})
{{- end }}
{{- end -}}
