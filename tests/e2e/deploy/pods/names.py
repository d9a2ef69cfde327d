"""A name server for the pods: services of the cluster by their names, and the hub by the name that agents dial.

    names.py ADDRESS NAME=NAMESPACE/SERVICE

Whatever it says it has just asked the API server, by way of kubectl. NAME leads to where that service's load balancer is.
"""

import socket
import struct
import subprocess
import sys

SUFFIX = ".svc.cluster.local"
NO_SUCH_NAME = 3


def asked(service, namespace, path):
    command = ["kubectl", "get", "service", service, "--namespace", namespace, "--output", f"jsonpath={path}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout if said.returncode == 0 else ""


def address(name, outside):
    if name in outside:
        namespace, service = outside[name].split("/")
        return asked(service, namespace, "{.status.loadBalancer.ingress[0].ip}")
    labels = name.removesuffix(SUFFIX).split(".")
    if name.endswith(SUFFIX) and len(labels) == 2:
        return asked(labels[0], labels[1], "{.spec.clusterIP}")
    return ""


def answer(packet, find):
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    (kind,) = struct.unpack_from(">H", packet, at + 1)
    question = packet[12 : at + 5]
    found = find(".".join(labels).lower())
    # A name that has an address of version 4 alone is there, and has nothing to say to who asks for another.
    records = struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(found) if found and kind == 1 else b""
    flags = 0x8580 | (0 if found else NO_SUCH_NAME)
    return packet[:2] + struct.pack(">HHHHH", flags, 1, bool(records), 0, 0) + question + records


def main():
    listen, *names = sys.argv[1:]
    outside = dict(name.split("=") for name in names)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((listen, 53))
    while True:
        packet, client = server.recvfrom(512)
        server.sendto(answer(packet, lambda name: address(name, outside)), client)


main()
