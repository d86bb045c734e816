#!/usr/bin/env bash
# Runs all tests of the modules, and ends with one summary of them all:
# test.sh MODULE...
#
# GOTESTSUM names the program that shows them, BUF the one that checks the
# generated code, FUZZTIME the time of one fuzz test. With CI=true a test that was
# skipped is a failure: there nothing may be missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
status=0
step() {
	local name=$1
	shift
	if ! "$@"; then
		echo "test: $name failed"
		status=1
	fi
}

race=()
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$(go env CC)" >/dev/null; then
	race=(-race)
else
	echo "test: no C compiler, so the race detector is off"
fi

before=$(git status --porcelain)

echo "test: format and vet"
step format make format
step vet make vet
if [ -x "$BUF" ]; then
	echo "test: the generated code is that of the .proto files"
	step proto-check make proto-check
else
	echo "test: buf is not built here, so the generated code is checked by make lint alone"
fi

# -count=1: many tests run programs that they have built, of which the cache of
# test results knows nothing.
for module in "$@"; do
	echo "test: module $module${race:+, race detector on}"
	file=$results/$(tr -c 'a-z0-9\n' - <<<"$module").json
	step "module $module" env -C "$module" "$GOTESTSUM" --format pkgname-and-test-fails --hide-summary all --jsonfile "$file" -- \
		"${race[@]}" -count=1 -timeout 20m ./...
done

echo "test: fuzz tests, $FUZZTIME each"
step fuzz env JSON="$results" test/tools/fuzz.sh "$FUZZTIME" "$@"

# Skipped tests, not packages without any.
skipped=$(cat "$results"/*.json | grep '"Action":"skip"' | grep -c '"Test":' || true)
if [ "$skipped" -gt 0 ] && [ "${CI:-}" = true ]; then
	echo "test: $skipped tests were skipped, and CI=true allows none"
	status=1
fi

# Others may write in a tree that somebody works in; in CI's nobody does.
if [ "${CI:-}" = true ] && [ "$(git status --porcelain)" != "$before" ]; then
	echo "test: the tests have left something in the tree:"
	git status --porcelain
	status=1
fi

echo
[ $status -eq 0 ] || echo "test: FAILED; what failed stands above and in the summary"
# The same results once more, for one summary; it is the last that is printed.
"$GOTESTSUM" --format none --raw-command -- cat "$results"/*.json || status=1
exit $status
