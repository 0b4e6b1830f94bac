#!/usr/bin/env bash
# Builds both images without a container engine's daemon, as localhost/octavo-{router,worker}:0.1.0: images.sh WORK_DIR
#
# Installs buildah, podman and runc by apt where they are missing (root, Debian 12). A minimal Debian with its own Python 3.11 stands in
# for the official base image, unless OCTAVO_BASE names an image that podman has. pip's certificates and its folder of wheels, where one
# is configured on this machine, are mounted into the build: no image or Dockerfile names them. Leaves WORK_DIR/env, to be sourced by
# whoever runs the images. WORK_DIR can be used again: then the base is not made anew.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:?WORK_DIR}
mkdir -p "$work"
work=$(cd "$work" && pwd)
base=${OCTAVO_BASE:-docker.io/library/python:3.11-slim-bookworm}
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

install_tools() {
    command -v buildah podman runc debootstrap >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends buildah podman runc conmon catatonit netavark aardvark-dns iptables iproute2 \
        debootstrap golang-github-containers-common >/dev/null
}

# Storage of its own, so that nothing else on the machine is touched. runc and cgroupfs work where no systemd runs.
write_settings() {
    cat >"$work/storage.conf" <<END
[storage]
driver = "overlay"
graphroot = "$work/root"
runroot = "$work/run"
END
    cat >"$work/containers.conf" <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
    printf 'export CONTAINERS_STORAGE_CONF=%q CONTAINERS_CONF=%q\n' "$work/storage.conf" "$work/containers.conf" >"$work/env"
    # shellcheck disable=SC1091
    source "$work/env"
}

# What pip is told on this machine it is told in the build as well: the mounts go into the array `mounts` and into WORK_DIR/mounts.
write_pip_settings() {
    local links
    links=${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}
    printf '[global]\ncert = /run/build-ca.crt\n' >"$work/pip.conf"
    mounts=("$certificates:/run/build-ca.crt:ro" "$work/pip.conf:/etc/pip.conf:ro")
    if [ -d "$links" ]; then
        printf 'find-links = /run/wheels\n' >>"$work/pip.conf"
        mounts+=("$links:/run/wheels:ro")
    fi
    printf '%s\n' "${mounts[@]}" >"$work/mounts"
}

make_base() {
    podman image exists "$base" && return
    local tree=$work/rootfs name
    debootstrap --variant=minbase --include=ca-certificates,python3.11,python3.11-venv,python3-pip bookworm "$tree" >"$work/debootstrap.log"
    rm -rf "$tree"/usr/lib/python3.11/EXTERNALLY-MANAGED "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/archives/*.deb
    for name in python python3 python3.11; do ln -sf /usr/bin/python3.11 "$tree/usr/local/bin/$name"; done
    ln -sf /usr/bin/pip3 "$tree/usr/local/bin/pip"
    tar -C "$tree" --numeric-owner -c . | podman import --quiet --change 'CMD ["python3"]' - "$base" >/dev/null
    rm -rf "$tree"
}

build() {
    local name=$1 flags=() mount
    for mount in "${mounts[@]}"; do flags+=(-v "$mount"); done
    buildah bud --pull-never --isolation chroot --network host --format docker --build-arg "BASE=$base" "${flags[@]}" \
        -f "$root/Dockerfile.$name" -t "localhost/octavo-$name:0.1.0" "$root"
}

install_tools
write_settings
write_pip_settings
make_base
build router
build worker
