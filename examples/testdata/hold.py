"""Takes one lock and says so, and holds it until it is killed or loses it."""

import sys

import locksidecar

print("waiting", flush=True)
try:
    with locksidecar.lock(sys.argv[1]) as held:
        print(f"held {held.fence}", flush=True)
        held.lost.wait()
        held.check()
except locksidecar.LockLost as lost:
    print(f"lost {lost.lost_reason}", flush=True)
