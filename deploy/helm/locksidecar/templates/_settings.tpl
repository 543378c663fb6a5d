{{/*
locksidecar.settings: a profile as a flat map of strings, the one source of what
the sidecar is like. The policies hold it as it is, under
"PROFILE.key"; the named template locksidecar.container makes a container of it,
and so does the expression of the policy (_container_cel.tpl), key by key.

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
{{- $url := $store.url | default "" -}}
{{- if or (regexMatch "^[^?]*//[^?]*:[^?]+@" $url) (regexMatch "(?i)[?&][^=&]*(passw|%)[^=&]*=" $url) -}}
{{- fail (printf "\n\nProfile %q has a password in store.url, where everybody who may read the pod could read it: put the URL into a Secret and name that in store.secret. A password before the @ may also stand alone in a Secret that store.files names.\n" .profile) -}}
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
{{- $env = append $env (printf "LOCKSIDECAR_STORE=%s" $store.url) -}}
{{- end -}}
{{- if $files.password -}}
{{- $env = append $env (printf "LOCKSIDECAR_STORE_PASSWORD_FILE=%s/%s" (include "locksidecar.files" .) $files.password) -}}
{{- end -}}
{{- range list "ttl" "namespace" "logLevel" "logFormat" "socketMode" "drain" "lostGrace" "localTurns" "park" "deadlock" "maxSessions" "maxSessionsPerUid" "maxHolds" "maxHoldsPerUid" "maxWaiters" "maxConnections" "maxConnectionsPerUid" "maxWatchesPerUid" "maxMessageBytes" "migrate" -}}
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
{{- $env = append $env (printf "%s=%s" $name (include "locksidecar.text" (get $p.env $name))) -}}
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
{{- $_ := set $out "readiness" ($p.readiness | toString) -}}
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
{{- with $p.resources.guaranteedCpu -}}
{{- $_ := set $out "guaranteedCpu" (include "locksidecar.text" .) -}}
{{- end -}}
{{- toYaml $out -}}
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
locksidecar.profilesCEL is what the policy knows of profiles: a map in CEL, from
PROFILE.key to the setting. A JSON string is also one of CEL. It is part of the
policy, and no parameter of it, because an API server that has seen the last policy
with a ConfigMap as its parameter go, by helm uninstall, does not watch ConfigMaps
for the next one before it is restarted (kubernetes/kubernetes#130887).
*/}}
{{- define "locksidecar.profilesCEL" -}}
{
{{- range $profile := keys .Values.profiles | sortAlpha }}
{{- range $key, $value := include "locksidecar.settings" (dict "chart" $ "profile" $profile) | fromYaml }}
  {{ printf "%s.%s" $profile $key | toJson }}: {{ toJson $value }},
{{- end }}
{{- end }}
}
{{- end -}}
