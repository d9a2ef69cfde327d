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


def field_of(kind, namespace, path):
    command = ["kubectl", "get", *kind, "--namespace", namespace, "--output", f"jsonpath={path}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout if said.returncode == 0 else ""


def addresses(name, outside):
    if name in outside:
        namespace, service = outside[name].split("/")
        return field_of(["service", service], namespace, "{.status.loadBalancer.ingress[0].ip}").split()
    labels = name.removesuffix(SUFFIX).split(".")
    if not name.endswith(SUFFIX) or len(labels) != 2:
        return []
    service, namespace = labels
    address = field_of(["service", service], namespace, "{.spec.clusterIP}")
    if address != "None":
        return address.split()
    # A headless service has the addresses of its ready pods.
    slices = ["endpointslices", "--selector", f"kubernetes.io/service-name={service}"]
    return field_of(slices, namespace, "{.items[*].endpoints[?(@.conditions.ready==true)].addresses[*]}").split()


def answer(packet, find):
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    (kind,) = struct.unpack_from(">H", packet, at + 1)
    question = packet[12 : at + 5]
    found = find(".".join(labels).lower())
    # A name has only IPv4 addresses. A query of another type gets no error and no record.
    records = [struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(one) for one in found if kind == 1]
    flags = 0x8580 | (0 if found else NO_SUCH_NAME)
    return packet[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)


def main():
    listen, *names = sys.argv[1:]
    outside = dict(name.split("=") for name in names)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((listen, 53))
    while True:
        packet, client = server.recvfrom(512)
        server.sendto(answer(packet, lambda name: addresses(name, outside)), client)


main()
