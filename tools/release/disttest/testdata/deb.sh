#!/bin/bash
# deb.sh PACKAGE VERSION: installs the package into a copy of this system, in a mount namespace
# of its own, and looks at what it does there.
set -euo pipefail
trap 'echo "failed in line $LINENO: $BASH_COMMAND"' ERR
package=$(realpath "$1") version=$2

top=$(mktemp -d -p "$PWD")
mount -t tmpfs none "$top"
mkdir "$top"/{upper,work,root}
root=$top/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$root"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
mkdir -p "$root/run"
mount -t tmpfs none "$root/run" # no systemd runs in it
cp "$package" "$root/package.deb"
in_root() { chroot "$root" "$@"; }
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

echo "== install"
in_root dpkg -i /package.deb
[ "$(in_root locksidecar version | cut -d' ' -f2)" = "v$version" ]
in_root id locksidecar
[ -L "$root/etc/systemd/system/multi-user.target.wants/locksidecar.service" ]
in_root dpkg --verify locksidecar
for page in usr/share/man/man1/locksidecar{,-serve,-run}.1.gz; do
	gzip -dc "$root/$page" | grep -q '^.TH LOCKSIDECAR'
done
in_root bash -c '. /usr/share/bash-completion/completions/locksidecar && complete -p locksidecar'

echo "== the unit"
unit=$root/usr/lib/systemd/system/locksidecar.service
in_root systemd-analyze verify locksidecar.service
in_root systemd-analyze security --offline=true --threshold=25 --no-pager locksidecar.service >"$top/security" || {
	cat "$top/security"
	exit 1
}
tail -n 1 "$top/security"
in_root systemd-analyze syscall-filter --no-pager @system-service @process | grep -qw pidfd_open

echo "== serve, as the unit has it"
value() { sed -n "s/^$1=//p" "$unit"; }
user=$(value User) socket=/run/$(value RuntimeDirectory)/locksidecar.sock
in_root install -d -o "$user" -g "$user" -m "$(value RuntimeDirectoryMode)" "/run/$(value RuntimeDirectory)"
[ "$(value Environment)" = "LOCKSIDECAR_SOCKET=$socket" ]
# shellcheck disable=SC2046 # the words of the command
chroot --userspec="$user:$user" "$root" env -i "$(value Environment)" $(value ExecStart) >"$top/log" 2>&1 &
sidecar=$!
trap 'kill -9 $sidecar 2>/dev/null || :' EXIT
for ((i = 0; i < 3000; i++)); do
	kill -0 $sidecar || { cat "$top/log"; exit 1; }
	if in_root locksidecar health; then break; fi # at the socket where the program looks by itself
	sleep 0.1
done
in_root locksidecar run orders/42 -- sh -c 'echo "fence $LOCKSIDECAR_FENCE"' | grep '^fence [0-9]'
kill $sidecar
wait $sidecar

echo "== remove"
echo '# ours' >>"$root/etc/default/locksidecar"
in_root dpkg --remove locksidecar
[ ! -e "$root/usr/bin/locksidecar" ]
grep -q '# ours' "$root/etc/default/locksidecar"
in_root dpkg --purge locksidecar
[ ! -e "$root/etc/default/locksidecar" ]
[ ! -L "$root/etc/systemd/system/multi-user.target.wants/locksidecar.service" ]
