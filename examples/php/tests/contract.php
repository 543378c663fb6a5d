<?php

/** Runs examples/contract/*.json; its README.md says what the fields mean. */

declare(strict_types=1);

use Locksidecar\Client;
use Locksidecar\Detached;
use Locksidecar\Lock;
use Locksidecar\Pending;
use Locksidecar\SidecarError;

require __DIR__ . '/sidecars.php';

/** One run of one case. Each step is the method of its name. */
final class Run
{
    /** @var array<string, Sidecar> */
    private array $sidecars = [];
    /** @var array<string, Client> */
    private array $clients = [];
    /** @var array<string, Lock> */
    private array $holds = [];
    /** @var array<string, Pending> */
    private array $calls = [];
    /** @var array<string, Detached> */
    private array $handles = [];
    /** @var array<string, array{leaders: Generator<array<string, mixed>>, first: list<array<string, mixed>>}> */
    private array $watches = [];
    /** @var array<string, int> moments, for order */
    private array $noted = [];
    /** @var list<mixed> calls that take a lock by force */
    private array $forcing = [];

    /** @param array<string, mixed> $case */
    public function all(array $case, string $store): void
    {
        $namespace = bin2hex(random_bytes(8));
        foreach ($case['sidecars'] as $name => $flags) {
            $this->sidecars[$name] = new Sidecar(array_merge(['name' => $name, 'namespace' => $namespace], $flags), $store);
        }
        foreach ($case['clients'] as $name => $sidecar) {
            $this->clients[$name] = new Client($this->sidecars[$sidecar]->socket, $name, $case['metadata'][$name] ?? []);
            $this->clients[$name]->open();
        }
        $this->steps($case['steps']);
    }

    /** @param list<array<string, mixed>> $steps */
    private function steps(array $steps): void
    {
        foreach ($steps as $i => $step) {
            try {
                must(method_exists($this, 'step' . $step['do']), 'this runner does not know the step');
                $this->{'step' . $step['do']}($step);
            } catch (Throwable $e) {
                throw new Failed('step ' . ($i + 1) . ' ' . json_encode($step, JSON_UNESCAPED_UNICODE) . ": {$e->getMessage()}", 0, $e);
            }
        }
    }

    /** Reads what was said to all clients: one thread does for all of them. */
    private function tick(): void
    {
        foreach ($this->clients as $client) {
            $client->read();
        }
        foreach ($this->calls as $name => $call) {
            if ($call->done()) {
                $this->note("got:$name");
            }
        }
    }

    private function note(string $what): void
    {
        $this->noted[$what] ??= hrtime(true);
    }

    /** @param callable(): bool $condition */
    private function until(string $what, array $step, callable $condition): void
    {
        eventually($what, function () use ($condition): bool {
            $this->tick();
            return $condition();
        }, ($step['within'] ?? 1e3 * PATIENCE) / 1e3);
    }

    private function seconds(array $step, string $field): ?float
    {
        return isset($step[$field]) ? $step[$field] / 1e3 : null;
    }

    /** Does it; null where it failed as it must. */
    private function refused(array $step, callable $do): mixed
    {
        if (!isset($step['error'])) {
            return $do();
        }
        $e = fails($step['error'], $do);
        foreach ($step['metadata'] ?? [] as $key) {
            must(($e->metadata[$key] ?? '') !== '', "no $key in " . json_encode($e->metadata));
        }
        return null;
    }

    /** Takes what an acquire gives. @param callable(): Lock $do */
    private function granted(array $step, callable $do): void
    {
        $lock = $this->refused($step, $do);
        if ($lock === null) {
            return;
        }
        same($step['count'] ?? $lock->count(), $lock->count(), 'count');
        if (isset($step['hold'])) {
            $this->holds[$step['hold']] = $lock;
            if (!($step['unwatched'] ?? false)) {
                $lock->onLost(fn() => $this->note("lost:{$step['hold']}"));
            }
        }
    }

