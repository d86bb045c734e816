#!/usr/bin/env bash
# Installs the Debian packages that the tests need (or, with the argument
# bench, the benchmarks), and says what it did. Without root it installs
# nothing and says what can't run.
set -euo pipefail

# command, package, what for
needs='
gcc    gcc         the race detector
ip     iproute2    tests in network namespaces
'
if [ "${1:-}" = bench ]; then
	needs='
ip       iproute2            the network namespaces
haproxy  haproxy             the comparison
nginx    nginx-light         the comparison
/usr/lib/nginx/modules/ngx_stream_module.so  libnginx-mod-stream  the comparison
'
fi

missing=()
while read -r tool package purpose; do
	[ -n "$tool" ] || continue
	if [ -e "$tool" ] || PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null; then
		continue
	fi
	missing+=("$package")
	echo "packages: $package is not there, needed for $purpose"
done <<<"$needs"

# gcc alone does not link: the C library's headers are a package of their own,
# which gcc only recommends.
if [ "${1:-}" != bench ] && [ ! -e /usr/include/stdlib.h ]; then
	missing+=(libc6-dev)
	echo "packages: libc6-dev is not there, needed for the race detector"
fi

if [ ${#missing[@]} -eq 0 ]; then
	echo "packages: all that is needed is there, nothing installed"
elif [ "$(id -u)" -ne 0 ]; then
	echo "packages: not root, so nothing is installed; what needs ${missing[*]} can't run"
elif ! command -v apt-get >/dev/null; then
	echo "packages: no apt-get here; install by hand: ${missing[*]}"
else
	echo "packages: installing ${missing[*]} with apt-get"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	export DEBIAN_FRONTEND=noninteractive
	if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
		cat "$log" >&2
		echo "packages: apt-get could not install ${missing[*]}" >&2
		exit 1
	fi
	echo "packages: installed ${missing[*]}"
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "packages: tests that make network namespaces, or check what only root may do, can't run as $(id -un)"
fi
