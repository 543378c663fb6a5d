{{/* locksidecar.milliseconds of a duration such as 1m30s. */}}
{{- define "locksidecar.milliseconds" -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get (dict "ms" 1.0 "s" 1e3 "m" 6e4) $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* locksidecar.quantity is a quantity such as 128Mi or 250m as a number. */}}
{{- define "locksidecar.quantity" -}}
{{- $text := include "locksidecar.text" . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $factors := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $factors $unit) -}}
{{- end -}}

{{/* locksidecar.checkTTL is for a profile's and for that of one pod. Argument: {name, ttl} */}}
{{- define "locksidecar.checkTTL" -}}
{{- $ms := include "locksidecar.milliseconds" .ttl | float64 -}}
{{- if or (lt $ms 500.0) (gt $ms 600000.0) -}}
{{- fail (printf "\n\nProfile %q has the ttl %s: must be 500ms to 10m.\n" .name .ttl) -}}
{{- end -}}
{{- end -}}

{{/*
locksidecar.checkProfile refuses what the sidecar or Kubernetes would refuse, and a
pattern of the schema cannot say. Argument: {name, profile}
*/}}
{{- define "locksidecar.checkProfile" -}}
{{- $p := .profile -}}
{{- include "locksidecar.checkTTL" (dict "name" .name "ttl" $p.ttl) -}}
{{- if eq (include "locksidecar.milliseconds" $p.lostGrace | float64) 0.0 -}}
{{- fail (printf "\n\nProfile %q has the lostGrace %s: must be more than 0.\n" .name $p.lostGrace) -}}
{{- end -}}
{{- if gt (include "locksidecar.milliseconds" $p.park | float64) 10000.0 -}}
{{- fail (printf "\n\nProfile %q has park %s: must be 0s to 10s.\n" .name $p.park) -}}
{{- end -}}
{{- range $resource := list "cpu" "memory" -}}
{{- $request := get $p.resources.requests $resource -}}
{{- $limit := get $p.resources.limits $resource -}}
{{- if and $request $limit (gt (include "locksidecar.quantity" $request | float64) (include "locksidecar.quantity" $limit | float64)) -}}
{{- fail (printf "\n\nProfile %q requests %v of %s and has a limit of %v: the limit must not be below the request.\n" $.name $request $resource $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}