    private function stepAcquire(array $step): void
    {
        $options = [
            'wait' => $this->seconds($step, 'wait'), 'shared' => ($step['mode'] ?? '') === 'SHARED', 'owner' => $step['owner'] ?? null,
            'reentrant' => $step['reentrant'] ?? false, 'maxHold' => $this->seconds($step, 'maxHold'), 'limit' => $step['limit'] ?? null,
            'minHold' => $this->seconds($step, 'minHold'), 'detachable' => $step['detachable'] ?? false,
        ];
        if (isset($step['once'])) {
            $keep = $this->seconds($step['once'], 'keep');
            $options['once'] = array_filter(['keep' => $keep === null ? null : "{$keep}s", 'maxAttempts' => $step['once']['maxAttempts'] ?? null], fn($v) => $v !== null);
        }
        $what = $step['resources'] ?? $step['resource'];
        $client = $this->clients[$step['client']];
        if (isset($step['call'])) {
            $this->calls[$step['call']] = $client->begin($what, ...$options);
            return;
        }
        $this->granted($step, fn() => $client->acquire($what, ...$options));
    }

    private function stepPending(array $step): void
    {
        $this->stepPause($step);
        must(!$this->calls[$step['call']]->done(), 'it was answered');
    }

    private function stepCancel(array $step): void
    {
        $this->calls[$step['call']]->cancel();
    }

    private function stepAnswer(array $step): void
    {
        $call = $this->calls[$step['call']];
        $this->until('the answer', $step, $call->done(...));
        $this->note("got:{$step['call']}"); // where that was the first to see it
        $this->granted($step, $call->get(...));
    }

    private function stepRelease(array $step): void
    {
        if (isset($step['outcome'])) {
            $lock = $this->holds[$step['hold']];
            $end = $step['outcome'] === 'SUCCEEDED' ? $lock->succeeded(...) : $lock->failed(...);
            $this->refused($step, fn() => $end($step['note'] ?? ''));
            return;
        }
        $count = $this->refused($step, $this->holds[$step['hold']]->release(...));
        same($step['count'] ?? $count, $count, 'count');
    }

    private function stepDowngrade(array $step): void
    {
        $this->refused($step, $this->holds[$step['hold']]->downgrade(...));
    }

    /** The end of hold(). */
    private function stepDispose(array $step): void
    {
        $lock = $this->holds[$step['hold']];
        $this->refused($step, fn() => $lock->released() ? null : $lock->release());
    }

    private function stepDrop(array $step): void
    {
        unset($this->holds[$step['hold']]);
    }

    private function stepExtend(array $step): void
    {
        $this->refused($step, fn() => $this->holds[$step['hold']]->extend($this->seconds($step, 'maxHold')));
    }

    private function stepDetach(array $step): void
    {
        $lock = $this->holds[$step['hold']];
        $detached = $this->refused($step, fn() => $lock->detach($this->seconds($step, 'ttl')));
        if ($detached !== null) {
            $this->handles[$step['handle']] = $detached;
            $this->detachedAs([$lock->resource, $lock->mode(), $lock->fence], $detached, $step);
        }
    }

    private function detachedAs(array $want, Detached $detached, array $step): void
    {
        same($want, [$detached->resource, $detached->mode, $detached->fence], 'detached');
        $left = $detached->validFor();
        must($left > 0 && $left <= $this->seconds($step, 'ttl'), "valid for $left");
    }

    private function stepAttach(array $step): void
    {
        $this->granted($step, fn() => $this->clients[$step['client']]->attach($this->handles[$step['handle']]));
    }

    private function stepExtendHandle(array $step): void
    {
        $before = $this->handles[$step['handle']];
        $after = $this->refused($step, fn() => $this->clients[$step['client']]->extendDetached($before, $this->seconds($step, 'ttl')));
        if ($after !== null) {
            same($before->handle, $after->handle, 'handle');
            $this->detachedAs([$before->resource, $before->mode, $before->fence], $after, $step);
        }
    }

    private function stepReleaseHandle(array $step): void
    {
        $this->refused($step, fn() => $this->clients[$step['client']]->releaseDetached($this->handles[$step['handle']]));
    }

