"""Prints what is held, and which shards of the store do not answer: to a list, and to a watch."""

import locksidecar

with locksidecar.Client() as client:
    try:
        for lock in client.list():
            print(lock["resource"])
    except locksidecar.ListIncomplete as e:
        print("lacks", *e.missing)
    change = next(client.watch())
    print(change["kind"], *change["missingShards"])
