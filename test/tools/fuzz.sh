#!/usr/bin/env bash
# Runs every fuzz test of the modules for a time each: fuzz.sh TIME MODULE...
# With JSON set to a folder it writes what `go test -json` says there, for one
# summary of all tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=$1
shift

results=${JSON:-$(mktemp -d)}
[ -n "${JSON:-}" ] || trap 'rm -rf "$results"' EXIT
status=0
number=0
for module in "$@"; do
	# file names are enough to find the packages; go test -list would build all.
	while IFS= read -r line; do
		package=./$(dirname "${line%%:*}")
		name=${line#*:func }
		name=${name%%(*}
		echo "fuzz: $name in $package, for $time"
		number=$((number + 1))
		file=$results/fuzz-$number.json
		run=(go test -json -run '^$' -fuzz "^$name\$" -fuzztime "$time" -parallel 2 -timeout 0 "$package")
		if ! (cd "$module" && "${run[@]}") >"$file"; then
			# A run whose time ends at an unlucky moment fails with this and no
			# input, on a busy machine (golang/go#48591): that says nothing.
			if grep -q 'context deadline exceeded' "$file" && ! grep -q 'Failing input' "$file" &&
				(cd "$module" && "${run[@]}") >"$file"; then
				continue
			fi
			status=1
			echo "fuzz: $name failed"
			[ -n "${JSON:-}" ] || grep -o '"Output":.*' "$file"
		fi
	done < <(cd "$module" && git ls-files --cached --others --exclude-standard -- '*_test.go' |
		# The root's list also holds the files of the other modules.
		{ if [ "$module" = . ]; then grep -v -E '^(sdk|examples)/' || true; else cat; fi; } |
		xargs -r grep -H -o -E '^func Fuzz[A-Za-z0-9_]+\(' 2>/dev/null | sort)
done
exit $status