    private function stepSame(array $step): void
    {
        same(1, count(array_unique(array_map(fn($hold) => $this->holds[$hold]->fence, $step['holds']))), 'fences');
    }

    private function stepCheck(array $step): void
    {
        $check = $this->holds[$step['hold']]->check(...);
        if (isset($step['within'])) {
            $this->until('the check says so', $step, function () use ($check, $step): bool {
                try {
                    $check();
                } catch (SidecarError $e) {
                    return $e->reason === $step['error'];
                }
                return !isset($step['error']);
            });
        }
        $this->refused($step, $check);
    }

    private function stepSlots(array $step): void
    {
        $slots = array_map(fn($hold) => $this->holds[$hold]->slot, $step['holds']);
        sort($slots);
        same($step['are'], $slots, 'slots');
    }

    private function stepLook(array $step): void
    {
        $lock = $this->holds[$step['hold']];
        $previous = $lock->previous === null ? null : array_intersect_key($lock->previous, ['state' => 0, 'attempt' => 0, 'note' => 0]);
        $is = ['parts' => array_column($lock->parts, 'resource'), 'slot' => $lock->slot, 'attempt' => $lock->attempt ?? 0, 'previous' => $previous];
        foreach (array_intersect_key($is, $step) as $field => $value) {
            must($value == $step[$field], "$field is " . json_encode($value));
        }
        if (isset($step['lost'])) {
            same($step['lost'], $lock->lost() !== null, 'lost');
        }
        if (isset($step['validFor'])) {
            $left = 1e3 * $lock->validFor();
            must($step['validFor'][0] <= $left && $left <= $step['validFor'][1], "valid for $left ms");
        }
        same($step['mode'] ?? $lock->mode(), $lock->mode(), 'mode');
        if (isset($step['guard'])) {
            must(($lock->guard['sql'] ?? '') !== '' && $lock->guard['args'] !== [], 'there is no guard');
        }
    }

    private function stepLost(array $step): void
    {
        $lock = $this->holds[$step['hold']];
        $this->until('the loss', $step, fn() => $lock->lost() !== null);
        same($step['reason'], $lock->lost()->lostReason(), 'reason');
        same(0.0, $lock->validFor(), 'validFor');
    }

    private function stepRising(array $step): void
    {
        $fences = array_map(fn($hold) => $this->holds[$hold]->fence, $step['holds']);
        $sorted = array_unique($fences);
        sort($sorted);
        same($sorted, $fences, 'fences');
    }

    private function stepOrder(array $step): void
    {
        must($this->noted[$step['first']] < $this->noted[$step['then']], json_encode($this->noted));
    }

    private function stepClose(array $step): void
    {
        $this->clients[$step['client']]->close();
    }

    private function stepOpen(array $step): void
    {
        $this->refused($step, $this->clients[$step['client']]->open(...));
    }

    private function stepDraining(array $step): void
    {
        $this->until('it drains', $step, $this->clients[$step['client']]->draining(...));
    }

    private function stepTerminate(array $step): void
    {
        $this->sidecars[$step['sidecar']]->terminate();
    }

    private function stepEnded(array $step): void
    {
        $this->until('it ends', $step, fn() => !$this->sidecars[$step['sidecar']]->running());
    }

    private function stepFork(array $step): void
    {
        $file = tempnam(sys_get_temp_dir(), 'ls-');
        if (($pid = pcntl_fork()) === 0) {
            try {
                $this->steps($step['steps']);
                file_put_contents($file, 'good');
            } catch (Throwable $e) {
                file_put_contents($file, (string) $e);
            }
            posix_kill(getmypid(), SIGKILL); // without any clean-up
        }
        pcntl_waitpid($pid, $status);
        $said = file_get_contents($file);
        unlink($file);
        same('good', $said, 'the child');
    }

    /** All of this process stands still. */
    private function stepStop(array $step): void
    {
        $pid = getmypid();
        $stops = proc_open("sleep 0.2; kill -STOP $pid; sleep {$this->seconds($step, 'time')}; kill -CONT $pid", [], $pipes);
        while (isset($step['hold']) && proc_get_status($stops)['running']) {
            $this->holds[$step['hold']]->check();
        }
        proc_close($stops);
    }

