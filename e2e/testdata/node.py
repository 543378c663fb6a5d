"""What the tests of the node's driver need in pods:

  node.py kubelet            on the node: the kubelet's folder
  node.py seen KUBELET UID   on the node: mounts of volumes of CSI, and files of pods, of this pod
  node.py away CONTAINER     on the node: stops the API server, kills a container, and lets the
                             API server go on 20 s later. Says when it stopped and went on
  node.py listen             says a word to whoever connects to the node's socket
  node.py ask                asks for the word until it has ten, and says when it had each"""

import os
import signal
import socket
import sys
import time

FOLDER = "/run/locksidecar-node"
SOCKET = "/locks/locksidecar.sock"


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


def listen():
    path = FOLDER + "/socket/locksidecar.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(path + ".new")
    os.chmod(path + ".new", 0o666)
    os.rename(path + ".new", path)
    server.listen(64)
    while True:
        connection, _ = server.accept()
        connection.sendall(b"locks")
        connection.close()


def ask():
    had = 0
    while had < 10:
        try:
            s = socket.socket(socket.AF_UNIX)
            s.connect(SOCKET)
            if s.recv(5) == b"locks":
                print(time.time_ns(), flush=True)
                had += 1
            s.close()
        except OSError as e:
            print(e, flush=True)
        time.sleep(0.2)
    time.sleep(86400)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    said = globals()[sys.argv[1]](*sys.argv[2:])
    print(*said if isinstance(said, tuple) else (said,))
