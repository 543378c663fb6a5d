<?php

/**
 * A client of locksidecar for PHP >= 8.1 on Linux, in one file: copy it, or require it. README.md
 * says how it is used, docs/api.md#lines what it speaks.
 *
 * PHP has no thread that could listen. The client reads what the sidecar has said whenever it
 * is asked something: check(), lost() and validFor() read first, and look at the clock.
 */

declare(strict_types=1);

namespace Locksidecar;

/** What the sidecar refuses, or what the client finds out about it. Go by its class, or by reason. */
class SidecarError extends \RuntimeException
{
    /** @param array<string, string> $metadata */
    public function __construct(public readonly string $reason, string $message, public readonly array $metadata = [])
    {
        parent::__construct($message);
    }

    /** @param array<string, string> $metadata */
    public static function of(string $reason, string $message, array $metadata = []): self
    {
        $class = self::CLASSES[$reason] ?? self::class;
        return new $class($reason, $message, $metadata);
    }

    private const CLASSES = [
        'LOCK_HELD' => LockHeld::class, 'WAIT_TIMEOUT' => WaitTimeout::class, 'LOCK_LOST' => LockLost::class,
        'NOT_HOLDER' => NotHolder::class, 'UPGRADE_REFUSED' => UpgradeRefused::class, 'DEADLOCK' => Deadlock::class,
        'ALREADY_DONE' => AlreadyDone::class, 'ATTEMPTS_EXHAUSTED' => AttemptsExhausted::class,
        'UNSUPPORTED' => Unsupported::class, 'STORE_UNAVAILABLE' => StoreUnavailable::class,
        'LIMIT_EXCEEDED' => LimitExceeded::class, 'INVALID_REQUEST' => InvalidRequest::class,
        'PERMISSION_DENIED' => PermissionDenied::class, 'DRAINING' => Draining::class, 'CANCELLED' => Cancelled::class,
        'SESSION_NOT_FOUND' => SessionNotFound::class, 'NO_SIDECAR' => NoSidecar::class, 'SIDECAR_GONE' => SidecarGone::class,
        'SIDECAR_SILENT' => SidecarSilent::class, 'SESSION_CLOSED' => SessionClosed::class,
    ];
}

final class LockHeld extends SidecarError {}
final class WaitTimeout extends SidecarError {}
final class NotHolder extends SidecarError {}
final class UpgradeRefused extends SidecarError {}
final class Deadlock extends SidecarError {}
final class AlreadyDone extends SidecarError {}
final class AttemptsExhausted extends SidecarError {}
final class Unsupported extends SidecarError {}
class StoreUnavailable extends SidecarError {}
final class LimitExceeded extends SidecarError {}
final class InvalidRequest extends SidecarError {}
final class PermissionDenied extends SidecarError {}
final class Draining extends SidecarError {}
final class Cancelled extends SidecarError {}
final class SessionNotFound extends SidecarError {}
final class NoSidecar extends SidecarError {}
class SidecarGone extends SidecarError {}
/** The sidecar has ended the connection, as it does to make room: another one may do. */
final class HungUp extends SidecarGone {}
final class SidecarSilent extends SidecarError {}
final class SessionClosed extends SidecarError {}

/** A list lacks what some shards of the store have, which did not answer. It comes after what the others have. */
final class ListIncomplete extends StoreUnavailable
{
    /** @param list<string> $missing their names */
    public function __construct(public readonly array $missing)
    {
        $names = implode(', ', $missing);
        parent::__construct('STORE_UNAVAILABLE', "the list is not complete: these shards of the store do not answer: $names");
    }
}

/** A hold is over though it was not released. It is never undone. */
final class LockLost extends SidecarError
{
    /** Such as FORCED, MAX_HOLD, SIDECAR_SILENT. */
    public function lostReason(): string
    {
        return $this->metadata['lost_reason'] ?? 'UNKNOWN';
    }
}

/**
 * Moments in seconds of the boot time of this machine, which goes on while the machine is
 * suspended and which nobody sets. PHP has no CLOCK_BOOTTIME: /proc/uptime is that clock in
 * steps of 10 ms, hrtime() a precise one that stops in suspend. The largest difference that both
 * ever showed makes one of them; it is up to 10 ms behind, and catching up only ends holds earlier.
 * Where open_basedir forbids /proc, the wall clock stands in: set forward, it only ends holds earlier.
 */
final class Clock
{
    // Where this process stood still between two looks that are to be one, it looks again: so often at most.
    private const AT_ONCE = 0.005;
    private const LOOKS = 10;
    private static float $asleep = -INF;
    private static ?bool $proc = null;

    public static function now(): float
    {
        for ($looks = 1; ; $looks++) {
            $running = hrtime(true) / 1e9;
            $uptime = self::$proc === false ? false : Quiet::call(fn() => file_get_contents('/proc/uptime'));
            self::$proc ??= $uptime !== false;
            if (self::$proc === false) {
                $uptime = microtime(true);
            }
            $after = hrtime(true) / 1e9;
            $atOnce = $after - $running <= self::AT_ONCE;
            if ($atOnce || $looks === self::LOOKS) { // else what it stood still would count as a suspend, for good
                break;
            }
        }
        if ($uptime !== false) {
            self::$asleep = max(self::$asleep, (float) $uptime - ($atOnce ? $running : $after));
        }
        return $after + self::$asleep;
    }

    /**
     * The same without a look at /proc: early by a suspend that nobody has noticed yet. Good for the
     * moment before a request and for waits, never for whether a hold is over.
     */
    public static function early(): float
    {
        return hrtime(true) / 1e9 + self::$asleep;
    }

    public static function seconds(?string $duration): float
    {
        return (float) $duration; // "8.9s"
    }

    public static function duration(float $seconds): string
    {
        return sprintf('%.9Fs', $seconds);
    }

    /** What the app gave, as it is sent. */
    public static function given(string $field, ?float $seconds): ?string
    {
        return $seconds === null ? null : self::duration(self::finite($field, $seconds));
    }

    public static function finite(string $field, float $seconds): float
    {
        return is_finite($seconds) ? $seconds : throw new InvalidRequest('INVALID_REQUEST', "$field must be a number of seconds, and not $seconds", ['field' => $field]);
    }
}

/** The app's signal handlers, which may throw between any two steps of ours. */
final class Signals
{
    /** Does what must be done as a whole and does not wait; the handlers run afterwards. */
    public static function after(\Closure $do): mixed
    {
        if (!function_exists('pcntl_async_signals') || !pcntl_async_signals()) {
            return $do();
        }
        try {
            pcntl_async_signals(false);
            return $do();
        } finally {
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }
    }
}

/** Calls of PHP that warn. An error handler of the app gets a warning also where an @ stands, and many throw then. */
final class Quiet
{
    public static function call(\Closure $do): mixed
    {
        return Signals::after(function () use ($do): mixed {
            set_error_handler(fn() => true);
            try {
                return $do();
            } finally {
                restore_error_handler();
            }
        });
    }
}

/** A connection to the sidecar with lines of JSON. Nothing here waits but wait(). */
final class Lines
{
    private const LONGEST = 65536; // the sidecar ends a connection at a longer line
    /** @var resource|null */
    private $stream;
    private string $in = '';
    private string $out = '';
    private bool $selectable = true;

