#!/usr/bin/env bash
# Creates every image that the overlay and the examples name, without a container builder and without a registry. Our
# images have the content of images/Dockerfile: programs that are built already, with the libraries and tools of this
# machine in place of a base image. The other images have the programs in SIDECARS, or busybox. Each image is an archive
# FOLDER/NAME.tar for `ctr images import`.
#
#   tests/e2e/deploy/pods/images.sh FOLDER
#
#   SIDECARS   a folder with the Go programs that the tests build: the sidecars, pod, livenessprobe, and registrar
#              in place of node-driver-registrar
#   PROGRAMS   a folder with edge-hub, edge-agent, edge-csi-driver and hostpath-driver
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../../deploy"
folder=${1:?the folder for the archives is missing}

# Copies the shared libraries of programs to their paths below a root.
with_libraries() { # root program...
    local root=$1
    shift
    ldd "$@" 2>/dev/null | sed -nE 's/^\t(.* => )?(\/[^ ]+) \(0x.*/\2/p' | sort -u | while read -r library; do
        cp --parents --dereference "$library" "$root"
    done
}

# Copies tools, which programs call by name, and their libraries to their paths below a root.
with_tools() { # root tool...
    local root=$1 tool path
    shift
    for tool in "$@"; do
        path=$(command -v "$tool")
        cp --parents --dereference "$path" "$root"
        with_libraries "$root" "$path"
    done
}

# Fills the root of an image: the folders of Debian's images, and the program, by the name of the image.
filled() { # name root
    local name=$1 root=$2
    mkdir -p "$root"/{dev,etc,proc,sys,tmp,run}
    chmod 1777 "$root/tmp"
    case $name in
        edge-hub | edge-agent | edge-csi-driver | hostpath-driver)
            strip -o "$root/$name" "$PROGRAMS/$name"
            with_libraries "$root" "$PROGRAMS/$name"
            [[ $name != hostpath-driver ]] || with_tools "$root" cp rm mount umount losetup blkid fsfreeze \
                mkfs.ext4 resize2fs e2fsck mkfs.xfs xfs_growfs
            ;;
        csi-node-driver-registrar) cp "$SIDECARS/registrar" "$root/$name" ;;
        livenessprobe | csi-*) cp "$SIDECARS/$name" "$root/$name" ;;
        pause) cp "$SIDECARS/pod" "$root/pause" ;;
        busybox)
            mkdir "$root/bin"
            cp /bin/busybox "$root/bin/busybox"
            for tool in $(/bin/busybox --list); do ln "$root/bin/busybox" "$root/bin/$tool" 2>/dev/null || true; done
            ;;
        *) echo "images.sh: unknown image $name; add its content to filled()" >&2; return 1 ;;
    esac
}

image() { # reference
    local reference=$1 name work user=0 entry digest
    name=${reference##*/}
    name=${name%:*}
    work=$folder/$name
    mkdir -p "$work"
    filled "$name" "$work/root"
    ! grep -q ":nonroot AS $name\$" images/Dockerfile || user=65532
    if [[ $name == busybox ]]; then entry='"Cmd": ["sh"]'; else entry="\"Entrypoint\": [\"/$name\"]"; fi
    tar --create --file "$work/layer.tar" --directory "$work/root" --owner 0 --group 0 --numeric-owner .
    digest=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
    cat >"$work/config.json" <<CONFIG
{"architecture": "$(go env GOARCH)", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]},
 "config": {$entry, "User": "$user", "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}}
CONFIG
    printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$reference" >"$work/manifest.json"
    tar --create --file "$folder/$name.tar" --directory "$work" manifest.json config.json layer.tar
    rm -rf "$work"
}

mkdir -p "$folder"
named=$(kubectl kustomize overlays/topology | cat - examples/*.yaml | sed -nE 's/^ *(- )?image: //p' | sort -u)
for reference in $named edge-csi.invalid/pause:1; do
    # An image without a registry is from Docker Hub.
    [[ $reference == */* ]] || reference=docker.io/library/$reference
    image "$reference"
done
