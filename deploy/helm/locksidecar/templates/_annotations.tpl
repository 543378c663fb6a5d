{{/*
locksidecar.overrides: what annotations may change of a profile for one pod.
  name   of the annotation, after locksidecar.io/
  valid  CEL: whether the value v may be used
  means  what a value must be, for the message of who mistyped it
  env    variable of the sidecar, or
  setting  of the profile
The numbers of a ttl have few digits: CEL fails at a duration that it cannot hold, and
with it the whole policy, without a word on the annotation.
No value can have "$(", so none can make Kubernetes put in another variable.
*/}}
{{- define "locksidecar.overrides" -}}
- name: ttl
  valid: >-
    v.size() <= 32 && v.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m))+$') && duration(v) >= duration('500ms') && duration(v) <= duration('10m')
  means: "must be a duration from 500ms to 10m, such as 10s"
  env: LOCKSIDECAR_TTL
- name: namespace
  valid: >-
    v.matches('^[A-Za-z0-9]([A-Za-z0-9._:@-]{0,251}[A-Za-z0-9])?$')
  means: "must be at most 253 letters, digits and . _ : @ - with a letter or digit at both ends"
  env: LOCKSIDECAR_NAMESPACE
- name: log-level
  valid: >-
    v in ['trace', 'debug', 'info', 'warn', 'error', 'off']
  means: "must be trace, debug, info, warn, error or off"
  env: LOCKSIDECAR_LOG_LEVEL
{{- range $kind, $suffix := dict "requests" "request" "limits" "limit" }}
- name: cpu-{{ $suffix }}
  valid: >-
    v.matches('^([0-9]+m|[0-9]+([.][0-9]{1,3})?)$')
  means: "must be a quantity of CPU, such as 50m or 0.5"
  setting: {{ $kind }}.cpu
- name: memory-{{ $suffix }}
  valid: >-
    v.matches('^[0-9]+([.][0-9]+)?(k|M|G|Ki|Mi|Gi)?$')
  means: "must be a quantity of memory, such as 64Mi"
  setting: {{ $kind }}.memory
{{- end }}
- name: http-port
  valid: >-
    v.matches('^[0-9]{1,5}$') && int(v) <= 65535
  means: "must be a port, or 0 for none"
  setting: httpPort
{{- end -}}

{{/*
locksidecar.scopes: whose pods a policy is for. Each scope is a policy and a binding
of its own, so that the API server itself leaves out the others: a fault of a
policy cannot stop a pod that has nothing to do with it.
*/}}
{{- define "locksidecar.scopes" -}}
- suffix: ""
  what: pods that ask for it
  namespaces: []
  wanted: "{{ include "locksidecar.annotation" "inject" }} == 'true'"
  asked: "!({{ include "locksidecar.annotation" "inject" }} in ['', 'false']) || {{ include "locksidecar.labelled" . }}"
- suffix: "-namespaces"
  what: pods of namespaces that ask for it
  namespaces:
    - {key: locksidecar.io/inject, operator: In, values: [enabled]}
  wanted: "{{ include "locksidecar.annotation" "inject" }} == ''"
  asked: "{{ include "locksidecar.annotation" "inject" }} == ''"
{{- end -}}

{{/* Whether a pod has the annotation for yes or no as a label, which has no effect. */}}
{{- define "locksidecar.labelled" -}}
({{ include "locksidecar.annotation" "inject" }} == '' && has(object.metadata.labels) && 'locksidecar.io/inject' in object.metadata.labels)
{{- end -}}

{{/* The value of an annotation in CEL, '' without it. Conditions cannot use a policy's variables. */}}
{{- define "locksidecar.annotation" -}}
(has(object.metadata.annotations) ? object.metadata.annotations[?'locksidecar.io/{{ . }}'].orValue('') : '')
{{- end -}}

{{/* The API's picture of a static pod: the kubelet runs that from a file, whatever we change here. */}}
{{- define "locksidecar.noMirror" -}}
!(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations)
{{- end -}}

{{/* What both kinds of policies match. Ephemeral containers and changes of pods are no CREATE of a pod. */}}
{{- define "locksidecar.matchConstraints" -}}
matchPolicy: Equivalent
namespaceSelector: {}
objectSelector: {}
resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE]
    resources: [pods]
    scope: Namespaced
{{- end -}}

{{/*
Which pods a binding is for. Pods that are excluded by their labels get the sidecar all the
same when they ask for it themselves. Argument: {root, scope: {namespaces, allPods: also those that are excluded}}
*/}}
{{- define "locksidecar.matchResources" -}}
matchPolicy: Equivalent
objectSelector:
{{- if and .scope.namespaces .root.Values.injection.excludedPods (not .scope.allPods) }}
  matchExpressions:
    {{- range $key, $values := .root.Values.injection.excludedPods }}
    - {key: {{ $key | quote }}, operator: NotIn, values: {{ toJson $values }}}
    {{- end }}
{{- else }} {}
{{- end }}
namespaceSelector:
{{- $expressions := .scope.namespaces }}
{{- with .root.Values.injection.excludedNamespaces }}
{{- $expressions = append $expressions (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" .) }}
{{- end }}
{{- if $expressions }}
  matchExpressions:
    {{- toYaml $expressions | nindent 4 }}
{{- else }} {}
{{- end }}
{{- end -}}

{{/* Variables that both kinds of policies start with. */}}
{{- define "locksidecar.commonVariables" -}}
- name: annotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: initContainers
  expression: "has(object.spec.initContainers) ? object.spec.initContainers : []"
- name: profile
  expression: {{ include "locksidecar.annotation" "profile" | quote }}
{{- end -}}

{{/* Whether pods of the namespace may use the profile. A policy that has it has the setting onlyIn. */}}
{{- define "locksidecar.allowed" -}}
- name: onlyIn
  expression: {{ include "locksidecar.settingCEL" "onlyIn" | quote }}
- name: allowed
  expression: >-
    variables.onlyIn == '' || variables.onlyIn.split(',').exists(n, n == request.namespace || n.endsWith('*') && request.namespace.startsWith(n.substring(0, n.size() - 1)))
{{- end -}}

{{/*
Text of others in a message: an API server drops a message of more than 5 kB or several
lines. Argument: an expression in CEL.
*/}}
{{- define "locksidecar.shown" -}}
({{ . }}.size() > 100 ? {{ . }}.substring(0, 100) + '…' : {{ . }}).replace('\n', ' ').replace('\r', ' ')
{{- end -}}

{{/*
Pods that run elsewhere than on Linux have no use for the image. Terms of an affinity are
alternatives, so each of them must leave Linux out.
*/}}
{{- define "locksidecar.linux" -}}
{{- $terms := "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution" -}}
(!has(object.spec.os) || object.spec.os.name == 'linux') && (!has(object.spec.nodeSelector) || object.spec.nodeSelector[?'kubernetes.io/os'].orValue('linux') == 'linux') && !(has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && has({{ $terms }}) && {{ $terms }}.nodeSelectorTerms.all(t, has(t.matchExpressions) && t.matchExpressions.exists(e, e.key == 'kubernetes.io/os' && (e.operator == 'In' && !('linux' in e.values) || e.operator == 'NotIn' && 'linux' in e.values))))
{{- end -}}
