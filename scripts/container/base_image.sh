#!/usr/bin/env bash
# An image that stands in for python:3.11-slim where no container registry can be reached: Debian's
# smallest system with its own Python, made by mmdebstrap from the package mirror that this machine uses.
#   base_image.sh NAME [ARCHITECTURE]     (ROOT_FILES=FILE keeps the root file system there, or takes it from there)
# ARCHITECTURE is amd64 or arm64. Another than this machine's needs what `emulator.sh` sets up, and a client that can
# build with BuildKit, $BUILDER or docker.
# It is for tests and never to be published: it trusts the certificate authorities of this machine.
# Exit code 77: it cannot be made here; stderr says why.
set -euo pipefail
name=${1:?a name for the image}
readonly CANNOT=77
readonly SUITE=bookworm # its Python is 3.11, as the Dockerfile's default base has it
readonly AUTHORITIES=/usr/local/share/ca-certificates

cannot() {
    echo "$1" >&2
    exit "$CANNOT"
}

native=$(dpkg --print-architecture 2>/dev/null) || cannot "no dpkg: this machine is not Debian's"
architecture=${2:-$native}

sources() {
    local file
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        if [ -s "$file" ]; then
            echo "$file"
            return
        fi
    done
    cannot "no Debian package sources on this machine"
}

# shellcheck disable=SC2016 # "$1" is for the shell of the hooks, which mmdebstrap starts
make_root_files() {
    local file=$1 hooks=()
    if ! command -v mmdebstrap >/dev/null; then
        command -v apt-get >/dev/null || cannot "no mmdebstrap, and no apt-get to install it with"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null ||
            cannot "apt-get could not install mmdebstrap"
    fi
    if compgen -G "$AUTHORITIES/*.crt" >/dev/null; then
        hooks+=(--customize-hook="copy-in $AUTHORITIES /usr/local/share"
            --customize-hook='chroot "$1" update-ca-certificates')
    fi
    # What python:slim has and Debian has not: Python's headers; pip installs into the system's Python without asking, and
    # trusts the system's authorities. Debian keeps only English manuals out by itself.
    hooks+=(--customize-hook='rm "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED'
        --customize-hook='echo "[global]
cert = /etc/ssl/certs/ca-certificates.crt" >"$1"/etc/pip.conf'
        --customize-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/usr/share/locale "$1"/var/cache/apt')
    mmdebstrap --quiet --variant=minbase --architectures="$architecture" --dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "0"' \
        --include=ca-certificates,python3,python-is-python3,python3-pip,python3-setuptools,python3-wheel,libpython3-dev \
        "${hooks[@]}" "$SUITE" "$file" "$(sources)" >&2 || cannot "mmdebstrap could not make a root file system"
}

file=${ROOT_FILES:-$(mktemp --suffix=.tar)}
[ -s "$file" ] || make_root_files "$file"
settings=('ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' 'CMD ["python3"]')
if [ "$architecture" = "$native" ]; then
    docker import --change "${settings[0]}" --change "${settings[1]}" "$file" "$name" >/dev/null
else
    # before version 23, an engine takes whatever it imports for an image of its own architecture
    context=$(mktemp -d)
    ln "$file" "$context/root.tar" 2>/dev/null || cp "$file" "$context/root.tar"
    printf '%s\n' 'FROM scratch' 'ADD root.tar /' "${settings[@]}" >"$context/Dockerfile"
    DOCKER_BUILDKIT=1 "${BUILDER:-docker}" build --quiet --platform "linux/$architecture" --tag "$name" "$context" >/dev/null
    rm -r "$context"
fi
[ -n "${ROOT_FILES:-}" ] || rm "$file"
