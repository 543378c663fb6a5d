<?php

/** What the contract does not say: what is PHP's own, and calls that other clients lack. */

declare(strict_types=1);

use Locksidecar\AlreadyDone;
use Locksidecar\Client;

require __DIR__ . '/tools.php';

tap([
    'the end of a request releases what it held, however it ends' => function (): void {
        $sidecar = new Sidecar();
        $address = server(<<<'PHP'
            $how = $_GET['how'] ?? null;
            if ($how === null) { exit; }
            register_shutdown_function(function () use ($sidecar): void { // the answer has not ended
                echo ' held by ', count(array_filter($sidecar->get('r')['holders'], fn($h) => !($h['parked'] ?? false)));
            });
            $GLOBALS['lock'] = $sidecar->acquire('r', wait: 0);
            $GLOBALS['circle'] = $circle = new stdClass();
            $circle->self = $circle;
            $circle->lock = $GLOBALS['lock']; // no destructor runs before the end
            echo getmypid();
            if ($how === 'exit') { exit; }
            if ($how === 'error') { ini_set('display_errors', '0'); undefined(); }
            PHP, $sidecar->socket);
        try {
            $worker = null;
            foreach (['return', 'exit', 'error', 'return'] as $how) {
                $said = file_get_contents("http://$address/?how=$how", context: stream_context_create(['http' => ['ignore_errors' => true]]));
                must(str_contains($said, ' held by 0'), "it says $said");
                same($worker ??= (int) $said, (int) $said, 'the worker');
                // The answer has ended: the lock is free without a wait.
                (new Client($sidecar->socket))->acquire('r', wait: 0)->release();
            }
        } finally {
            stop();
        }
    },

    'a forked child owns nothing, and its end changes nothing' => function (): void {
        $sidecar = new Sidecar();
        $client = new Client($sidecar->socket);
        $lock = $client->acquire('r');
        $pending = $client->begin('r');
        $said = child(function () use ($client, $lock, $pending): void {
            echo $lock->lost()?->lostReason(), ' ', $lock->validFor(), ' ';
            echo fails('LOCK_LOST', $lock->release(...))->reason, ' ';
            echo fails('SESSION_CLOSED', $pending->get(...))->reason, ' ';
            echo fails('LOCK_HELD', fn() => $client->acquire('r', wait: 0))->reason, ' '; // by a session of its own
            echo $client->acquire('other', wait: 0)->count();
        });
        same('FORKED 0 LOCK_LOST SESSION_CLOSED LOCK_HELD 1', $said);
        $sidecar->holders('other', 0);
        $lock->check();
        $queue = $sidecar->lock('r');
        same([1, 1], [count($queue['holders']), count($queue['waiters'])], 'what is held and waits');
        same(0, $lock->release());
        $pending->get()->release();
    },

    'the lock of a process that is killed is free, though its child lives' => function (): void {
        $sidecar = new Sidecar();
        [$ours, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        if (($parent = pcntl_fork()) === 0) {
            fclose($ours);
            $lock = (new Client($sidecar->socket))->acquire('r');
            if (pcntl_fork() === 0) {
                fread($its, 1); // lives until the test has ended
                posix_kill(getmypid(), SIGKILL);
            }
            fwrite($its, 'x');
            sleep(1000);
        }
        fclose($its);
        fread($ours, 1);
        posix_kill($parent, SIGKILL);
        pcntl_waitpid($parent, $status);
        (new Client($sidecar->socket))->acquire('r', wait: PATIENCE)->release();
    },

    'a copy of a client, and one that was stored, have sessions of their own' => function (): void {
        $client = new Client((new Sidecar())->socket, 'shop', ['pod' => 'p1']);
        $lock = $client->acquire('r');
        foreach ([clone $client, unserialize(serialize($client))] as $other) {
            fails('LOCK_HELD', fn() => $other->acquire('r', wait: 0));
            $own = $other->acquire('own', wait: PATIENCE);
            $holder = $client->get('own')['holders'][0];
            same(['shop', ['pod' => 'p1']], [$holder['session'], $holder['metadata']]);
            must($holder['sessionRef'] !== $client->get('r')['holders'][0]['sessionRef'], 'it is the same session');
            Client::closeAll(); // the end of the request
            fails('LOCK_LOST', $own->check(...));
            fails('LOCK_LOST', $lock->check(...));
            $lock = $client->acquire('r', wait: PATIENCE);
        }
        try {
            serialize(new Client(onDraining: fn() => null));
            must(false, 'it is serialized');
        } catch (LogicException) {
            $lock->check();
        }
    },

    'what is dropped is released, or given up' => function (): void {
        $sidecar = new Sidecar();
        $client = new Client($sidecar->socket);
        $lock = $client->acquire('r');
        $pending = $client->begin('r');
        eventually('it waits', fn() => count($sidecar->lock('r')['waiters']) === 1);
        unset($pending);
        eventually('it waits no more', fn() => count($sidecar->lock('r')['waiters']) === 0);
        unset($lock);
        $client->acquire('r', wait: PATIENCE)->release();
        $pending = $client->begin('r');
        eventually('it is granted', fn() => count($sidecar->lock('r')['holders']) === 1);
        unset($pending); // and nobody has read that
        $sidecar->holders('r', 0);
        try {
            $client->hold('r', fn() => throw new DomainException());
        } catch (DomainException) {
            $client->acquire('r', wait: PATIENCE)->release();
        }
    },

    'an exception that has the lock in its trace does not keep it' => function (): void {
        ini_set('zend.exception_ignore_args', '0');
        $client = new Client((new Sidecar())->socket);
        $caught = [];
        $fail = function ($lock): void { throw new DomainException(); };
        foreach (['hold', 'once'] as $call) {
            try {
                $client->$call('r', $fail, wait: PATIENCE);
            } catch (DomainException $e) {
                $caught[] = $e; // and what it has
            }
        }
        $client->acquire('r', wait: PATIENCE)->release();
        same(2, count($caught));
    },

    'a signal handler that throws leaves nothing behind' => function (): void {
        foreach (range(1, 5) as $_) { // PHP itself may drop a value between two steps, seldom
            $sidecar = new Sidecar();
            $client = new Client($sidecar->socket);
            $client->open();
            interrupted(300, fn() => $client->hold('a', fn() => null, wait: PATIENCE));
            $client->hold('r', fn($lock) => $lock->check()); // in the same session
            if ($sidecar->lock('a')['holders'] === [] && $client->info()['sessions'] === 1) {
                return;
            }
        }
        must(false, 'each time something is left');
    },

    'one acquire is one lock' => function (): void {
        $client = new Client((new Sidecar())->socket);
        $pending = $client->begin('r');
        $lock = $pending->get();
        same($lock, $pending->get());
        try {
            clone $lock;
            must(false, 'it can be cloned');
        } catch (Error) {
            $lock->check();
        }
        try {
            serialize($lock);
            must(false, 'it can be serialized');
        } catch (LogicException) {
            $lock->check();
        }
        unset($lock);
        fails('NOT_HOLDER', $pending->get(...));
        $client->acquire('r', wait: PATIENCE)->release();
    },

    'a wait with a limit sleeps' => function (): void {
        $sidecar = new Sidecar();
        $lock = (new Client($sidecar->socket))->acquire('r');
        $client = new Client($sidecar->socket);
        $ticks = worked(fn() => fails('WAIT_TIMEOUT', fn() => $client->acquire('r', wait: 7)));
        must($ticks < 20, "it worked for $ticks hundredths of a second");
        $lock->release();
    },

    'who holds a thousand locks does not look at each of them all the time' => function (): void {
        $client = new Client((new Sidecar(['ttl' => '60s']))->socket);
        $pending = array_map(fn($i) => $client->begin("held/$i"), range(1, 1000));
        $held = array_map(fn($asked) => $asked->get(PATIENCE), $pending);
        $ticks = worked(function () use ($client): void {
            foreach (range(1, 100) as $i) {
                $client->acquire('r', wait: PATIENCE)->release();
            }
        });
        must($ticks < 100, "it worked for $ticks hundredths of a second"); // less than 10, where nobody else works
        same(1000, count(array_filter($held, fn($lock) => $lock->validFor() > 0)));
    },

    'a process with more files than select knows' => function (): void {
        $sidecar = new Sidecar();
        ['soft openfiles' => $soft, 'hard openfiles' => $hard] = posix_getrlimit();
        if ($soft !== 'unlimited' && $soft < 2000 && !posix_setrlimit(POSIX_RLIMIT_NOFILE, 2000, (int) $hard)) {
            throw new Skipped('no more files may be opened');
        }
        $files = array_map(fn() => fopen('/dev/null', 'r'), range(1, 1100));
        $lock = (new Client($sidecar->socket))->acquire('r');
        $client = new Client($sidecar->socket);
        $ticks = worked(fn() => fails('WAIT_TIMEOUT', fn() => $client->acquire('r', wait: 3)));
        must($ticks < 20, "it worked for $ticks hundredths of a second");
        $pending = $client->begin('r', wait: PATIENCE);
        must(!$pending->done(), 'it waits');
        $lock->release();
        $pending->get()->release();
        array_map(fclose(...), $files);
    },

    'who begins does other things meanwhile, and that is no deadlock' => function (): void {
        $client = new Client((new Sidecar())->socket);
        $one = $client->begin('a')->get();
        $other = $client->acquire('b', owner: 'other');
        $waits = $client->begin('a', owner: 'other'); // for one who waits for nobody
        fails('WAIT_TIMEOUT', $client->begin('b', wait: 4)->get(...));
        $one->release();
        $waits->get(PATIENCE)->release();
        $other->release();
    },

    'after the release nobody relies on it' => function (): void {
        $client = new Client((new Sidecar())->socket);
        $lock = $client->acquire('r');
        $lock->check();
        $lock->release();
        fails('NOT_HOLDER', $lock->check(...));
        fails('NOT_HOLDER', $lock->release(...));
        fails('NOT_HOLDER', $lock->downgrade(...));
        same(0.0, $lock->validFor());
        same(null, $lock->lost());
    },

    'done once' => function (): void {
        $client = new Client((new Sidecar())->socket);
        try {
            $client->once('k', fn() => throw new DomainException());
        } catch (DomainException) {
            // the outcome is unknown
        }
        $client->once('k', function ($lock): void {
            same(2, $lock->attempt, 'attempt');
            same('UNKNOWN', $lock->previous['state']);
            $lock->failed('no paper');
        });
        same('done', $client->once('k', function ($lock): string {
            same(['FAILED', 'no paper'], [$lock->previous['state'], $lock->previous['note']]);
            return 'done';
        }, keep: 60, wait: PATIENCE));
        $e = fails('ALREADY_DONE', fn() => $client->once('k', fn() => must(false, 'it runs again')));
        must($e instanceof AlreadyDone && $e->metadata['attempt'] === '3', json_encode($e->metadata));
        $client->once('other', fn($lock) => $lock->failed(), maxAttempts: 1);
        fails('ATTEMPTS_EXHAUSTED', fn() => $client->once('other', fn() => null, maxAttempts: 1));
        $outcomes = fn(string ...$states) => array_column(iterator_to_array($client->outcomes(states: $states)), 'state', 'resource');
        same(['k' => 'SUCCEEDED', 'other' => 'FAILED'], $outcomes());
        same(['other' => 'FAILED'], $outcomes('FAILED', 'UNKNOWN'));
        same(getmypid(), $client->resetOutcome('other')['pid']);
        same(null, $client->resetOutcome('other'));
        $client->once('other', fn($lock) => same(1, $lock->attempt), maxAttempts: 1);
    },

    'permits, several at once, and a hold that is extended' => function (): void {
        $client = new Client((new Sidecar())->socket);
        [$one, $two] = [$client->acquire('r', limit: 2), $client->acquire('r', limit: 2)];
        same([0, 1, 'PERMIT'], [$one->slot, $two->slot, $two->mode()]);
        fails('LOCK_HELD', fn() => $client->acquire('r', wait: 0, limit: 2));
        $both = $client->acquire(['b', 'a'], wait: 0);
        same(['a', 'b'], array_column($both->parts, 'resource'));
        same('a, b', $both->resource);
        fails('LOCK_HELD', fn() => $client->acquire('a', wait: 0));
        $short = $client->acquire('s', maxHold: 0.5);
        $short->extend(3600);
        must($short->validFor() > 0.5, "valid for {$short->validFor()}");
        $long = $client->acquire('t');
        $long->extend(0.1);
        eventually('it is over', fn() => $long->lost() !== null);
        same('MAX_HOLD', $long->lost()->lostReason());
    },

    'a loss is told to who listens, and the answer to a release can tell it' => function (): void {
        $sidecar = new Sidecar();
        $client = new Client($sidecar->socket);
        $lock = $client->acquire('r');
        $told = null;
        $lock->onLost(function ($loss) use (&$told): void { $told = $loss; });
        $client->force('r', grace: 0.0);
        eventually('it is told', function () use ($client, &$told): bool {
            $client->read();
            return $told !== null;
        });
        same('FORCED', $told->lostReason());
        fails('LOCK_LOST', $lock->check(...));

        $lost = ['message' => 'forced', 'details' => [['domain' => 'locksidecar', 'reason' => 'LOCK_LOST', 'metadata' => ['lost_reason' => 'FORCED']]]];
        $lock = (new Client(scripted([OPENED, GRANTED, ['error' => $lost]])))->acquire('r');
        fails('LOCK_LOST', $lock->release(...));
        same('FORCED', $lock->lost()?->lostReason());
    },

    'what is called back may throw: all is lost, told and closed nevertheless' => function (): void {
        $sidecar = new Sidecar();
        $told = 0;
        $two = function (Client $client) use (&$told): array {
            $locks = [$client->acquire('r'), $client->acquire('s')];
            foreach ($locks as $lock) {
                $lock->onLost(function () use (&$told): void {
                    $told++;
                    throw new DomainException();
                });
            }
            return $locks;
        };
        $throws = function (callable $call): void {
            try {
                $call();
            } catch (DomainException) {
                return;
            }
            must(false, 'it does not throw');
        };
        $client = new Client($sidecar->socket);
        $locks = $two($client);
        $throws($client->close(...));
        same(2, $told, 'told');
        array_map(fn($lock) => fails('LOCK_LOST', $lock->check(...)), $locks);

        $client = new Client($sidecar->socket);
        $locks = $two($client); // which are free
        $client->force('r', grace: 60.0);
        $throws(fn() => eventually('it is told', fn() => $client->read() !== null));
        same(0, $locks[1]->release());
        $sidecar->holders('s', 0);
        $locks = [$locks[0], $client->acquire('s')];
        $locks[1]->onLost(fn() => throw new DomainException());
        $sidecar->kill();
        $throws(fn() => eventually('it is told', fn() => $client->read() !== null));
        array_map(fn($lock) => fails('LOCK_LOST', $lock->check(...)), $locks);
    },

    'an error handler that throws at each warning' => function (): void {
        $sidecar = new Sidecar();
        [$client, $other] = [new Client($sidecar->socket), new Client($sidecar->socket)];
        [$lock, $held] = [$client->acquire('r'), $other->acquire('other')];
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, fn() => null);
        set_error_handler(fn($level, $message) => throw new ErrorException($message, 0, $level)); // also behind an @
        try {
            fails('NO_SIDECAR', fn() => (new Client('/nowhere/s'))->acquire('r'));
            array_map(putenv(...), ['LOCKSIDECAR_SOCKET', 'XDG_RUNTIME_DIR', 'TMPDIR=/nowhere']);
            same('/nowhere/locksidecar-' . posix_getuid() . '/locksidecar.sock', Client::defaultSocket('/nowhere/run'));
            pcntl_alarm(1);
            fails('WAIT_TIMEOUT', fn() => $other->acquire('r', wait: 2));
            $sidecar->kill();
            $lock->drop(); // it writes before it reads
            fails('LOCK_LOST', $held->check(...));
            fails('LOCK_LOST', $held->release(...));
        } finally {
            restore_error_handler();
            putenv('TMPDIR');
            pcntl_async_signals(false);
            pcntl_signal(SIGALRM, SIG_DFL);
        }
    },

    'what answers is no sidecar' => function (): void {
        fails('SIDECAR_GONE', fn() => (new Client(scripted([OPENED, ['granted' => 5]])))->acquire('r'));
    },

    'a loss may come before its grant' => function (): void {
        $lost = ['event' => ['lost' => ['lockId' => 'l', 'resource' => 'r', 'fence' => '7', 'reason' => 'FORCED', 'grace' => '1s', 'message' => 'm', 'countedAt' => '1s']]];
        same('FORCED', (new Client(scripted([OPENED, $lost])))->acquire('r')->lost()?->lostReason());
        $client = new Client(scripted([OPENED, GRANTED, $lost]));
        $locks = array_map(fn() => $client->acquire('r', owner: 'me', reentrant: true), [1, 2]); // the second re-enters what is lost
        same(['FORCED', 'FORCED'], array_map(fn($lock) => $lock->lost()?->lostReason(), $locks));
    },

    'so many losses are kept for their grants' => function (): void {
        $lost = ['lost' => ['lockId' => 'l', 'resource' => 'r', 'fence' => '7', 'reason' => 'FORCED', 'grace' => '1s', 'message' => 'm', 'countedAt' => '1s']];
        same('FORCED', (new Client(scripted([OPENED, ['event' => $lost, 'others' => 9_999]])))->acquire('r')->lost()?->lostReason());
        same(null, (new Client(scripted([OPENED, ['event' => $lost, 'others' => 10_000]])))->acquire('r')->lost()); // it is the oldest
    },

    'a sidecar that hangs up before it has answered is called again' => function (): void {
        same(7, (new Client(scripted([null, null, OPENED, GRANTED])))->acquire('r')->fence);
        fails('SIDECAR_GONE', fn() => (new Client(scripted([null, OPENED, GRANTED]), connectTimeout: 0.0))->acquire('r'));
    },

    'a look is asked again where the sidecar hangs up' => function (): void {
        $lock = ['lock' => ['resource' => 'r', 'holders' => [], 'waiters' => []]];
        same('r', (new Client(scripted([null, null, $lock])))->get('r')['resource']);
        fails('SIDECAR_GONE', fn() => (new Client(scripted([null, ['forceReleased' => ['lockIds' => []]]])))->force('r')); // it may have done it
    },

    'a sidecar that stops says so' => function (): void {
        $sidecar = new Sidecar(['ttl' => '2s', 'drain' => '60s']);
        $left = null;
        $client = new Client($sidecar->socket, onDraining: function (float $seconds) use (&$left): void { $left = $seconds; });
        $lock = $client->acquire('r');
        same(false, $client->draining());
        $sidecar->terminate();
        eventually('it drains', $client->draining(...));
        must($left > 0 && $left <= 60, "$left s are left");
        $lock->check();
        $lock->release();
    },

    'who holds what' => function (): void {
        $client = new Client((new Sidecar())->socket, 'shop', ['pod' => 'p1']);
        $lock = $client->acquire('a/1');
        $holder = $client->get('a/1')['holders'][0];
        same([$lock->id, 'shop', ['pod' => 'p1'], 'pid ' . getmypid()], [$holder['lockId'], $holder['session'], $holder['metadata'], $holder['owner']]);
        same(['a/1'], array_column(iterator_to_array($client->list('a/')), 'resource'));
        $many = array_map(fn($i) => sprintf('many/%03d', $i), range(0, 120)); // more than a page
        $locks = array_map(fn($name) => $client->acquire($name), $many);
        same($many, array_column(iterator_to_array($client->list('many/')), 'resource'));
        must($client->info()['ready'], 'ready');
        fails('INVALID_REQUEST', fn() => $client->acquire("\xff"));
        fails('INVALID_REQUEST', fn() => $client->acquire(str_repeat('x', 70_000)));
        $lock->check(); // and the session has gone on
    },

    'what changes' => function (): void {
        $client = new Client((new Sidecar())->socket, metadata: ['leader' => '10.0.0.7:9000']);
        same([false, ''], [$client->leader('a/1')['leads'], $client->leader('a/1')['value']]);
        [$changes, $leaders] = [$client->watch('a/', interval: 0.1), $client->watchLeader('a/1', interval: 0.1)];
        same(['SYNCED', false], [$changes->current()['kind'], $leaders->current()['leads']]);
        same(false, $client->locked('a/1'));
        [$lock, $other] = [$client->acquire('a/1'), $client->acquire('b')];
        same(true, $client->locked('a/1'));
        $changes->next();
        $change = $changes->current();
        same(['CHANGED', 'a/1', $lock->id], [$change['kind'], $change['lock']['resource'], $change['lock']['holders'][0]['lockId']]);
        $leaders->next();
        foreach ([$leaders->current(), $client->leader('a/1')] as $leader) {
            same([true, '10.0.0.7:9000', $lock->id], [$leader['leads'], $leader['value'], $leader['holder']['lockId']]);
        }
        fails('NOT_HOLDER', fn() => $client->force('a/1', lockId: 'another'));
        same([$lock->id], $client->force('a/1', grace: 0, lockId: $lock->id));
        $leaders->next();
        same(false, $leaders->current()['leads']);
        foreach ($client->watch() as $found) {
            break;
        }
        same('b', $found['lock']['resource']);
        fails('INVALID_REQUEST', fn() => $client->watch(interval: 0.001)->current());
        fails('SIDECAR_GONE', fn() => (new Client(scripted([['neither' => 1]])))->info());
    },

    'what makes no sense is refused, and does no harm to what is held' => function (): void {
        $client = new Client((new Sidecar())->socket);
        $lock = $client->acquire('held', maxHold: 60);
        foreach ([NAN, -INF] as $time) {
            fails('INVALID_REQUEST', fn() => $client->acquire('r', wait: $time));
            fails('INVALID_REQUEST', fn() => $client->acquire('r', minHold: $time));
            fails('INVALID_REQUEST', fn() => $client->once('k', fn() => null, keep: $time));
            fails('INVALID_REQUEST', fn() => $client->force('held', grace: $time));
            fails('INVALID_REQUEST', fn() => $client->begin('r')->get($time));
            fails('INVALID_REQUEST', fn() => $client->watch(interval: $time)->current());
            fails('INVALID_REQUEST', fn() => new Client(connectTimeout: $time));
            fails('INVALID_REQUEST', fn() => $lock->extend($time));
        }
        same('maxHold', fails('INVALID_REQUEST', fn() => $client->acquire('r', maxHold: INF))->metadata['field']);
        $e = fails('INVALID_REQUEST', fn() => $client->acquire('r', shared: true, limit: 2));
        same('limit', $e->metadata['field']);
        $client->acquire('r', wait: INF)->release();
        $lock->check();
        same([true, false], array_map($client->locked(...), ['held', 'r']));
    },

    'the clock takes no standstill of the process for a suspend' => function (): void {
        $code = <<<'PHP'
            namespace Locksidecar;
            [$running, $stops, $seen] = [5.0, [], []];
            function stand(): void { $GLOBALS['running'] += array_shift($GLOBALS['stops']) ?? 0; } // before a look at a clock
            function hrtime(bool $one): int { stand(); return (int) round($GLOBALS['running'] * 1e9); }
            function file_get_contents(string $path): string { stand(); return (string) $GLOBALS['running']; }
            require $argv[1];
            foreach ([[7], [0, 7], [0, 0, 7], array_fill(0, 100, 0.05)] as $stops) {
                Clock::now();
                $stops = [];
                $seen[] = round(abs(Clock::now() - $running), 6);
            }
            echo json_encode($seen);
            PHP;
        $command = implode(' ', array_map('escapeshellarg', [PHP_BINARY, '-r', $code, '--', __DIR__ . '/../locksidecar.php']));
        same('[0,0,0,0]', shell_exec($command));
    },

    'nobody answers' => function (): void {
        $dir = sys_get_temp_dir();
        $e = fails('NO_SIDECAR', fn() => (new Client("$dir/no-such-socket"))->acquire('r'));
        same("no sidecar answers at $dir/no-such-socket: there is no such socket; start a sidecar with: locksidecar serve --socket $dir/no-such-socket", $e->getMessage());
        fails('NO_SIDECAR', fn() => (new Client(str_repeat('x', 108)))->acquire('r'));
        $closed = new Client((new Sidecar())->socket);
        $closed->acquire('r');
        $closed->close();
        fails('SESSION_CLOSED', fn() => $closed->acquire('r'));
        $closed->open();
        $closed->acquire('r', wait: 0)->release();
    },

    'a wait without end at a frozen sidecar ends' => function (): void {
        $sidecar = new Sidecar();
        $client = new Client($sidecar->socket);
        $lock = $client->acquire('r');
        $sidecar->freeze();
        fails('SIDECAR_SILENT', fn() => $client->acquire('r'));
        fails('LOCK_LOST', $lock->check(...));
    },
]);
