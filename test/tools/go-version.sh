#!/usr/bin/env bash
# Checks that the Go at hand is new enough for this tree, and says what to do
# where it isn't.
set -euo pipefail
cd "$(dirname "$0")/../.."

wanted=$(awk '$1 == "go" { print $2; exit }' go.mod)

fail() {
	echo "Patchbay needs Go $wanted or later; $1." >&2
	echo "Debian's own package is too old: get a current one from https://go.dev/dl/ and put its bin folder first in PATH." >&2
	exit 1
}

command -v go >/dev/null || fail "there is no go in PATH"
# Asked inside the module, so that a Go which fetches a newer one by itself
# answers with that; one that is too old fails on go.mod.
have=$(go env GOVERSION 2>/dev/null) || fail "$(cd / && go version | cut -d ' ' -f 3) can't read go.mod"
have=${have#go}
lowest=$(printf '%s\n%s\n' "$wanted" "${have%%[!0-9.]*}" | sort -V | head -n 1)
[ "$lowest" = "$wanted" ] || fail "this one is $have"
