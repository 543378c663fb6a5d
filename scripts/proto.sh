#!/bin/sh
# Work on the API's proto files with the pinned tools of tools/proto/go.mod. No
# network is used once the tools are built.
#
#   scripts/proto.sh generate       write the Go code and openapi.json
#   scripts/proto.sh check          fail when what is generated is not what is checked in
#   scripts/proto.sh lint           buf lint, buf format
#   scripts/proto.sh breaking REF   compare with the git ref (default: main)
#   scripts/proto.sh descriptors FILE   write what other languages make stubs of, with all imports
set -eu
cd "$(dirname "$0")/.."

bin=$(pwd)/tools/proto/bin
mkdir -p "$bin"
(cd tools/proto && go build -o "$bin" tool ./protoc-gen-locksidecar-openapi)
PATH=$bin:$PATH
export PATH

generate() {
	(cd "${1:-.}" && buf generate)
}

case ${1:-} in
generate)
	generate
	;;
check)
	before=$(mktemp -d)
	trap 'rm -rf "$before"' EXIT
	cp -R api buf.yaml buf.gen.yaml "$before"
	generate "$before"
	diff -r api "$before/api" || {
		echo "api/ is not what its proto files say: run 'scripts/proto.sh generate'" >&2
		exit 1
	}
	;;
lint)
	buf lint
	buf format --diff --exit-code
	;;
breaking)
	ref=${2:-main}
	if ! git cat-file -e "$ref:buf.yaml" 2>/dev/null; then
		echo "buf breaking: $ref is not here or has no proto files, nothing to compare with"
		exit 0
	fi
	base=$(mktemp -d)
	trap 'rm -rf "$base"' EXIT
	git archive "$ref" buf.yaml api | tar -x -C "$base"
	buf breaking --against "$base"
	;;
descriptors)
	buf build --path api/locksidecar --output "$2"
	;;
*)
	sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
	exit 64
	;;
esac
