#!/usr/bin/env bash
# Builds the Consul that the tests run, once, and prints the path of the
# program. It is kept under ~/.cache/patchbay by a hash of what it is made from;
# the first time takes about five minutes.
#
# Version 1.13.9 is the last of the MPL that builds as an ordinary Go program
# with a current Go; the folder's go.mod pins it and all it is made from.
set -euo pipefail
cd "$(dirname "$0")"

version=$(go env GOVERSION)
hash=$(cat go.mod go.sum build.sh <(echo "$version" "$(go env GOARCH)") | sha256sum | cut -c 1-16)
folder=${HOME:?}/.cache/patchbay/consul/$hash
program=$folder/consul

if [ ! -x "$program" ]; then
	mkdir -p "$folder"
	# Packages are tested side by side: one builds, the others wait for it.
	exec 9>"$folder/lock"
	flock 9
	if [ ! -x "$program" ]; then
		echo "consul: building it with $version into $folder (once, about 5 minutes)" >&2
		nice -n 19 env GOFLAGS= GOWORK=off CGO_ENABLED=0 \
			go build -mod=readonly -trimpath -ldflags '-s -w' -o "$program.new" github.com/hashicorp/consul >&2
		mv "$program.new" "$program"
	fi
fi
echo "$program"