    public function __construct(public readonly string $path)
    {
        if (strlen($path) > 107) {
            throw new NoSidecar('NO_SIDECAR', "no sidecar answers at $path: the path is longer than the 107 bytes that are possible");
        }
        $stream = Quiet::call(function () use ($path, &$code, &$why) {
            return stream_socket_client("unix://$path", $code, $why, 5.0);
        });
        if ($stream === false) {
            $start = "locksidecar serve --socket $path";
            throw new NoSidecar('NO_SIDECAR', "no sidecar answers at $path: " . match ($code) {
                2 => "there is no such socket; start a sidecar with: $start",
                111 => "the sidecar that made it is gone; start one with: $start",
                11 => 'it takes no connections; it may be frozen',
                13 => 'this user may not connect to it; see its mode and that of its directory',
                default => $why,
            });
        }
        stream_set_blocking($stream, false);
        stream_set_write_buffer($stream, 0);
        $this->stream = $stream;
        // select(2) knows the first 1024 files, and does not wait for another one.
        $this->selectable = count(Quiet::call(fn() => scandir('/proc/self/fd')) ?: []) < 1024;
    }

    /** @return resource|null for stream_select */
    public function stream()
    {
        return $this->stream;
    }

    /** @param array<string, mixed> $message */
    public function send(#[\SensitiveParameter] array $message): void
    {
        $line = json_encode($message, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
        if ($line === false) {
            throw new InvalidRequest('INVALID_REQUEST', 'the request is no UTF-8: ' . json_last_error_msg());
        }
        if (strlen($line) >= self::LONGEST) {
            throw new InvalidRequest('INVALID_REQUEST', 'the request is longer than ' . self::LONGEST . ' bytes');
        }
        $this->out .= "$line\n";
        $this->flush();
    }

    private function flush(): void
    {
        if ($this->stream !== null && $this->out !== '') {
            $written = Quiet::call(fn() => fwrite($this->stream, $this->out));
            $this->out = substr($this->out, (int) $written); // what is left waits for room
        }
    }

    /** Waits until there may be something to read, for so many seconds at most. */
    public function wait(float $seconds): void
    {
        if ($this->stream === null) {
            return;
        }
        if (!$this->selectable) {
            $this->waitInRead(max(0.0, $this->out === '' ? $seconds : min($seconds, 0.01)));
            return;
        }
        [$read, $write, $except] = [[$this->stream], $this->out === '' ? [] : [$this->stream], []];
        $seconds = max(0.0, $seconds);
        $microseconds = (int) (($seconds - (int) $seconds) * 1e6);
        Quiet::call(fn() => stream_select($read, $write, $except, (int) $seconds, $microseconds)); // a signal ends it too
    }

    private function waitInRead(float $seconds): void
    {
        stream_set_blocking($this->stream, true);
        stream_set_timeout($this->stream, (int) $seconds, (int) (($seconds - (int) $seconds) * 1e6));
        $this->in .= (string) Quiet::call(fn() => fread($this->stream, self::LONGEST));
        stream_set_blocking($this->stream, false);
        $this->flush();
    }

    /**
     * What has come, as far as it is whole. SidecarGone: the connection has ended, or it is no sidecar's.
     *
     * @return \Generator<array<string, mixed>>
     */
    public function lines(): \Generator
    {
        $this->flush();
        while ($this->stream !== null) {
            $data = Quiet::call(fn() => fread($this->stream, self::LONGEST));
            $this->in .= (string) $data;
            while (($end = strpos($this->in, "\n")) !== false) {
                $line = json_decode(substr($this->in, 0, $end), true);
                $this->in = substr($this->in, $end + 1);
                if (!is_array($line)) {
                    throw new SidecarGone('SIDECAR_GONE', "what answers at {$this->path} is no sidecar, or an older one than this client");
                }
                yield $line;
            }
            if ($data === false || $data === '') {
                if ($this->stream !== null && stream_get_meta_data($this->stream)['eof']) {
                    throw new HungUp('SIDECAR_GONE', "the connection to the sidecar at {$this->path} ended");
                }
                return;
            }
        }
    }

    /** Says that nothing more comes. That ends a session, also where a child has the socket too. */
    public function end(): void
    {
        if ($this->stream !== null) {
            Quiet::call(fn() => stream_socket_shutdown($this->stream, STREAM_SHUT_WR));
        }
    }

    /** Gives up this process's copy of the socket, and no more. */
    public function drop(): void
    {
        if ($this->stream !== null) {
            fclose($this->stream);
            $this->stream = null;
        }
    }
}

/** One request and what came of it. */
final class Call
{
    public bool $done = false;
    public bool $abandoned = false; // nobody wants what it gets
    public ?SidecarError $error = null;
    /** @var array<string, mixed> */
    public array $answer = [];
    public ?Hold $hold = null;
    public ?Detached $detached = null;
    public float $sent = 0.0;
    public string $id = '';

    /**
     * @param array<string, mixed> $body
     * @param ?\Closure(): void $left is called when it has detached the hold
     */
    public function __construct(
        public readonly string $kind,
        public readonly array $body,
        public readonly ?Hold $about = null,
        public readonly ?float $maxHold = null,
        public readonly ?\Closure $left = null,
    ) {}

    /** What it gets and nobody wants is not released: it is for the next one who has the handle. */
    public function attaches(): bool
    {
        return $this->kind === 'acquire' && isset($this->body['handle']);
    }

    public function finish(?SidecarError $error = null): void
    {
        if (!$this->done) {
            $this->error = $error;
            $this->done = true;
        }
    }
}

/** A hold as its session knows it. Each acquire that entered it has a Lock. */
final class Hold
{
    public ?LockLost $problem = null; // once and for good
    public int $count = 0; // acquires that are not released yet
    public float $until = -INF; // as its grants said, and news of the lease that were counted later
    public float $limit = INF; // its end by maxHold, or by its handle where it is attached
    public string $leftBy = 'released'; // or detached: how those who had entered it have left
    public readonly string $id;
    public readonly string $resource;
    public readonly float $counted; // when its first grant was, on the sidecar's clock
    public string $mode;
    /** @var list<callable(LockLost): void> */
    public array $listeners = [];

    /** @param array<string, mixed> $grant */
    public function __construct(public readonly array $grant)
    {
        $this->id = $grant['lockId'];
        $this->mode = $grant['mode'];
        $this->resource = $grant['resource'] !== '' ? $grant['resource'] : implode(', ', array_column($grant['parts'] ?? [], 'resource'));
        $this->counted = Clock::seconds($grant['countedAt']);
    }

    /** When it is over if nothing is heard any more. */
    public function end(): float
    {
        return min($this->limit, $this->until);
    }
}

/** A lock that lives by a time of its own in the store. Whoever has its handle has it. */
final class Detached
{
    public readonly string $handle; // a password
    public readonly string $resource;
    public readonly string $mode;
    public readonly int $fence;
    public readonly ?int $limit; // of a permit: how many there are
    private float $until;

    /** @param array<string, mixed> $answer to a request that was sent then */
    public function __construct(array $answer, float $sent)
    {
        $this->handle = $answer['handle'];
        $this->resource = $answer['resource'];
        $this->mode = $answer['mode'];
        $this->fence = (int) $answer['fence'];
        $this->limit = $answer['limit'] ?? null;
        $this->until = $sent + Clock::seconds($answer['validFor']);
    }

    /** Seconds for which the store keeps others out at least. It does not know of later extensions. */
    public function validFor(): float
    {
        return max(0.0, $this->until - Clock::now());
    }

    /** A handle that the app gave. Messages do not show it. */
    public static function handle(#[\SensitiveParameter] string|self $handle): string
    {
        $handle = $handle instanceof self ? $handle->handle : $handle;
        return $handle !== '' ? $handle : throw new InvalidRequest('INVALID_REQUEST', 'the handle must not be empty', ['field' => 'handle']);
    }

    /** @return array<string, mixed> what dumps show */
    public function __debugInfo(): array
    {
        return ['resource' => $this->resource, 'mode' => $this->mode, 'fence' => $this->fence];
    }
}

/**
 * One app session: a connection. When it ends, at either end, all its locks are lost. What a
 * line says is carried out when it is read, in the order of the lines.
 */
final class Session
{
    private const ANSWER_LIMIT = 5.0; // for what the sidecar answers at once, and beyond a wait
    private const PING_AFTER = 5.0; // without a word a wait without end asks whether the sidecar is there
    private const MAX_SLACK = 0.25; // for the sidecar to say that a maxHold is over
    private const MOST_EARLY = 10_000; // losses that are kept for grants that come after them

    public ?SidecarError $error = null; // why it has ended
    public bool $jeopardy = false;
    public bool $draining = false;
    public readonly int $pid;
    private Lines $lines;
    /** @var array<string, Call> not answered yet */
    private array $calls = [];
    /** @var array<string, Hold> */
    private array $holds = [];
    /** @var array<string, array<string, mixed>> losses that came before their grants; only while an acquire is under way */
    private array $early = [];
    private int $asking = 0;
    private int $lastId = 0;
    private float $difference = -INF; // of the clocks: ours less the sidecar's, never too large
    /** @var array{float, float} the last news of the lease: when counted on the sidecar's clock, its end on ours */
    private array $news = [-INF, -INF];
    private float $slack = 0.0;
    private float $nearest = INF; // no hold is over before
    private float $heard;
    /** @var list<\Closure(): void> what the app is to be told, when all that was read is carried out */
    private array $tell = [];

    /**
     * @param array<string, mixed> $open
     * @param ?\Closure(float): void $onDraining
     */
    public function __construct(string $path, array $open, private ?\Closure $onDraining)
    {
        $this->pid = (int) getmypid();
        $this->lines = new Lines($path);
        $this->heard = Clock::now();
        try {
            $this->ask(new Call('open', $open));
        } catch (SidecarError $e) {
            $this->over($e);
            throw $e;
        }
    }

    // Requests.

    /** Sends it. What came of it stands in the call when it is done. */
    public function post(Call $call): Call
    {
        return Signals::after(fn() => $this->send($call));
    }

    private function send(Call $call): Call
    {
        if ($this->mine()->error !== null) {
            throw SidecarError::of($this->error->reason, $this->error->getMessage());
        }
        $call->id = (string) ++$this->lastId;
        $call->sent = Clock::early();
        $this->lines->send(['requestId' => $call->id, $call->kind => (object) $call->body]);
        $this->calls[$call->id] = $call;
        if ($call->kind === 'acquire') {
            $this->asking++;
        }
        return $call;
    }

    /** Waits for the answer to what was sent; null: none in that time. @return ?array<string, mixed> */
    public function await(Call $call, ?float $seconds): ?array
    {
        $end = $seconds === null ? INF : Clock::early() + $seconds;
        $this->pump(0.0);
        $since = Clock::early(); // that nothing was heard
        $ping = null;
        $now = -INF; // before what has come was read: this process may have stood still since
        while (!$call->done) {
            if ($now >= $end) {
                return null;
            }
            $since = max($since, $this->heard);
            if ($end === INF && $now >= $since + self::PING_AFTER) { // a wait without end
                if ($ping !== null && !$ping->done) {
                    throw $this->silent();
                }
                $ping = $this->post(new Call('keepAlive', []));
                $since = $now; // from here it has as long again
            }
            $now = Clock::early();
            $this->pump($end === INF ? $since + self::PING_AFTER - $now : $end - $now);
        }
        if ($call->error !== null) {
            throw SidecarError::of($call->error->reason, $call->error->getMessage(), $call->error->metadata);
        }
        return $call->answer;
    }

    /** Sends what is answered at once. @return array<string, mixed> */
    public function ask(Call $call): array
    {
        return $this->await($this->post($call), self::ANSWER_LIMIT) ?? throw $this->silent();
    }

    /** How long the answer to an acquire may take. */
    public static function limit(?float $wait): ?float
    {
        return $wait === null ? null : $wait + self::ANSWER_LIMIT;
    }

    /** Sees to it that nobody keeps what nobody waits for. */
    public function abandon(Call $call): void
    {
        Signals::after(function () use ($call) {
            $call->abandoned = true; // a grant that crosses the cancel is released
            if (!$call->done && $this->mine()->error === null) {
                $call->finish($call->error ?? new Cancelled('CANCELLED', 'the request was given up'));
                $this->send(new Call('cancel', ['requestId' => $call->id]));
            }
        });
        $this->settle($call);
    }

    /** Nobody may read for long after this, so an answer that crosses it is read here. */
    private function settle(Call $call): void
    {
        $end = Clock::early() + self::ANSWER_LIMIT;
        while (isset($this->calls[$call->id]) && !$call->error instanceof SidecarSilent && ($left = $end - Clock::early()) > 0) {
            $this->lines->wait($left);
            Signals::after(fn() => $this->hear());
        }
    }

    /**
     * The app leaves what it has entered. The sidecar carries the release out, be it late.
     *
     * @param \Closure(): void $left is called when it has
     * @return int counts left
     */
    public function release(Hold $hold, \Closure $left): int
    {
        $call = new Call('release', ['lockId' => $hold->id], $hold);
        Signals::after(function () use ($hold, $left, $call) {
            $now = Clock::now();
            $this->hear();
            $this->checkEnd($hold, $this->silentAt($hold), $now);
            $left();
            $this->leave($hold);
            if ($hold->problem === null || $this->error === null) { // where it is lost, the sidecar reads this when it is well again
                $this->send($call);
            }
        });
        $this->tell();
        if ($hold->problem !== null) {
            throw $this->again($hold);
        }
        return (int) ($this->await($call, self::ANSWER_LIMIT) ?? throw $this->silent())['released']['count'];
    }

    /**
     * Takes what the app has entered off the session.
     *
     * @param \Closure(): void $left is called when it is
     */
    public function detach(Hold $hold, float $ttl, \Closure $left): Detached
    {
        $call = new Call('detach', ['lockId' => $hold->id, 'ttl' => Clock::given('ttl', $ttl)], $hold, left: $left);
        try {
            $this->ask($call);
            return $call->detached;
        } catch (\Throwable $e) {
            Signals::after(fn() => $this->keepNoHandle($call, $e));
            $this->settle($call);
            $this->tell();
            throw $e;
        }
    }

    /** Nobody gets the handle of what was to be detached: it is released, now or when it comes. */
    private function keepNoHandle(Call $call, \Throwable $why): void
    {
        if ($call->id === '' || $call->abandoned || $call->error !== null || $this->mine()->error !== null) {
            return;
        }
        $call->abandoned = true;
        if ($call->detached !== null) {
            $this->send(new Call('releaseHandle', ['handle' => $call->detached->handle]));
        } else {
            $call->finish($why instanceof SidecarError ? $why : new Cancelled('CANCELLED', 'the request was given up'));
            $this->loseDetached($call->about, 'nobody waited for it to be detached');
        }
    }

    private function loseDetached(Hold $hold, string $message): void
    {
        unset($this->holds[$hold->id]);
        $this->lose($hold, 'UNKNOWN', $message);
    }

    public function leave(Hold $hold): void
    {
        $hold->count = max(0, $hold->count - 1);
        if ($hold->count === 0) {
            unset($this->holds[$hold->id]);
        }
    }

    /** Ends the session, and waits until the sidecar has released all. */
    public function close(): void
    {
        $closed = new SessionClosed('SESSION_CLOSED', 'this process has closed the session');
        $ended = Signals::after(function () use ($closed) {
            $ended = $this->mine()->finish($closed, 'SESSION_CLOSED');
            if ($ended) {
                $this->lines->end();
            }
            return $ended;
        });
        if (!$ended) {
            return;
        }
        $end = Clock::early() + self::ANSWER_LIMIT;
        try {
            while (($left = $end - Clock::early()) > 0) {
                $this->lines->wait($left);
                foreach ($this->lines->lines() as $line) {
                    // what it says now concerns nobody
                }
            }
        } catch (SidecarGone) {
            // as it should
        } finally {
            $this->lines->drop();
            $this->tell();
        }
    }

    public function silent(): SidecarSilent
    {
        return new SidecarSilent('SIDECAR_SILENT', "the sidecar at {$this->lines->path} did not answer in time; it may be frozen");
    }

    public function again(Hold $hold): LockLost
    {
        return new LockLost('LOCK_LOST', $hold->problem->getMessage(), $hold->problem->metadata);
    }

    // What the sidecar says.

    /** Reads what has come, looks at the clock, and tells the app what it wants to be told. */
    public function read(): void
    {
        Signals::after(fn() => $this->hear());
        $this->tell();
    }

    /** What had come when it looks at the clock is read before anything is found to be over, however late this process goes on. */
    private function hear(): void
    {
        $now = Clock::now();
        $this->takeIn();
        if ($this->holds !== [] && $this->nearest <= $now) {
            $this->nearest = INF;
            foreach ($this->holds as $hold) {
                $this->checkEnd($hold, $this->silentAt($hold), $now);
                if ($hold->problem === null) {
                    $this->watch($hold);
                }
            }
        }
    }

    private function takeIn(): void
    {
        if ($this->mine()->error === null) {
            try {
                foreach ($this->lines->lines() as $line) {
                    $this->line($line);
                }
            } catch (SidecarGone $e) {
                $this->over($e);
            } catch (\Throwable $e) { // fields of another kind; the app may make exceptions of warnings
                $this->over(new SidecarGone('SIDECAR_GONE', "what answers at {$this->lines->path} is no sidecar: {$e->getMessage()}"));
            }
        }
    }

    /** Sees to it that the end of a hold is noticed. One look at the clock does for all, as long as none is over. */
    private function watch(Hold $hold): void
    {
        $this->nearest = min($this->nearest, $this->silentAt($hold));
    }

    /** Nothing that these throw keeps the next one from being told. */
    private function tell(): void
    {
        try {
            while ($this->tell !== []) {
                array_shift($this->tell)();
            }
        } finally {
            if ($this->tell !== []) {
                $this->tell();
            }
        }
    }

    /** The same, and waits for more at first, until the next hold ends at most. */
    public function pump(float $seconds): void
    {
        if ($this->holds !== []) {
            $seconds = min($seconds, $this->nearest - Clock::early());
        }
        if ($this->mine()->error === null) {
            $this->lines->wait($seconds);
        }
        $this->read();
    }

    /** @return resource|null for an event loop: when it can be read, call Client::read() */
    public function stream()
    {
        return $this->lines->stream();
    }

    /** @param array<string, mixed> $m */
    private function line(array $m): void
    {
        $this->heard = Clock::early();
        $id = $m['requestId'] ?? '';
        if ($id === '') {
            if (isset($m['event'])) {
                $this->event($m['event']);
            } elseif (isset($m['error'])) { // its last word
                $this->over(self::explain($m['error']));
            }
            return;
        }
        $call = $this->calls[$id] ?? null;
        if ($call === null) {
            return;
        }
        if (isset($m['error'])) {
            $call->finish($this->refused($call, self::explain($m['error'])));
        } else {
            $this->answered($call, $m);
        }
        unset($this->calls[$id]); // not before: where the answer is none, the end of the session is
        if ($call->kind === 'acquire' && --$this->asking === 0) {
            $this->early = [];
        }
    }

    /** @param array<string, mixed> $m */
    private function answered(Call $call, array $m): void
    {
        $call->answer = $m;
        $grant = $m['opened'] ?? $m['granted'] ?? $m['downgraded'] ?? $m['extended'] ?? null;
        if ($grant !== null) {
            $this->difference = max($this->difference, $call->sent - Clock::seconds($grant['countedAt']));
        }
        if (isset($m['opened'])) {
            $this->slack = min(self::MAX_SLACK, Clock::seconds($grant['leaseMargin'] ?? '0s') / 2);
        } elseif (isset($m['granted'])) {
            $this->granted($call, $grant);
        } elseif (isset($m['detached'])) {
            $call->detached = new Detached($m['detached'], $call->sent);
            $call->about->leftBy = 'detached';
            ($call->left)();
            if ($call->abandoned) {
                $this->send(new Call('releaseHandle', ['handle' => $call->detached->handle]));
            }
        } elseif ($grant !== null) {
            $call->about->mode = $grant['mode'];
            if (isset($m['extended'])) {
                $call->about->limit = min($this->moment($grant['countedAt'], $call->maxHold), $this->byHandle($grant));
                $call->about->until = max($call->about->until, $this->moment($grant['countedAt'], Clock::seconds($grant['validFor'])));
                $this->watch($call->about);
            }
        }
        $call->finish();
    }

    /** @param array<string, mixed> $grant */
    private function granted(Call $call, array $grant): void
    {
        if ($call->abandoned) {
            if (!$call->attaches()) {
                $this->post(new Call('release', ['lockId' => $grant['lockId']]));
            }
            return;
        }
        $hold = $this->holds[$grant['lockId']] ??= new Hold($grant);
        $call->hold = $hold;
        $hold->count++;
        $hold->mode = $grant['mode'];
        $hold->until = max($hold->until, $this->moment($grant['countedAt'], Clock::seconds($grant['validFor'])));
        if ($call->maxHold !== null) {
            $hold->limit = min($hold->limit, $this->moment($grant['countedAt'], $call->maxHold));
        }
        $hold->limit = min($hold->limit, $this->byHandle($grant));
        $this->prolong($hold); // news may overtake the grant
        $this->watch($hold);
        if (isset($this->early[$hold->id])) {
            $this->lost($hold, $this->early[$hold->id]);
        }
    }

    /** When the time of its handle is over, where it is attached. @param array<string, mixed> $grant */
    private function byHandle(array $grant): float
    {
        return isset($grant['endsIn']) ? $this->moment($grant['countedAt'], Clock::seconds($grant['endsIn'])) : INF;
    }

    /** What a refusal says about a hold; the error to throw. */
    private function refused(Call $call, SidecarError $error): SidecarError
    {
        $hold = $call->about;
        if ($call->kind === 'detach' && $error instanceof StoreUnavailable) {
            $this->loseDetached($hold, 'the store did not answer when it was to be detached');
            return $error;
        }
        if ($hold !== null && $error instanceof LockLost) { // sooner than its event
            unset($this->holds[$hold->id]);
            $this->lose($hold, $error->lostReason(), $error->getMessage());
        } elseif ($hold !== null && $error instanceof NotHolder && $hold->count > 0) {
            unset($this->holds[$hold->id]);
            $this->lose($hold, 'UNKNOWN', $error->getMessage());
        }
        return $hold?->problem ?? $error;
    }

    /** @param array<string, mixed> $event */
    private function event(array $event): void
    {
        if (isset($event['lease'])) {
            $lease = $event['lease'];
            $this->news = [Clock::seconds($lease['countedAt']), $this->moment($lease['countedAt'], Clock::seconds($lease['validFor']))];
            foreach ($this->holds as $hold) {
                $this->prolong($hold);
            }
            $this->jeopardy = $lease['jeopardy'] ?? false;
        } elseif (isset($event['lost'])) {
            $lost = $event['lost'];
            if ($this->asking > 0) { // also of a known hold: who re-enters it may have a grant on its way
                $this->early[$lost['lockId']] = $lost;
                if (count($this->early) > self::MOST_EARLY) {
                    unset($this->early[array_key_first($this->early)]); // the oldest
                }
            }
            if (isset($this->holds[$lost['lockId']])) {
                $this->lost($this->holds[$lost['lockId']], $lost);
            }
        } elseif (isset($event['draining']) && !$this->draining) {
            $this->draining = true;
            if ($this->onDraining !== null) {
                $end = $this->moment($event['draining']['countedAt'], Clock::seconds($event['draining']['remaining']));
                $this->tell[] = fn() => ($this->onDraining)(max(0.0, $end - Clock::now()));
            }
        }
    }

    /** @param array<string, mixed> $lost */
    private function lost(Hold $hold, array $lost): void
    {
        unset($this->holds[$hold->id]);
        $this->lose($hold, $lost['reason'], $lost['message']);
    }

    private function lose(Hold $hold, string $reason, string $message): void
    {
        if ($hold->problem === null) {
            $problem = $hold->problem = new LockLost('LOCK_LOST', "the lock on \"{$hold->resource}\" is lost: $message", [
                'resource' => $hold->resource, 'lock_id' => $hold->id, 'fence' => $hold->grant['fence'], 'lost_reason' => $reason,
            ]);
            foreach ($hold->listeners as $listener) {
                $this->tell[] = fn() => $listener($problem);
            }
        }
    }

    /** News are for what was held when they were counted, and was not over by then. */
    private function prolong(Hold $hold): void
    {
        [$counted, $until] = $this->news;
        if ($counted >= $hold->counted && $counted + $this->difference < $hold->until) {
            $hold->until = max($hold->until, $until);
        }
    }

    // Time.

    /** On our clock, when so many seconds are over that were counted when the sidecar's showed countedAt. */
    private function moment(string $countedAt, float $seconds): float
    {
        return Clock::seconds($countedAt) + $this->difference + $seconds;
    }

    /**
     * When the sidecar's silence ends a hold: at its end, or a little later where that is by
     * maxHold. The sidecar keeps others out meanwhile and says so, which is better news than its silence.
     */
    public function silentAt(Hold $hold): float
    {
        $end = $hold->end();
        return $end + $this->slack >= $hold->limit ? $end + $this->slack : $end;
    }

    /** Marks a hold as lost where its end is over, for one who is about to rely on it. */
    public function expire(Hold $hold): void
    {
        Signals::after(function () use ($hold) {
            while ($hold->problem === null && isset($this->holds[$hold->id]) && $hold->end() <= ($now = Clock::now())) {
                $this->takeIn();
                $this->checkEnd($hold, $hold->end(), $now);
            }
        });
        $this->tell();
    }

    /** By a moment by which all that had come is read. */
    private function checkEnd(Hold $hold, float $end, float $now): void
    {
        if ($hold->problem === null && isset($this->holds[$hold->id]) && $end <= $now) {
            unset($this->holds[$hold->id]);
            if ($now >= $hold->limit) {
                $this->lose($hold, 'MAX_HOLD', 'it was held longer than its maxHold');
            } else {
                $this->lose($hold, 'SIDECAR_SILENT', 'the sidecar was not heard of in time');
            }
        }
    }

    // Ends.

    /** The end of the session that nobody asked for. */
    private function over(SidecarError $error): void
    {
        $this->finish($error, 'SIDECAR_GONE');
        $this->lines->end();
        $this->lines->drop();
    }

    /** Ends it once: later reasons do not count. */
    private function finish(SidecarError $error, string $lostReason): bool
    {
        if ($this->error !== null) {
            return false;
        }
        $this->error = $error;
        [$holds, $calls] = [$this->holds, $this->calls];
        $this->holds = $this->calls = $this->early = [];
        foreach ($holds as $hold) {
            $this->lose($hold, $lostReason, $error->getMessage());
        }
        foreach ($calls as $call) {
            $call->finish($call->about?->problem ?? $error);
        }
        return true;
    }

    /** In a child that was forked, the session is the parent's, and so are its holds. */
    public function mine(): self
    {
        if ($this->pid !== getmypid() && $this->error === null) {
            $this->finish(new SessionClosed('SESSION_CLOSED', 'this process is a child of the one that has the session'), 'FORKED');
            $this->lines->drop();
        }
        return $this;
    }

    /** @param array<string, mixed> $status */
    public static function explain(array $status): SidecarError
    {
        $info = $status['details'][0] ?? [];
        return SidecarError::of($info['reason'] ?? 'INTERNAL', $status['message'] ?? 'the sidecar gave no reason', $info['metadata'] ?? []);
    }
}

/** An acquire that is under way. Dropped before it is answered, it is given up. */
final class Pending
{
    /** @var ?\WeakReference<Lock> */
    private ?\WeakReference $taken = null;

    public function __construct(private Session $session, private Call $call) {}

    /** Reads what has come. Whether get() gives an answer at once. */
    public function done(): bool
    {
        $this->session->read();
        return $this->call->done;
    }

    /**
     * Waits for the lock. SidecarSilent: no answer in so many seconds; null: whatever it takes. Again it gives the same
     * Lock. NotHolder: that was dropped.
     */
    public function get(?float $seconds = null): Lock
    {
        $seconds = $seconds === INF ? null : $seconds;
        Clock::finite('the time to wait', $seconds ?? 0.0);
        if ($this->taken !== null) {
            return $this->taken->get() ?? throw new NotHolder('NOT_HOLDER', 'the lock was dropped before');
        }
        try {
            $this->session->await($this->call, $seconds) ?? throw $this->call->error = $this->session->silent();
            return Signals::after($this->take(...));
        } catch (\Throwable $e) {
            $this->cancel();
            throw $e;
        }
    }

    private function take(): Lock
    {
        $lock = new Lock($this->session, $this->call->hold);
        $this->taken = \WeakReference::create($lock);
        return $lock;
    }

    /** Gives it up, and what it has got. */
    public function cancel(): void
    {
        if ($this->taken !== null || $this->call->abandoned) {
            return;
        }
        if ($this->call->hold !== null && $this->call->attaches()) {
            $this->call->abandoned = true;
            $this->session->leave($this->call->hold);
        } elseif ($this->call->hold !== null) {
            Signals::after($this->take(...)); // and drops it
        } else {
            $this->session->abandon($this->call);
        }
    }

    public function __destruct()
    {
        try {
            $this->cancel();
        } catch (SidecarError) {
            // the session has ended, and the request with it
        }
    }
}

/** What one acquire got. Dropped without a release, it is released. */
final class Lock
{
    public readonly string $id;
    public readonly string $resource;
    public readonly int $fence; // send it with every write
    public readonly ?int $slot; // of a permit: which one
    /** @var ?array{dialect: string, sql: string, args: list<string>} from SQL stores, for the app's own transaction */
    public readonly ?array $guard;
    /** @var list<array<string, mixed>> of several at once: resource, fence, guard, lockId of each */
    public readonly array $parts;
    public readonly ?int $attempt; // of what is done once: which attempt this is
    /** @var ?array<string, mixed> what became of the attempt before */
    public readonly ?array $previous;
    /** @var ?array{dialect: string, sql: string, args: list<string>} records success in the app's own transaction */
    public readonly ?array $outcomeGuard;
    private bool $released = false;

    public function __construct(private Session $session, private Hold $hold)
    {
        $grant = $hold->grant;
        $this->id = $hold->id;
        $this->resource = $hold->resource;
        $this->fence = (int) $grant['fence'];
        $this->slot = $grant['slot'] ?? null;
        $this->guard = $grant['guard'] ?? null;
        $this->parts = $grant['parts'] ?? [];
        $this->attempt = $grant['attempt'] ?? null;
        $this->previous = $grant['previous'] ?? null;
        $this->outcomeGuard = $grant['outcomeGuard'] ?? null;
    }

    /** EXCLUSIVE, SHARED or PERMIT. */
    public function mode(): string
    {
        return $this->hold->mode;
    }

    /** How many acquires have entered it and not released it. */
    public function count(): int
    {
        return $this->hold->count;
    }

    public function released(): bool
    {
        return $this->released;
    }

    /** Why it is lost, or null. Reads the news first. */
    public function lost(): ?LockLost
    {
        $this->session->read();
        return $this->hold->problem;
    }

    /** The store does not answer: begin nothing that takes long. */
    public function jeopardy(): bool
    {
        $this->session->read();
        return $this->session->jeopardy;
    }

    /** Seconds for which it may be relied on without further news; never too long. */
    public function validFor(): float
    {
        return $this->released || $this->lost() !== null ? 0.0 : max(0.0, $this->hold->end() - Clock::now());
    }

    /** Throws LockLost, or NotHolder after the release. Cheap: call it before each write. */
    public function check(): void
    {
        $this->session->read();
        if (!$this->released) {
            $this->session->expire($this->hold);
        }
        $this->mustBeHeld();
    }

    private function mustBeHeld(): void
    {
        if ($this->hold->problem !== null) {
            throw $this->session->again($this->hold);
        }
        if ($this->released) {
            throw new NotHolder('NOT_HOLDER', "the lock on \"{$this->resource}\" was {$this->hold->leftBy} before");
        }
    }

    /** Calls back when the loss is read: while this process waits for the sidecar, or asks it something. */
    public function onLost(callable $then): void
    {
        $this->hold->listeners[] = $then;
        if ($this->hold->problem !== null) {
            $then($this->hold->problem);
        }
    }

    /** How many times it must still be released. LockLost: it was lost before. */
    public function release(): int
    {
        if ($this->released) {
            $this->mustBeHeld();
        }
        return $this->session->release($this->hold, function () {
            $this->released = true; // from now on nobody relies on it, whatever becomes of the call
        });
    }

    /** EXCLUSIVE becomes SHARED without letting go. */
    public function downgrade(): void
    {
        $this->change('downgrade', null);
    }

    /** It ends so many seconds from now, whatever its maxHold was. */
    public function extend(float $maxHold): void
    {
        $this->change('extend', $maxHold);
    }

    private function change(string $kind, ?float $maxHold): void
    {
        $this->check();
        $more = $maxHold === null ? [] : ['maxHold' => Clock::given('maxHold', $maxHold)];
        $this->session->ask(new Call($kind, ['lockId' => $this->id] + $more, $this->hold, $maxHold));
    }

    /**
     * Lets it live for so many seconds (1 to 86400) in the store, whatever becomes of this process. Here it is over then, as
     * after release(). InvalidRequest, LimitExceeded: it stays. After any other error it is lost, and free soon.
     */
    public function detach(float $ttl): Detached
    {
        $this->check();
        return $this->session->detach($this->hold, $ttl, $this->leave(...));
    }

    private function leave(): void
    {
        if (!$this->released) {
            $this->released = true;
            $this->session->leave($this->hold);
        }
    }

    /** What is done once has succeeded: records that, and releases. */
    public function succeeded(string $note = ''): void
    {
        $this->conclude('SUCCEEDED', $note);
    }

    /** It has failed: the next attempt is told. */
    public function failed(string $note = ''): void
    {
        $this->conclude('FAILED', $note);
    }

    private function conclude(string $outcome, string $note): void
    {
        $this->session->ask(new Call('release', ['lockId' => $this->id, 'outcome' => $outcome, 'note' => $note], $this->hold));
        $this->leave();
    }

    /** Releases without waiting for the answer. */
    public function drop(): void
    {
        Signals::after(function () {
            if (!$this->released) {
                $this->released = true;
                $session = $this->session->mine();
                $session->leave($this->hold);
                if ($session->error === null) {
                    $session->post(new Call('release', ['lockId' => $this->id], $this->hold));
                }
            }
        });
    }

    private function __clone() {} // who would release it?

    public function __serialize(): array
    {
        throw new \LogicException('a lock belongs to this process, and cannot be serialized');
    }

    public function __destruct()
    {
        $this->drop();
    }
}

/** The sidecar beside this process. It connects when something is asked. */
final class Client
{
    private const SYSTEM = '/run/locksidecar';
    private ?Session $session = null;
    private bool $closed = false;
    private static int $requests = 0;
    private readonly ?\Closure $onDraining;
    /** @var ?\WeakMap<Client, true> those that are closed at the end of the request */
    private static ?\WeakMap $all = null;

    /**
     * @param array<string, string> $metadata
     * @param ?callable(float): void $onDraining gets the seconds that are left
     */
    public function __construct(
        private readonly ?string $socket = null,
        private readonly string $name = '',
        private readonly array $metadata = [],
        private readonly float $connectTimeout = 15.0,
        ?callable $onDraining = null,
    ) {
        Clock::finite('connectTimeout', $connectTimeout);
        $this->onDraining = $onDraining === null ? null : $onDraining(...);
        $this->remember();
    }

    private function remember(): void
    {
        if (self::$all === null) {
            self::$all = new \WeakMap();
            // A worker outlives its requests. What a request holds is released before its answer ends.
            register_shutdown_function(self::closeAll(...));
        }
        self::$all[$this] = true;
    }

    /** A copy has a session of its own. */
    public function __clone()
    {
        $this->session = null;
        $this->remember();
    }

    /** So has one that was stored, in a job of a queue for one. @return array<string, mixed> */
    public function __serialize(): array
    {
        if ($this->onDraining !== null) {
            throw new \LogicException('a client with onDraining cannot be serialized');
        }
        return ['socket' => $this->socket, 'name' => $this->name, 'metadata' => $this->metadata, 'connectTimeout' => $this->connectTimeout];
    }

    /** @param array<string, mixed> $settings */
    public function __unserialize(array $settings): void
    {
        $this->__construct(...$settings);
    }

    /** Releases all that this process holds, in all clients. The end of a request does it. */
    public static function closeAll(): void
    {
        $thrown = null; // by what is told of the losses
        foreach (self::$all ?? [] as $client => $_) {
            try {
                $client->session?->close();
            } catch (\Throwable $e) {
                $thrown = $e;
            }
        }
        if ($thrown !== null) {
            throw $thrown;
        }
    }

    /** Opens the session now, and not with the first lock. */
    public function open(): void
    {
        $this->closed = false;
        $this->session();
    }

    /** Releases everything. Only open() opens another session. */
    public function close(): void
    {
        $this->closed = true;
        $this->session?->close();
    }

    /** The sidecar is about to stop: finish, and release. */
    public function draining(): bool
    {
        $this->session?->read();
        return $this->session !== null && $this->session->error === null && $this->session->draining;
    }

    /** Runs work($lock) under the lock. LockLost: it was lost meanwhile. @param string|list<string> $resource */
    public function hold(string|array $resource, callable $work, mixed ...$options): mixed
    {
        return $this->during($this->acquire($resource, ...$options), $work);
    }

    private function during(Lock $lock, callable $work): mixed
    {
        try {
            $result = $work($lock);
            if (!$lock->released()) {
                $lock->release();
            }
            return $result;
        } finally {
            $lock->drop(); // what is thrown may have it among the arguments of its trace
        }
    }

    /**
     * Attaches a lock that was detached, with the fence that it had. Who has it attached elsewhere loses it, with TAKEN_OVER.
     * NotHolder: it was released, or its time is over. After any other error it can be attached again.
     */
    public function attach(#[\SensitiveParameter] string|Detached $handle, ?string $owner = null): Lock
    {
        $body = ['handle' => Detached::handle($handle), 'wait' => Clock::duration(0.0), 'owner' => $owner ?? 'pid ' . getmypid()];
        return $this->ask(new Call('acquire', $body))->get(Session::limit(0.0));
    }

    /** Runs work($lock) under a lock that was detached, and releases it, as hold() does. */
    public function holdAttached(#[\SensitiveParameter] string|Detached $handle, callable $work, ?string $owner = null): mixed
    {
        return $this->during($this->attach($handle, $owner), $work);
    }

    /** Lets a lock that was detached end so many seconds from now, attached or not. Who has it attached calls extend() then. */
    public function extendDetached(#[\SensitiveParameter] string|Detached $handle, float $ttl): Detached
    {
        $sent = Clock::early();
        return new Detached($this->look('extendHandle', ['handle' => Detached::handle($handle), 'ttl' => Clock::given('ttl', $ttl)], 'detached'), $sent);
    }

    /** Ends a lock that was detached. Who has it attached loses it, with TAKEN_OVER. */
    public function releaseDetached(#[\SensitiveParameter] string|Detached $handle): void
    {
        $this->look('releaseHandle', ['handle' => Detached::handle($handle)], 'handleReleased');
    }

    /**
     * Runs work($lock), which must succeed only once. When it returns, that is recorded, and when it throws, the outcome
     * is UNKNOWN, unless it has called $lock->failed(). AlreadyDone, AttemptsExhausted: it is not run.
     */
    public function once(string $key, callable $work, ?float $keep = null, ?int $maxAttempts = null, mixed ...$options): mixed
    {
        $once = array_filter(['keep' => Clock::given('keep', $keep), 'maxAttempts' => $maxAttempts], fn($v) => $v !== null);
        $lock = $this->acquire($key, ...$options, once: $once);
        try {
            $result = $work($lock);
            if (!$lock->released()) {
                $lock->succeeded();
            }
            return $result;
        } finally {
            $lock->drop();
        }
    }

    /**
     * Takes the lock and gives it. Seconds: wait (null: whatever it takes; 0: try once), maxHold, minHold (others
     * are kept out for so long at least).
     *
     * @param string|list<string> $resource several: all or none
     * @param ?array<string, mixed> $once
     */
    public function acquire(
        string|array $resource,
        ?float $wait = null,
        bool $shared = false,
        ?float $maxHold = null,
        ?string $owner = null,
        bool $reentrant = false,
        ?int $limit = null,
        ?array $once = null,
        ?bool $guard = null,
        ?float $minHold = null,
        bool $detachable = false,
    ): Lock {
        $owner ??= 'pid ' . getmypid(); // which does nothing else meanwhile
        $wait = $wait === INF ? null : $wait;
        $asked = $this->begin($resource, $wait, $shared, $maxHold, $owner, $reentrant, $limit, $once, $guard, $minHold, $detachable);
        return $asked->get(Session::limit($wait));
    }

    /**
     * The same without waiting: for event loops, which give stream() to their select and then call read().
     *
     * @param string|list<string> $resource
     * @param ?array<string, mixed> $once
     */
    public function begin(
        string|array $resource,
        ?float $wait = null,
        bool $shared = false,
        ?float $maxHold = null,
        ?string $owner = null,
        bool $reentrant = false,
        ?int $limit = null,
        ?array $once = null,
        ?bool $guard = null,
        ?float $minHold = null,
        bool $detachable = false,
    ): Pending {
        if ($shared && $limit !== null) {
            throw new InvalidRequest('INVALID_REQUEST', 'limit is of permits, and a shared lock has none', ['field' => 'limit']);
        }
        $wait = $wait === INF ? null : $wait;
        $body = array_filter([
            is_array($resource) ? 'resources' : 'resource' => $resource,
            'mode' => $limit !== null ? 'PERMIT' : ($shared ? 'SHARED' : 'EXCLUSIVE'),
            'wait' => Clock::given('wait', $wait),
            'maxHold' => Clock::given('maxHold', $maxHold),
            'minHold' => Clock::given('minHold', $minHold),
            // Others may go on while this waits, and it can be no deadlock that one of them has it.
            'owner' => $owner ?? 'pid ' . getmypid() . ($reentrant ? '' : ' request ' . ++self::$requests),
            'reentrant' => $reentrant,
            'limit' => $limit,
            'once' => $once === null ? null : (object) $once,
            'guard' => $guard,
            'detachable' => $detachable ?: null,
        ], fn($v) => $v !== null);
        return $this->ask(new Call('acquire', $body, maxHold: $maxHold));
    }

    private function ask(Call $call): Pending
    {
        $session = $this->session();
        return Signals::after(fn() => new Pending($session, $session->post($call)));
    }

    /** Reads what the sidecar has said, and looks at the clock. */
    public function read(): void
    {
        $this->session?->read();
    }

    /** @return resource|null */
    public function stream()
    {
        return $this->session?->stream();
    }

    // Looks, each on a connection of its own. What they give is the API's JSON.

    /** @return array<string, mixed> who holds and who waits */
    public function get(string $resource): array
    {
        return $this->look('getLock', ['resource' => $resource], 'lock');
    }

    /** Whether some app holds it, here or anywhere else. */
    public function locked(string $resource): bool
    {
        return array_filter($this->get($resource)['holders'], fn($holder) => !($holder['parked'] ?? false)) !== [];
    }

    /**
     * What get() tells, of all with that prefix that are held or waited for. ListIncomplete, after that: shards of the
     * store did not answer.
     *
     * @return \Generator<array<string, mixed>>
     */
    public function list(string $prefix = ''): \Generator
    {
        return $this->pages('listLocks', ['prefix' => $prefix], 'locks');
    }

    /**
     * What is there, then each change that the sidecar sees when it looks, once an interval: kind and lock. It does not end
     * by itself. The kind MISSING has no lock: the missingShards of the store do not answer, and what they have stays as it was
     * seen last. None: all answer again.
     *
     * @return \Generator<array<string, mixed>>
     */
    public function watch(string $prefix = '', float $interval = 1.0): \Generator
    {
        return $this->follow('watchLocks', ['prefix' => $prefix, 'partial' => true, 'interval' => Clock::given('interval', $interval)], 'watched');
    }

    /**
     * What became of what is done once: of all with that prefix, or only FAILED, UNKNOWN, SUCCEEDED. It ends as list() does.
     *
     * @param list<string> $states
     * @return \Generator<array<string, mixed>>
     */
    public function outcomes(string $prefix = '', array $states = []): \Generator
    {
        return $this->pages('listOutcomes', ['prefix' => $prefix, 'states' => implode(',', $states)], 'outcomes');
    }

    /**
     * Forgets what became of it, for admins: it may be done once more.
     *
     * @return ?array<string, mixed> the outcome that was there
     */
    public function resetOutcome(string $key): ?array
    {
        return $this->look('resetOutcome', ['resource' => $key], 'outcomeReset')['outcome'] ?? null;
    }

    /** @return array<string, mixed> who leads: leads, the holder, and the value that it publishes as metadata leader of its Client */
    public function leader(string $resource): array
    {
        return $this->look('getLeader', ['resource' => $resource], 'leader');
    }

    /** Who leads, then each change. It does not end by itself. @return \Generator<array<string, mixed>> */
    public function watchLeader(string $resource, float $interval = 1.0): \Generator
    {
        return $this->follow('watchLeader', ['resource' => $resource, 'interval' => Clock::given('interval', $interval)], 'leader');
    }

    /**
     * Takes the lock from its holders, or only from the one with the lock id; for admins.
     *
     * @return list<string> the lock ids of those that had it
     */
    public function force(string $resource, float $grace = 2.0, string $lockId = ''): array
    {
        $body = ['resource' => $resource, 'lockId' => $lockId, 'grace' => Clock::given('grace', $grace)];
        return $this->look('forceRelease', $body, 'forceReleased', $grace)['lockIds'];
    }

    /** @return array<string, mixed> about the sidecar itself */
    public function info(): array
    {
        return $this->look('getInfo', [], 'info');
    }

    /**
     * What a list has, page by page; the answer has the rows under its own name.
     *
     * @param array<string, mixed> $body
     * @return \Generator<array<string, mixed>>
     */
    private function pages(string $kind, array $body, string $answer): \Generator
    {
        $missing = []; // maybe from some pages only
        $token = '';
        do {
            $page = $this->look($kind, $body + ['partial' => true, 'pageSize' => 1000, 'pageToken' => $token], $answer);
            foreach ($page[$answer] as $row) { // by themselves: the keys of one page are those of the next
                yield $row;
            }
            foreach ($page['missingShards'] ?? [] as $shard) {
                $missing[$shard] = $shard;
            }
            $token = $page['nextPageToken'];
        } while ($token !== '');
        if ($missing !== []) {
            sort($missing);
            throw new ListIncomplete($missing);
        }
    }

    /**
     * A sidecar that hangs up before it has answered is asked again for a while, but for what is done once.
     *
     * @param array<string, mixed> $body
     * @return array<string, mixed>
     */
    private function look(string $kind, #[\SensitiveParameter] array $body, string $answer, float $more = 0.0): array
    {
        $end = Clock::now() + 10.0;
        for ($pause = 0.01; ; $pause = min(2 * $pause, 0.5)) {
            try {
                return $this->follow($kind, $body, $answer, 5.0 + $more)->current();
            } catch (HungUp $e) {
                if (in_array($kind, ['forceRelease', 'releaseHandle', 'resetOutcome'], true) || Clock::now() + $pause > $end) {
                    throw $e;
                }
            }
            usleep((int) ($pause * 1e6));
        }
    }

    /** @param array<string, mixed> $body @return \Generator<array<string, mixed>> each answer; SidecarSilent: they took so many seconds */
    private function follow(string $kind, #[\SensitiveParameter] array $body, string $answer, float $seconds = INF): \Generator
    {
        $lines = new Lines($this->path());
        $lines->send(['requestId' => '1', $kind => (object) $body]);
        for ($end = Clock::now() + $seconds; ($left = $end - Clock::now()) > 0;) {
            $lines->wait(min($left, 60.0));
            foreach ($lines->lines() as $line) {
                if (isset($line['error'])) {
                    throw Session::explain($line['error']);
                }
                yield $line[$answer] ?? throw new SidecarGone('SIDECAR_GONE', "what answers at {$lines->path} is no sidecar, or an older one than this client");
            }
        }
        throw new SidecarSilent('SIDECAR_SILENT', "the sidecar at {$lines->path} did not answer in time; it may be frozen");
    }

    /**
     * The session of this process; a new one where the last has ended. A sidecar that hangs up before it has answered
     * is called again: where connections are short, it does so to make room.
     */
    private function session(): Session
    {
        if ($this->closed) {
            throw new SessionClosed('SESSION_CLOSED', 'this process has closed the session; open() opens another');
        }
        $this->session?->read();
        if ($this->session !== null && $this->session->error === null) {
            return $this->session;
        }
        $open = array_filter(['name' => $this->name, 'metadata' => $this->metadata]);
        $end = Clock::now() + $this->connectTimeout;
        for ($pause = 0.05; ; $pause = min(2 * $pause, 1.0)) {
            try {
                return $this->session = new Session($this->path(), $open, $this->onDraining);
            } catch (SidecarGone $e) {
                if (Clock::now() + $pause > $end) {
                    throw $e;
                }
            }
            usleep((int) ($pause * 1e6));
        }
    }

    private function path(): string
    {
        return $this->socket ?? self::defaultSocket();
    }

    /** Where sidecar and clients meet when nobody says otherwise; the rule is in docs/settings.md#socket. */
    public static function defaultSocket(string $system = self::SYSTEM): string
    {
        $name = 'locksidecar.sock';
        if ($path = (string) getenv('LOCKSIDECAR_SOCKET')) {
            return $path;
        }
        clearstatcache();
        if (Quiet::call(fn() => self::usable($system, $name))) {
            return "$system/$name";
        }
        if ($runtime = (string) getenv('XDG_RUNTIME_DIR')) {
            return rtrim($runtime, '/') . "/locksidecar/$name";
        }
        $uid = self::uid();
        $dir = rtrim((string) getenv('TMPDIR') ?: '/tmp', '/') . "/locksidecar-$uid";
        $is = Quiet::call(fn() => lstat($dir));
        if ($is === false && !is_dir(dirname($dir)) && file_exists(dirname($dir))) {
            throw new NoSidecar('NO_SIDECAR', "find the socket: $dir is in no directory");
        }
        if ($is !== false && (($is['mode'] & 0170000) !== 0040000 || $is['uid'] !== $uid || ($is['mode'] & 0022) !== 0)) {
            $mode = decoct($is['mode'] & 07777);
            throw new NoSidecar('NO_SIDECAR', "find the socket: $dir is not a directory of this user's alone (uid {$is['uid']}, mode $mode); set LOCKSIDECAR_SOCKET");
        }
        return "$dir/$name";
    }

    private static function uid(): int
    {
        if (function_exists('posix_getuid')) {
            return posix_getuid();
        }
        preg_match('/^Uid:\s+(\d+)/m', (string) file_get_contents('/proc/self/status'), $found);
        return (int) ($found[1] ?? throw new NoSidecar('NO_SIDECAR', 'find the socket: who is this user? set LOCKSIDECAR_SOCKET'));
    }

    /** Whether the socket there can be connected to, or whether one can be made. */
    private static function usable(string $dir, string $name): bool
    {
        if (file_exists("$dir/$name")) {
            return is_writable("$dir/$name");
        }
        $place = file_exists($dir) ? $dir : dirname($dir);
        return is_dir($place) && is_writable($place) && is_executable($place);
    }
}
