{{/*
locksidecar.settings: a profile as a flat map of strings, the one source of what
the sidecar is like. The policies hold it as it is, under
the key or, where a profile is not like the default one, under "PROFILE.key"; the named template
locksidecar.container makes a container of it, and so does the expression of the policy
(_container_cel.tpl), key by key.

"env" has a line NAME=VALUE for each variable. A value that comes from elsewhere is
KIND, NAME and KEY, each after a character 1, which no other value has.

Argument: {chart: the chart's context, profile: NAME}
*/}}
{{- define "locksidecar.settings" -}}
{{- $v := .chart.Values -}}
{{- if not (hasKey $v.profiles .profile) -}}
{{- fail (printf "\n\nThere is no profile %q. Values know these: %s.\n" .profile (keys $v.profiles | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $own := get $v.profiles .profile | default dict -}}
{{- $p := deepCopy $v.profileDefaults -}}
{{- include "locksidecar.merge" (dict "into" $p "from" $own) -}}
{{- $store := deepCopy (hasKey $own "store" | ternary $own.store $v.profileDefaults.store) -}}
{{- $secret := $store.secret | default dict -}}
{{- $files := $store.files | default dict -}}
{{- if and $store.url $secret.name -}}
{{- fail (printf "\n\nProfile %q has store.url and store.secret, which are two ways to say one thing: keep one of them.\n" .profile) -}}
{{- end -}}
{{- if not (or $store.url $secret.name) -}}
{{- fail (printf "\n\nProfile %q has no store. Set profiles.%s.store.url, or store.secret, or profileDefaults.store for all profiles. For locks inside of each pod only, which no other pod sees, write store.url: \"embedded:\".\n" .profile .profile) -}}
{{- end -}}
{{- if and $files.password (not $files.secret) -}}
{{- fail (printf "\n\nProfile %q has store.files.password, a key, but no store.files.secret to find it in.\n" .profile) -}}
{{- end -}}
{{- $urls := list -}}
{{- with $store.url -}}{{- $urls = kindIs "slice" . | ternary . (list .) -}}{{- end -}}
{{- range $url := $urls -}}
{{- $shown := regexReplaceAll "([?&])password-file=[^&]*" $url "${1}" -}}
{{- if or (regexMatch "^[^?]*//[^?]*:[^?]+@" $shown) (regexMatch "(?i)[?&][^=&]*(passw|%)[^=&]*=" $shown) -}}
{{- fail (printf "\n\nProfile %q has a password in store.url, where everybody who may read the pod could read it: put the URL into a Secret and name that in store.secret. A password before the @ may also stand alone in a Secret that store.files names.\n" $.profile) -}}
{{- end -}}
{{- end -}}
{{- range $name := keys $p.env -}}
{{- if or (hasPrefix "LOCKSIDECAR_" $name) (eq $name "POD_NAME") -}}
{{- fail (printf "\n\nProfile %q sets %s in env: that variable is the chart's; the other keys of the profile set it.\n" $.profile $name) -}}
{{- end -}}
{{- end -}}
{{- include "locksidecar.checkProfile" (dict "name" .profile "profile" $p) -}}
{{- $out := dict -}}
{{- $image := $p.image -}}
{{- if not $image.repository -}}
{{- fail (printf "\n\nProfile %q has no image. Set profileDefaults.image.repository to where your registry has it (make image PUSH=REGISTRY/NAME:TAG puts it there). The sidecar gets the credentials of the store, so the chart names no image that somebody else could publish.\n" .profile) -}}
{{- end -}}
{{- $tag := printf ":%s" ($image.tag | default .chart.Chart.AppVersion) -}}
{{- with $image.digest -}}{{- $tag = printf "@%s" . -}}{{- end -}}
{{- $_ := set $out "image" (print $image.repository $tag) -}}
{{- $_ := set $out "imagePullPolicy" $image.pullPolicy -}}
{{- $env := list -}}
{{- if not $secret.name -}}
{{- $env = append $env (printf "LOCKSIDECAR_STORE=%s" (join " " $urls)) -}}
{{- end -}}
{{- if $files.password -}}
{{- $env = append $env (printf "LOCKSIDECAR_STORE_PASSWORD_FILE=%s/%s" (include "locksidecar.files" .) $files.password) -}}
{{- end -}}
{{- range list "ttl" "namespace" "logLevel" "logFormat" "socketMode" "drain" "lostGrace" "localTurns" "park" "deadlock" "maxSessions" "maxSessionsPerUid" "maxHolds" "maxHoldsPerUid" "maxDetachedPerUid" "maxWaiters" "maxInFlight" "maxInFlightPerUid" "maxConnections" "maxConnectionsPerUid" "maxWatchesPerUid" "maxMessageBytes" "migrate" -}}
{{- $value := include "locksidecar.text" (get $p .) -}}
{{- if $value -}}
{{- $env = append $env (printf "LOCKSIDECAR_%s=%s" (snakecase . | upper) $value) -}}
{{- end -}}
{{- end -}}
{{- /* No app is an admin unless a value says so. Where the platform chooses the user, it may give
       apps the same: then nobody is, by a number that Kubernetes gives no container. */ -}}
{{- if not $p.adminUids -}}
{{- $_ := set $p "adminUids" (list ($p.runAsUser | default 4294967294)) -}}
{{- end -}}
{{- range $key, $name := dict "allowUids" "ALLOW_UID" "allowGids" "ALLOW_GID" "adminUids" "ADMIN_UID" -}}
{{- $ids := list -}}
{{- range get $p $key | default list -}}
{{- $ids = append $ids (int64 .) -}}
{{- end -}}
{{- with $ids -}}
{{- $env = append $env (printf "LOCKSIDECAR_%s=%s" $name (join "," .)) -}}
{{- end -}}
{{- end -}}
{{- range $name := keys $p.env | sortAlpha -}}
{{- $value := get $p.env $name -}}
{{- if kindIs "map" $value -}}
{{- if ne (len $value) 1 -}}
{{- fail (printf "\n\nProfile %q takes the variable %s from %s: keep one of them.\n" $.profile $name (keys $value | sortAlpha | join " and ")) -}}
{{- end -}}
{{- range $from, $ref := $value -}}
{{- $value = printf "\x01%s\x01%s\x01%s" $from ($ref.name | default $ref.fieldPath) ($ref.key | default "") -}}
{{- end -}}
{{- end -}}
{{- $env = append $env (printf "%s=%s" $name (include "locksidecar.text" $value)) -}}
{{- end -}}
{{- $_ := set $out "env" (join "\n" $env) -}}
{{- if $secret.name -}}
{{- $_ := set $out "storeSecret" $secret.name -}}
{{- $_ := set $out "storeSecretKey" ($secret.key | default "url") -}}
{{- end -}}
{{- with $files.secret -}}
{{- $_ := set $out "filesSecret" . -}}
{{- end -}}
{{- if $p.httpPort -}}
{{- $_ := set $out "httpPort" (int $p.httpPort | toString) -}}
{{- end -}}
{{- $_ := set $out "readiness" $p.readiness -}}
{{- if $p.runAsUser -}}
{{- $_ := set $out "runAsUser" (int64 $p.runAsUser | toString) -}}
{{- end -}}
{{- range $kind := list "requests" "limits" -}}
{{- range $resource := list "cpu" "memory" -}}
{{- with get (get $p.resources $kind) $resource -}}
{{- $_ := set $out (printf "%s.%s" $kind $resource) (include "locksidecar.text" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $p.onlyIn -}}
{{- $_ := set $out "onlyIn" (join "," .) -}}
{{- end -}}
{{- with $p.overrides -}}
{{- $_ := set $out "overrides" (join "," .) -}}
{{- end -}}
{{- with $p.resources.guaranteedCpu -}}
{{- $_ := set $out "guaranteedCpu" (include "locksidecar.text" .) -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* locksidecar.cpuLimited are the profiles with a CPU limit, a list in CEL. */}}
{{- define "locksidecar.cpuLimited" -}}
{{- $limited := list -}}
{{- range $profile := keys .Values.profiles | sortAlpha -}}
{{- if hasKey (include "locksidecar.settings" (dict "chart" $ "profile" $profile) | fromYaml) "limits.cpu" -}}
{{- $limited = append $limited $profile -}}
{{- end -}}
{{- end -}}
{{- toJson $limited -}}
{{- end -}}

{{/*
locksidecar.merge puts all of one map into another. Unlike mergeOverwrite it also
takes what is false, 0 or "".
*/}}
{{- define "locksidecar.merge" -}}
{{- range $key, $value := .from -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $.into $key)) -}}
{{- include "locksidecar.merge" (dict "into" (get $.into $key) "from" $value) -}}
{{- else -}}
{{- $_ := set $.into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* locksidecar.text is a value as the sidecar reads it; a large number has no exponent. */}}
{{- define "locksidecar.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{- int64 . -}}{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{/*
locksidecar.profilesCEL are the variables by which a policy knows the profiles: base is the
default profile, a map in CEL from key to setting; profiles has what differs from there, by
"PROFILE.key", where "" is nothing and a line of "env" without "=" is a variable less. (A JSON string is also one of
CEL.) They are part of the policy, and no parameter of it, because an API server that has seen the last policy
with a ConfigMap as its parameter go, by helm uninstall, does not watch ConfigMaps
for the next one before it is restarted (kubernetes/kubernetes#130887).

Argument: {root, keys: which settings; empty: all}
*/}}
{{- define "locksidecar.profilesCEL" -}}
{{- $root := .root -}}
{{- include "locksidecar.checkDefaultProfile" $root -}}
{{- $base := include "locksidecar.settings" (dict "chart" $root "profile" $root.Values.defaultProfile) | fromYaml -}}
{{- $known := include "locksidecar.settingKeys" . | fromYamlArray -}}
{{- $all := list -}}
{{- range $profile := keys $root.Values.profiles | sortAlpha -}}
{{- $own := include "locksidecar.settings" (dict "chart" $root "profile" $profile) | fromYaml -}}
{{- range $key := $known -}}
{{- $value := get $own $key -}}
{{- $usual := get $base $key -}}
{{- if and (ne $value $usual) (eq $key "env") -}}
{{- $value = include "locksidecar.envDifference" (dict "usual" $usual "own" $value) -}}
{{- end -}}
{{- if ne (get $own $key) $usual -}}
{{- $all = append $all (printf "%s: %s" (printf "%s.%s" $profile $key | toJson) (toJson $value)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $text := join ",\n    " $all -}}
{{- if gt (len $text) 90000 -}}
{{- fail (printf "\n\nThe %d profiles take %d characters, where the API server takes no expression of more than 100000. Let the default profile, or profileDefaults, say what most of them say: only what differs counts.\n" (len $root.Values.profiles) (len $text)) -}}
{{- end -}}
- name: base
  expression: |-
    {
    {{- range $key := $known }}
      {{ toJson $key }}: {{ get $base $key | toJson }},
    {{- end }}
    }
- name: profiles # what differs from there
  expression: |-
    {{ if $all }}{ {{- $text -}} }{{ else }}{"": ""}{{ end }}
- name: p # what the profile's keys begin with
  expression: "(variables.profile == '' ? '{{ $root.Values.defaultProfile }}' : variables.profile) + '.'"
{{- end -}}

{{- define "locksidecar.checkDefaultProfile" -}}
{{- if not (hasKey .Values.profiles .Values.defaultProfile) -}}
{{- fail (printf "\n\ndefaultProfile is %q, which is not among the profiles: %s.\n" .Values.defaultProfile (keys .Values.profiles | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}

{{/* Each setting that there may be, or those that are asked for. Argument: {keys} */}}
{{- define "locksidecar.settingKeys" -}}
{{- toYaml (.keys | default (list "env" "filesSecret" "guaranteedCpu" "httpPort" "image" "imagePullPolicy" "limits.cpu" "limits.memory" "onlyIn" "overrides" "readiness" "requests.cpu" "requests.memory" "runAsUser" "storeSecret" "storeSecretKey")) -}}
{{- end -}}

{{/* Lines of one env that are not in the usual one, and the names of those that are only there. Argument: {usual, own} */}}
{{- define "locksidecar.envDifference" -}}
{{- $usual := splitList "\n" .usual -}}
{{- $own := splitList "\n" .own -}}
{{- $names := list -}}
{{- $lines := list -}}
{{- range $own -}}
{{- $names = append $names (splitList "=" . | first) -}}
{{- if not (has . $usual) -}}{{- $lines = append $lines . -}}{{- end -}}
{{- end -}}
{{- range $usual -}}
{{- $name := splitList "=" . | first -}}
{{- if not (has $name $names) -}}{{- $lines = append $lines $name -}}{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/* A setting of the pod's profile in CEL, '' without it. */}}
{{- define "locksidecar.settingCEL" -}}
variables.profiles[?variables.p + '{{ . }}'].orValue(variables.base['{{ . }}'])
{{- end -}}
