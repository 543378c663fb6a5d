<?php

/** What the tests of the client need besides sidecars. */

declare(strict_types=1);

require_once __DIR__ . '/sidecars.php';

/** Runs work in a forked child and gives what it prints. What it throws is printed too. */
function child(callable $work): string
{
    [$ours, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        ob_start(); // what it inherited unwritten is the parent's
        try {
            $work();
        } catch (Throwable $e) {
            echo $e;
        }
        fwrite($its, (string) ob_get_clean());
        fclose($its);
        exit(0); // with its destructors and shutdown functions
    }
    fclose($its);
    $said = stream_get_contents($ours);
    pcntl_waitpid($pid, $status);
    return $said;
}

const OPENED = ['opened' => ['sessionId' => 's', 'leaseMargin' => '1s', 'countedAt' => '1s']];
const GRANTED = ['granted' => ['lockId' => 'l', 'resource' => 'r', 'mode' => 'EXCLUSIVE', 'fence' => '7', 'validFor' => '9s', 'count' => 1, 'countedAt' => '1s']];

/** A sidecar that says what it is told to, for each request in turn; null: it hangs up, and takes another call. */
function scripted(array $answers): string
{
    $path = sys_get_temp_dir() . '/ls-' . bin2hex(random_bytes(6));
    $server = stream_socket_server("unix://$path");
    $parent = getmypid();
    if (($pid = pcntl_fork()) === 0) {
        try {
            $stream = stream_socket_accept($server, PATIENCE);
            foreach ($answers as $answer) {
                $id = json_decode(fgets($stream), true)['requestId'];
                if ($answer === null) {
                    fclose($stream);
                    $stream = stream_socket_accept($server, PATIENCE);
                    continue;
                }
                fwrite($stream, json_encode(isset($answer['event']) ? ['event' => $answer['event']] : ['requestId' => $id] + $answer) . "\n");
                if (isset($answer['event'])) { // and then so many losses of others, and the answer
                    for ($i = 0; $i < ($answer['others'] ?? 0); $i++) {
                        fwrite($stream, json_encode(['event' => ['lost' => ['lockId' => "other $i"] + $answer['event']['lost']]]) . "\n");
                    }
                    fwrite($stream, json_encode(['requestId' => $id] + GRANTED) . "\n");
                }
            }
            fgets($stream);
        } finally {
            unlink($path);
            posix_kill(getmypid(), SIGKILL); // nothing of the test's runs here
        }
    }
    fclose($server);
    register_shutdown_function(fn() => getmypid() === $parent && posix_kill($pid, SIGKILL)); // where nobody has called it
    return $path;
}

/** How many hundredths of a second of processor time it takes. */
function worked(callable $work): int
{
    $before = posix_times();
    $work();
    $after = posix_times();
    return $after['utime'] + $after['stime'] - $before['utime'] - $before['stime'];
}

final class Interrupted extends Exception {}

/** Throws Interrupted while the work goes on, at any moment, so many times. */
function interrupted(int $times, callable $work): void
{
    $armed = false;
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, function () use (&$armed): void {
        if ($armed) {
            $armed = false;
            throw new Interrupted();
        }
    });
    $parent = getmypid();
    if (($drummer = pcntl_fork()) === 0) {
        while (posix_kill($parent, SIGUSR1)) {
            usleep(random_int(100, 2000));
        }
        posix_kill(getmypid(), SIGKILL);
    }
    for ($i = 0; $i < $times; $i++) {
        try {
            $armed = true;
            while (true) {
                $work();
            }
        } catch (Interrupted) {
            // and again
        }
    }
    posix_kill($drummer, SIGKILL);
    pcntl_waitpid($drummer, $status);
    pcntl_async_signals(false);
    pcntl_signal(SIGUSR1, SIG_IGN);
}

/** A web server of one worker, which lives on after each request. */
function server(string $script, string $socket): string
{
    $dir = dirname($socket);
    $client = realpath(__DIR__ . '/../locksidecar.php');
    file_put_contents("$dir/index.php", "<?php\nrequire '$client';\n\$sidecar = new Locksidecar\\Client('$socket');\n$script");
    $probe = stream_socket_server('tcp://127.0.0.1:0');
    $address = stream_socket_get_name($probe, false);
    fclose($probe);
    $GLOBALS['server'] = proc_open([PHP_BINARY, '-d', 'display_errors=1', '-S', $address, "$dir/index.php"], [['file', '/dev/null', 'r'], ['file', '/dev/null', 'w'], ['file', '/dev/null', 'w']], $pipes);
    eventually('the web server answers', fn() => @file_get_contents("http://$address/?ready") !== false);
    return $address;
}

function stop(): void
{
    posix_kill(proc_get_status($GLOBALS['server'])['pid'], SIGKILL);
    proc_close($GLOBALS['server']);
}
