<?php

// 1,000 locks that are asked for at once, and held at the same time. Prints how many the sidecar counts.
require __DIR__ . '/../php/locksidecar.php';

$sidecar = new Locksidecar\Client();
$asked = array_map(fn($i) => $sidecar->begin("request/$i"), range(1, 1000));
$locks = array_map(fn($one) => $one->get(), $asked);
echo $sidecar->info()['holds'], "\n";
foreach ($locks as $lock) {
    $lock->release();
}
