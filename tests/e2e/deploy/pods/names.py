"""A name server for the pods: resolves services of the cluster, and the hub's name that agents dial.

    names.py ADDRESS NAME=NAMESPACE/SERVICE

Each answer is from the API server, read by kubectl at that moment. NAME resolves to the address of the service's load
balancer.
"""

import socket
import struct
import subprocess
import sys

SUFFIX = ".svc.cluster.local"
NO_SUCH_NAME = 3


def field_of(service, namespace, path):
    command = ["kubectl", "get", "service", service, "--namespace", namespace, "--output", f"jsonpath={path}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout if said.returncode == 0 else ""


def address(name, outside):
    if name in outside:
        namespace, service = outside[name].split("/")
        return field_of(service, namespace, "{.status.loadBalancer.ingress[0].ip}")
    labels = name.removesuffix(SUFFIX).split(".")
    if name.endswith(SUFFIX) and len(labels) == 2:
        return field_of(labels[0], labels[1], "{.spec.clusterIP}")
    return ""


def answer(packet, find):
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    (kind,) = struct.unpack_from(">H", packet, at + 1)
    question = packet[12 : at + 5]
    found = find(".".join(labels).lower())
    # A name has only an IPv4 address. A query of another type gets no error and no record.
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
