<?php

/** Sidecars for tests: the real program, on the store that the environment names. And tests, told as TAP. */

declare(strict_types=1);

require_once __DIR__ . '/../locksidecar.php';

error_reporting(E_ALL);
set_error_handler(function (int $level, string $message, string $file, int $line): bool {
    if (error_reporting() & $level) { // not behind an @
        throw new ErrorException($message, 0, $level, $file, $line);
    }
    return true;
});

const PATIENCE = 60.0; // for everything that must happen, however busy the machine is

/** @return array<string, string> the URLs of the stores there are, by name */
function stores(): array
{
    return array_filter(['redis' => (string) getenv('LOCKSIDECAR_TEST_REDIS'), 'mysql' => (string) getenv('LOCKSIDECAR_TEST_MYSQL')]);
}

final class Failed extends Exception {}
final class Skipped extends Exception {}

function must(bool $true, string $what): void
{
    if (!$true) {
        throw new Failed($what);
    }
}

function same(mixed $want, mixed $got, string $what = 'it'): void
{
    must($want === $got, "$what is " . var_export($got, true) . ', want ' . var_export($want, true));
}

/** @return Locksidecar\SidecarError what the call throws */
function fails(string $reason, callable $call): Locksidecar\SidecarError
{
    try {
        $call();
    } catch (Locksidecar\SidecarError $e) {
        must($e->reason === $reason, "it fails with {$e->reason}, want $reason: {$e->getMessage()}");
        return $e;
    }
    throw new Failed("it succeeds, and should fail with $reason");
}

/** Polls for a condition. */
function eventually(string $what, callable $condition, float $seconds = PATIENCE): void
{
    for ($end = hrtime(true) + $seconds * 1e9; !$condition(); usleep(5000)) {
        must(hrtime(true) < $end, "in vain: $what");
    }
}

/** @param array<string, callable(): void> $tests */
function tap(array $tests): never
{
    [$number, $status] = [0, 0];
    foreach ($tests as $name => $test) {
        $number++;
        $began = hrtime(true);
        [$ok, $why, $more] = ['ok', '', ''];
        try {
            $test();
        } catch (Skipped $e) {
            $more = " # SKIP {$e->getMessage()}";
        } catch (Throwable $e) {
            [$ok, $why, $status] = ['not ok', (string) $e, 1];
        } finally {
            Sidecar::endAll();
        }
        printf("%s %d - %s%s\n  ---\n  duration_ms: %.1f\n", $ok, $number, $name, $more, (hrtime(true) - $began) / 1e6);
        foreach ($why === '' ? [] : explode("\n", $why) as $line) {
            echo "  $line\n";
        }
        echo "  ...\n";
    }
    echo "1..$number\n";
    exit($status);
}

final class Sidecar
{
    /** @var list<Sidecar> */
    private static array $all = [];
    public readonly string $socket;
    private string $dir;
    /** @var list<string> */
    private array $args;
    /** @var resource|null */
    private $process = null;

    /** @param array<string, string> $flags */
    public function __construct(array $flags = ['ttl' => '6s'], string $store = 'embedded:')
    {
        $this->dir = sys_get_temp_dir() . '/ls-' . bin2hex(random_bytes(6));
        mkdir($this->dir);
        $this->socket = "{$this->dir}/s";
        $this->args = ['--store', $store, '--socket', $this->socket];
        foreach ($flags as $name => $value) {
            array_push($this->args, "--$name", $value);
        }
        self::$all[] = $this;
        $this->start();
    }

    public function start(): void
    {
        $binary = getenv('LOCKSIDECAR_BINARY') ?: __DIR__ . '/../../../bin/locksidecar';
        must(is_executable($binary), "there is no $binary: run \"make build\", or name the program in LOCKSIDECAR_BINARY");
        $env = array_filter(getenv(), fn($name) => !str_starts_with($name, 'LOCKSIDECAR_'), ARRAY_FILTER_USE_KEY);
        $log = "{$this->dir}/log";
        $process = proc_open([$binary, 'serve', ...$this->args], [['file', '/dev/null', 'r'], ['file', $log, 'a'], ['file', $log, 'a']], $pipes, null, $env);
        must($process !== false, 'the sidecar does not start');
        $this->process = $process;
        eventually('the sidecar is ready', function () use ($log): bool {
            must($this->running(), 'the sidecar has ended: ' . file_get_contents($log));
            return $this->http('GET', '/readyz')[0] === 200;
        });
    }

    public function running(): bool
    {
        return $this->process !== null && proc_get_status($this->process)['running'];
    }

    private function pid(): int
    {
        return proc_get_status($this->process)['pid'];
    }

    public function kill(): void
    {
        if ($this->process !== null) {
            posix_kill($this->pid(), SIGKILL);
            proc_close($this->process); // waits
            $this->process = null;
        }
    }

    /** It drains, and ends. */
    public function terminate(): void
    {
        posix_kill($this->pid(), SIGTERM);
    }

    public function freeze(): void
    {
        posix_kill($this->pid(), SIGSTOP);
        $stat = "/proc/{$this->pid()}/stat";
        eventually('it stops', fn() => preg_match('/\) T /', file_get_contents($stat)) === 1);
    }

    public function thaw(): void
    {
        posix_kill($this->pid(), SIGCONT);
    }

    public static function endAll(): void
    {
        foreach (self::$all as $sidecar) {
            $sidecar->kill();
            foreach (glob("{$sidecar->dir}/*") as $file) {
                unlink($file);
            }
            rmdir($sidecar->dir);
        }
        self::$all = [];
    }

    /** One call of the API, past the client. @return array{int, string} status and body; 0: no answer */
    public function http(string $method, string $path): array
    {
        $stream = $this->request($method, $path);
        $answer = $stream === null ? '' : (string) stream_get_contents($stream);
        [$head, $body] = explode("\r\n\r\n", $answer, 2) + [1 => ''];
        return [(int) substr($head, 9, 3), $body];
    }

    /** @return resource|null a call that is under way as long as this is open */
    public function request(string $method, string $path)
    {
        $stream = @stream_socket_client("unix://{$this->socket}", $code, $why, PATIENCE);
        if ($stream === false) {
            return null;
        }
        stream_set_timeout($stream, (int) PATIENCE);
        fwrite($stream, "$method $path HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n");
        return $stream;
    }

    public static function path(string $resource): string
    {
        return '/v1/locks/' . implode('/', array_map(rawurlencode(...), explode('/', $resource)));
    }

    /** @return array<string, mixed> without holders that are parked: no app has those */
    public function lock(string $resource): array
    {
        [$status, $body] = $this->http('GET', self::path($resource));
        same(200, $status, $body);
        $lock = json_decode($body, true, flags: JSON_THROW_ON_ERROR);
        $lock['holders'] = array_values(array_filter($lock['holders'], fn($h) => !($h['parked'] ?? false)));
        return $lock;
    }

    public function holders(string $resource, int $number): void
    {
        eventually("$number hold $resource", fn() => count($this->lock($resource)['holders']) === $number);
    }
}
