#!/usr/bin/env bash
# A Docker engine of our own, for machines where none runs and nothing like systemd would start one.
#   engine.sh start FOLDER    installs it when missing, starts it, prints its DOCKER_HOST
#   engine.sh stop FOLDER     ends that engine alone, and removes what it made, FOLDER included
# Everything that it writes lies in FOLDER; socket, bridge and subnet are its own, so that another
# engine on the machine never notices. Exit code 77: this machine cannot have one; stderr says why.
set -euo pipefail
action=${1:?start or stop}
folder=${2:?a folder for the state of the engine}
readonly CANNOT=77 PACKAGES=(docker.io tini)

cannot() {
    echo "$1" >&2
    exit "$CANNOT"
}

# One folder, one bridge: a name of at most 15 characters and a subnet, both drawn from the path.
number=$(printf %s "$folder" | cksum | cut -d' ' -f1)
bridge=rgate$((number % 100000))
subnet=10.$((200 + number % 50)).$((number / 50 % 250)).1/24
socket=$folder/engine.sock

answers() {
    docker -H "unix://$socket" version >/dev/null 2>&1
}

install_packages() {
    [ "$(id -u)" = 0 ] || cannot "starting a container engine needs root"
    if ! command -v dockerd >/dev/null; then
        command -v apt-get >/dev/null || cannot "no dockerd, and no apt-get to install one with"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${PACKAGES[@]}"; } >"$folder/apt.log" 2>&1 ||
            cannot "apt-get could not install ${PACKAGES[*]}: $(tail -1 "$folder/apt.log")"
    fi
}

start() {
    mkdir -p "$folder"
    install_packages
    # one that an engine left which was killed is as good
    ip link show "$bridge" >/dev/null 2>&1 ||
        { ip link add "$bridge" type bridge && ip addr add "$subnet" dev "$bridge" && ip link set "$bridge" up; } ||
        cannot "the kernel gives no network bridge"
    setsid dockerd --bridge "$bridge" --host "unix://$socket" --pidfile "$folder/engine.pid" \
        --data-root "$folder/data" --exec-root "$folder/exec" >"$folder/engine.log" 2>&1 </dev/null &
    for _ in $(seq 100); do
        if answers; then
            echo "unix://$socket"
            return
        fi
        sleep 0.3
    done
    tail -5 "$folder/engine.log" >&2
    stop
    cannot "dockerd did not answer within 30 s"
}

# Rules that name the bridge stay in the tables when the engine ends.
forget_rules() {
    local table rule
    for table in nat filter; do
        while read -r rule; do
            # shellcheck disable=SC2086 # a rule is many words
            iptables -t "$table" -D ${rule#-A } 2>/dev/null || true
        done < <(iptables -t "$table" -S 2>/dev/null | grep -E -- "^-A .* $bridge( |\$)")
    done
}

stop() {
    local pid
    # an engine that ends waits for its containers, and they need not listen
    docker -H "unix://$socket" ps -aq 2>/dev/null | xargs -r docker -H "unix://$socket" rm -f >/dev/null || true
    pid=$(cat "$folder/engine.pid" 2>/dev/null || true)
    if [ -n "$pid" ] && kill "$pid" 2>/dev/null; then
        for _ in $(seq 200); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.2
        done
    fi
    forget_rules
    ip link del "$bridge" 2>/dev/null || true
    # an engine that was cut off in a build leaves the names of its networks mounted
    awk -v below="$folder/" 'index($2, below) == 1 { print $2 }' /proc/mounts | xargs -r umount -l
    rm -rf --one-file-system "$folder"
}

case $action in
start) start ;;
stop) stop ;;
*)
    echo "usage: engine.sh start|stop FOLDER" >&2
    exit 2
    ;;
esac
