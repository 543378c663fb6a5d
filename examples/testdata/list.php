<?php

// Prints what is held, and which shards of the store do not answer: to a list, and to a watch.
require __DIR__ . '/../php/locksidecar.php';

$sidecar = new Locksidecar\Client();
try {
    foreach ($sidecar->list() as $lock) {
        echo $lock['resource'], "\n";
    }
} catch (Locksidecar\ListIncomplete $e) {
    echo implode(' ', ['lacks', ...$e->missing]), "\n";
}
foreach ($sidecar->watch() as $change) {
    echo implode(' ', [$change['kind'], ...$change['missingShards']]), "\n";
    break;
}
