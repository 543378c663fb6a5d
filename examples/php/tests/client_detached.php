<?php

/** Locks that end by themselves, as those that are detached: what the contract does not say. */

declare(strict_types=1);

use Locksidecar\Client;

require __DIR__ . '/tools.php';

tap([
    'work that detaches its lock ends quietly' => function (): void {
        ini_set('zend.exception_ignore_args', '0');
        $client = new Client((new Sidecar())->socket);
        [$lock, $detached] = $client->hold('r', fn($lock) => [$lock, $lock->detach(60)], detachable: true);
        must($lock->released() && $lock->lost() === null, 'it is over');
        must(str_contains(fails('NOT_HOLDER', $lock->check(...))->getMessage(), 'was detached'), 'it says how');
        must(!str_contains(print_r($detached, true), $detached->handle), 'a handle is a password');
        fails('LOCK_HELD', fn() => $client->acquire('r', wait: 0));
        same($lock->fence, $client->holdAttached($detached->handle, function ($lock): int {
            $lock->check();
            return $lock->fence;
        }));
        same([], $client->get('r')['holders']);
        foreach (['attach', 'extendDetached', 'releaseDetached'] as $call) {
            $e = fails('NOT_HOLDER', fn() => $client->$call($detached->handle, ...($call === 'extendDetached' ? [60] : [])));
            $shown = array_column($e->getTrace(), 'args');
            array_walk_recursive($shown, fn($arg) => must($arg !== $detached->handle || PHP_VERSION_ID < 80200, 'a trace has it'));
        }
        fails('NOT_HOLDER', fn() => $client->attach($detached));
        same(['field' => 'handle'], fails('INVALID_REQUEST', fn() => $client->attach(''))->metadata);
        fails('INVALID_REQUEST', fn() => $client->attach("\xff"));
        fails('INVALID_REQUEST', fn() => $client->releaseDetached("\xff"));
    },

    'a handle that nobody waits for is released' => function (): void {
        $sidecar = new Sidecar(['ttl' => '1m']);
        $client = new Client($sidecar->socket);
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, fn() => throw new Interrupted());
        foreach (['silent', 'interrupted'] as $how) {
            $lock = $client->acquire($how, detachable: true);
            $sidecar->freeze();
            try {
                if ($how === 'silent') {
                    fails('SIDECAR_SILENT', fn() => $lock->detach(3600));
                } else {
                    pcntl_alarm(3);
                    $lock->detach(3600);
                    must(false, 'it is detached');
                }
            } catch (Interrupted) {
                // by the alarm
            }
            same('UNKNOWN', $lock->lost()?->lostReason());
            $sidecar->thaw();
            eventually('it is free', function () use ($client, $sidecar, $how): bool {
                $client->read();
                return $sidecar->lock($how)['holders'] === [];
            });
        }
        pcntl_async_signals(false);
        pcntl_signal(SIGALRM, SIG_DFL);
    },

    'a store that does not answer to a detach leaves nothing that could be relied on' => function (): void {
        $unavailable = ['message' => 'no answer', 'details' => [['domain' => 'locksidecar', 'reason' => 'STORE_UNAVAILABLE', 'metadata' => []]]];
        $lock = (new Client(scripted([OPENED, GRANTED, ['error' => $unavailable]])))->acquire('r', detachable: true);
        fails('STORE_UNAVAILABLE', fn() => $lock->detach(60));
        same('UNKNOWN', $lock->lost()?->lostReason());
        fails('LOCK_LOST', $lock->check(...));
    },

    'an attach that is given up leaves the lock to the next one' => function (): void {
        $sidecar = new Sidecar(['ttl' => '1m']);
        $client = new Client($sidecar->socket);
        $detached = $client->hold('r', fn($lock) => $lock->detach(3600), detachable: true);
        $sidecar->freeze();
        fails('SIDECAR_SILENT', fn() => $client->attach($detached));
        $sidecar->thaw();
        $client->hold('other', fn() => null); // what the session sent before is carried out
        fails('LOCK_HELD', fn() => $client->acquire('r', wait: 0));
        $client->holdAttached($detached, fn($lock) => $lock->check());
        $client->acquire('r', wait: 0)->release();
    },

    'what is attached ends with its handle' => function (): void {
        $granted = ['granted' => ['endsIn' => '5s', 'validFor' => '900s'] + GRANTED['granted']];
        $lock = (new Client(scripted([OPENED, $granted])))->attach('h');
        must($lock->validFor() > 0 && $lock->validFor() <= 5, "valid for {$lock->validFor()}");
    },

    'a grant that comes late ends with its maxHold, which ran before' => function (): void {
        $late = fn(string $kind, string $id, string $at, string $left): array
            => [$kind => ['lockId' => $id, 'validFor' => '900s', 'countedAt' => $at, 'endsIn' => $left] + GRANTED['granted']];
        $client = new Client(scripted([OPENED, $late('granted', 'l', '6s', '55s'), $late('extended', 'l', '11s', '95s'), $late('granted', 'over', '1s', '0s')]));
        $lock = $client->acquire('r', maxHold: 60);
        must($lock->validFor() > 0 && $lock->validFor() <= 60, "valid for {$lock->validFor()}"); // as if it had been counted in time
        $lock->extend(100);
        must($lock->validFor() > 60 && $lock->validFor() <= 105, "valid for {$lock->validFor()}");
        $over = $client->acquire('s', maxHold: 60);
        same('MAX_HOLD', fails('LOCK_LOST', $over->check(...))->lostReason());
    },
]);
