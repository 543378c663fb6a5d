"""What the tests of one sidecar per node need on the node:

  node.py kubelet            the kubelet's folder
  node.py seen KUBELET UID   mounts of volumes of CSI, and files of pods, of this pod
  node.py away CONTAINER     stops the API server, kills a container, and lets the
                             API server go on 20 s later. Says when it stopped and went on"""

import os
import signal
import sys
import time

FOLDER = "/run/locksidecar-node/node.locksidecar.io"


def processes(name):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                args = f.read().split("\0")
        except OSError:
            continue
        if os.path.basename(args[0]) == name:
            yield int(pid), args


def kubelet():
    for _, args in processes("kubelet"):
        for arg, after in zip(args, args[1:]):
            if arg == "--root-dir":
                return after
            if arg.startswith("--root-dir="):
                return arg.partition("=")[2]
    return "/var/lib/kubelet"


def seen(folder, uid):
    pid = next(processes("kubelet"))[0]
    with open(f"/proc/{pid}/mountinfo") as f:
        mounts = [line for line in f if line.split()[4].startswith(f"{folder}/pods/{uid}/volumes/kubernetes.io~csi/")]
    return len(mounts), os.path.exists(f"/proc/{pid}/root{FOLDER}/pods/{uid}")


def away(container):
    import hand  # beside this one

    killed = hand.find(container)
    servers = [pid for pid, _ in processes("kube-apiserver")]
    try:
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        begin = time.time_ns()
        os.kill(killed, signal.SIGKILL)
        time.sleep(20)
        end = time.time_ns()
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    return begin, end


if __name__ == "__main__":
    said = globals()[sys.argv[1]](*sys.argv[2:])
    print(*said if isinstance(said, tuple) else (said,))
