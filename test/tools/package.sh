#!/usr/bin/env bash
# Makes the release archives: package.sh FOLDER
# VERSION is the core's, PLUGINS names the plugins. The same commit gives the
# same bytes: paths are trimmed, times are the commit's, owners are root.
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=$1
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$dist"
rm -f "$dist"/patchbay_*.tar.gz "$dist"/SHA256SUMS

for arch in amd64 arm64; do
	name=patchbay_${VERSION}_linux_$arch
	to=$work/$name
	install -d -m 0755 "$to" "$to/plugins"
	export CGO_ENABLED=0 GOOS=linux GOARCH=$arch
	go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o "$to/patchbay" ./core/cmd/patchbay
	for plugin in $PLUGINS; do
		version=$(cat "plugins/$plugin/VERSION")
		go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" \
			-o "$to/plugins/patchbay-dataplane-${plugin}_v$version" "./plugins/$plugin"
	done
	cp -r LICENSE README.md CHANGELOG.md config.hcl docs "$to/"
	# The pages that those link to.
	cp --parents plugins/*/README.md sdk/README.md sdk/proto/README.md examples/README.md "$to/"
	chmod -R u=rwX,go=rX "$to"
	tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu \
		-C "$work" -cf - "$name" | gzip -n -9 >"$dist/$name.tar.gz"
	echo "package: $dist/$name.tar.gz"
done
(cd "$dist" && sha256sum patchbay_*.tar.gz >SHA256SUMS)
echo "package: $dist/SHA256SUMS"