    private function stepFreeze(array $step): void
    {
        $this->sidecars[$step['sidecar']]->freeze();
    }

    private function stepThaw(array $step): void
    {
        $this->sidecars[$step['sidecar']]->thaw();
    }

    private function stepKill(array $step): void
    {
        $this->sidecars[$step['sidecar']]->kill();
    }

    private function stepStart(array $step): void
    {
        $this->sidecars[$step['sidecar']]->start();
    }

    private function stepForce(array $step): void
    {
        $this->forcing[] = $this->sidecars[$step['sidecar']]->request('DELETE', Sidecar::path($step['resource']) . "?grace={$this->seconds($step, 'grace')}s");
    }

    private function stepQueue(array $step): void
    {
        $this->until('the queue', $step, function () use ($step, &$lock): bool {
            $lock = $this->sidecars[$step['sidecar']]->lock($step['resource']);
            return count($lock['holders']) === $step['holders'] && count($lock['waiters']) === $step['waiters'];
        });
        foreach ($step['owners'] ?? [] as $i => $want) {
            $owner = $lock['holders'][$i]['owner'];
            must($want === '*' ? $owner !== '' : $owner === $want, "the owner is $owner");
        }
    }

    private function stepLeader(array $step): void
    {
        $client = $this->clients[$step['client']];
        $this->until('the leader', $step + ['within' => 0], fn() => $this->leads($step, $client->leader($step['resource'])));
    }

    private function leads(array $step, array $leader): bool
    {
        $is = [$leader['leads'], isset($leader['holder']), $leader['value']];
        return $is === [isset($step['value']), isset($step['value']), $step['value'] ?? '']
            && (!isset($step['hold']) || (int) $leader['holder']['fence'] === $this->holds[$step['hold']]->fence)
            && $leader['candidates'] === ($step['candidates'] ?? $leader['candidates']);
    }

    private function stepWatchLeader(array $step): void
    {
        $leaders = $this->clients[$step['client']]->watchLeader($step['resource'], $step['interval'] / 1e3);
        $this->watches[$step['watch']] = ['leaders' => $leaders, 'first' => [$leaders->current()]];
    }

    /** Nothing else runs while the watch is read; an alarm ends that in time. */
    private function stepTold(array $step): void
    {
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, fn() => throw new Failed('it was not told in time'));
        pcntl_alarm((int) ceil($step['within'] / 1e3));
        try {
            for ($said = null; $said === null || !$this->leads($step, $said);) {
                $said = array_shift($this->watches[$step['watch']]['first']) ?? $this->next($this->watches[$step['watch']]['leaders']);
            }
        } finally {
            pcntl_alarm(0);
            pcntl_async_signals(false);
        }
    }

    private function next(Generator $leaders): array
    {
        $leaders->next();
        return $leaders->current();
    }

    private function stepPause(array $step): void
    {
        for ($end = hrtime(true) + 1e6 * $step['time']; hrtime(true) < $end; usleep(5000)) {
            $this->tick();
        }
    }
}

$tests = [];
foreach (glob(__DIR__ . '/../../contract/*.json') as $file) {
    $case = json_decode(file_get_contents($file), true, flags: JSON_THROW_ON_ERROR);
    $stores = match ($case['store'] ?? 'any') {
        'any' => array_slice(stores() + ['embedded' => 'embedded:'], 0, 1),
        'shared' => stores(),
        'mysql' => array_intersect_key(stores(), ['mysql' => true]),
    };
    if (array_diff($case['needs'] ?? [], ['fork', 'stop', 'detach', 'unread']) !== []) {
        $tests[basename($file)] = fn() => throw new Skipped('this runner has no ' . implode(' and no ', $case['needs']));
        continue;
    }
    foreach ($stores as $store => $url) {
        $tests[basename($file) . " on $store"] = fn() => (new Run())->all($case, $url);
    }
    if ($stores === []) {
        $tests[basename($file)] = fn() => throw new Skipped("needs a store ({$case['store']}) that the environment does not name");
    }
}
tap($tests);
