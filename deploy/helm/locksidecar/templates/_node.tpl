{{/*
One sidecar per node (mode: node): docs/kubernetes.md says what it is, docs/design/node.md why.
*/}}
{{- define "locksidecar.nodeFolder" -}}/run/locksidecar-node{{- end -}}

{{/* That of one driver on the node; in agent and driver it is at locksidecar.nodeFolder. So no release takes the socket of another one. */}}
{{- define "locksidecar.nodeFolderOfDriver" -}}{{ include "locksidecar.nodeFolder" . }}/{{ .Values.node.driverName }}{{- end -}}

{{/* The one profile of mode: node, as locksidecar.settings, after a look at what is not possible there. */}}
{{- define "locksidecar.nodeSettings" -}}
{{- include "locksidecar.checkDefaultProfile" . -}}
{{- if ne (len .Values.profiles) 1 -}}
{{- fail (printf "\n\nmode: node has one sidecar per node, and so one profile: keep one of %s, or put the others into pods as sidecars (mode: sidecar).\n" (keys .Values.profiles | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if not .Values.node.allow -}}
{{- fail "\n\nmode: node serves nobody: set node.allow to the service accounts whose pods may take locks, such as [\"shop/*\"], or [\"*/*\"] for all.\n" -}}
{{- end -}}
{{- $s := include "locksidecar.settings" (dict "chart" . "profile" .Values.defaultProfile) | fromYaml -}}
{{- $p := deepCopy .Values.profileDefaults -}}
{{- include "locksidecar.merge" (dict "into" $p "from" (get .Values.profiles .Values.defaultProfile | default dict)) -}}
{{- range list "allowUids" "allowGids" "adminUids" -}}
{{- if get $p . -}}
{{- fail (printf "\n\nmode: node knows pods and no users: leave out %s, and say in node.allow whose pods may take locks.\n" .) -}}
{{- end -}}
{{- end -}}
{{- /* For the time of an upgrade a node has two agents. */ -}}
{{- if contains "\nLOCKSIDECAR_STORE=embedded:" (print "\n" $s.env) -}}
{{- fail "\n\nmode: node cannot use the store embedded:, because the agents that follow one another in an upgrade would each grant the same locks. Set a store that they share.\n" -}}
{{- end -}}
{{- if eq $s.readiness "never" -}}
{{- fail "\n\nmode: node cannot do with readiness: never. By it Kubernetes knows that the new agent can grant locks, before it stops the old one: set once, or always.\n" -}}
{{- end -}}
{{- if not (and $s.httpPort $s.runAsUser) -}}
{{- fail "\n\nmode: node needs httpPort, for the agent's probes, and runAsUser, whom the socket's folder is made for.\n" -}}
{{- end -}}
{{- toYaml $s -}}
{{- end -}}

{{/* How long Kubernetes gives the agent to stop: longer than it waits for apps, and for losses. */}}
{{- define "locksidecar.nodePatience" -}}
{{- $p := deepCopy .Values.profileDefaults -}}
{{- include "locksidecar.merge" (dict "into" $p "from" (get .Values.profiles .Values.defaultProfile | default dict)) -}}
{{- $ms := addf (include "locksidecar.milliseconds" $p.drain | float64) (include "locksidecar.milliseconds" $p.lostGrace | float64) -}}
{{- divf $ms 1000.0 | ceil | int | add 5 -}}
{{- end -}}

{{/*
How many connections one pod may have where the values do not say: a pod's own sidecar would give it
most of all, and one pod of many must not take that.
*/}}
{{- define "locksidecar.nodeConnections" -}}
{{- $p := deepCopy .Values.profileDefaults -}}
{{- include "locksidecar.merge" (dict "into" $p "from" (get .Values.profiles .Values.defaultProfile | default dict)) -}}
{{- $all := $p.maxConnections | default 4096 | int -}}
{{- min 64 (max 1 (div $all 4)) -}}
{{- end -}}

{{/* By which agent, driver and the pod of helm test may pull the image. */}}
{{- define "locksidecar.nodePullSecrets" -}}
{{- with .Values.node.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What the pods of agent and driver have in common. */}}
{{- define "locksidecar.nodePlace" -}}
automountServiceAccountToken: false
{{- include "locksidecar.nodePullSecrets" . }}
{{- with .Values.node.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.node.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.node.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
locksidecar.nodeGuard are validations of pods that governed namespaces have: with these rights a pod could act as any
other one, or as the agent. Without leading, doubled and empty parts a path is compared as a whole; a
folder above one of ours has it, too.
*/}}
{{- define "locksidecar.nodeGuard" -}}
{{- $agent := (include "locksidecar.nodeSettings" . | fromYaml).runAsUser | int64 -}}
- expression: "!(has(object.spec.hostPID) && object.spec.hostPID)"
  message: "pods that take locks, or are of a namespace that does, may not have hostPID: with it a pod could act as another one"
- expression: >-
    !has(object.spec.volumes) || object.spec.volumes.filter(v, has(v.hostPath)).map(v, v.hostPath.path.split('/').filter(x, x != '' && x != '.').join('/'))
    .all(p, p != '' && {{ list (include "locksidecar.nodeFolder" . | trimPrefix "/") (printf "var%s" (include "locksidecar.nodeFolder" .)) "sys/fs/cgroup" "proc" (trimPrefix "/" .Values.node.kubeletFolder) | toJson }}
      .all(q, q != p && !q.startsWith(p + '/') && !p.startsWith(q + '/')))
  message: "pods that take locks, or are of a namespace that does, may not have a hostPath that leads to {{ include "locksidecar.nodeFolder" . }}, /sys/fs/cgroup, /proc or the kubelet's folder: with it a pod could act as another one"
- expression: >-
    !(has(object.spec.securityContext) && has(object.spec.securityContext.runAsUser) && object.spec.securityContext.runAsUser == {{ $agent }})
    && (object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))
      .all(c, !(has(c.securityContext) && has(c.securityContext.runAsUser) && c.securityContext.runAsUser == {{ $agent }}))
  message: "pods that take locks, or are of a namespace that does, may not have runAsUser {{ $agent }}: that is the agent's user, and the kernel counts much of what a process may have by user"
{{- end -}}

{{/* The service account of the pod of helm test, with mode: node. It is there during the test only, and may take locks. */}}
{{- define "locksidecar.testAccount" -}}
{{ include "locksidecar.fullname" . }}-test
{{- end }}
