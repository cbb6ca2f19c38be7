#!/usr/bin/env bash
# Let this kernel start programs of another architecture, by QEMU, so that images for it can be built and run.
#   emulator.sh start arm64|amd64     installs QEMU and registers it; prints "registered" if it was not there already
#   emulator.sh stop arm64|amd64      takes the registration away again
# It holds for the whole machine. QEMU knows no seccomp filter: what isolates a training cannot be tried under it.
# Exit code 77: it cannot be had here; stderr says why.
set -euo pipefail
action=${1:?start or stop}
readonly CANNOT=77 FORMATS=/proc/sys/fs/binfmt_misc
case ${2:-} in
arm64) format=qemu-aarch64 ;;
amd64) format=qemu-x86_64 ;;
*)
    echo "usage: emulator.sh start|stop arm64|amd64" >&2
    exit 2
    ;;
esac

cannot() {
    echo "$1" >&2
    exit "$CANNOT"
}

start() {
    [ "$(id -u)" = 0 ] || cannot "registering an emulator needs root"
    [ -e "$FORMATS/register" ] || mount -t binfmt_misc binfmt_misc "$FORMATS" 2>/dev/null ||
        cannot "this kernel has no binfmt_misc"
    if [ -e "$FORMATS/$format" ]; then
        return
    fi
    command -v apt-get >/dev/null || cannot "no apt-get to install QEMU with"
    # arch-test is how mmdebstrap finds out that the emulator works
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user-static arch-test \
        >/dev/null 2>&1 || cannot "apt-get could not install qemu-user-static"
    # the kernel opens the emulator now (F), so that it works in images that do not hold it
    [ -e "$FORMATS/$format" ] || cat "/usr/lib/binfmt.d/$format.conf" >"$FORMATS/register" ||
        cannot "the kernel takes no emulator"
    echo registered
}

stop() {
    [ ! -e "$FORMATS/$format" ] || echo -1 >"$FORMATS/$format"
}

case $action in
start | stop) "$action" ;;
*)
    echo "usage: emulator.sh start|stop arm64|amd64" >&2
    exit 2
    ;;
esac
