package torture

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// gaveUpLine is what a sidecar logs when it gives up a shard that does not answer while others do.
var gaveUpLine = regexp.MustCompile(`the shard is away: .* lost=(\d+) .*did not answer to the heartbeat`)

// gaveUp counts the shards that were given up. A long run in which that has not happened while somebody had
// a lock there has not tested it.
func (w *world) gaveUp() {
	w.t.Helper()
	if w.plan.shards == 0 {
		return
	}
	times, holds := 0, 0
	for _, s := range w.sides {
		text, err := os.ReadFile(filepath.Join(w.dir, s.name+".log"))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range gaveUpLine.FindAllSubmatch(text, -1) {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				w.t.Fatal(err)
			}
			if holds += n; n > 0 {
				times++
			}
		}
	}
	w.t.Logf("a shard was given up %d times while apps had locks there, %d in all", times, holds)
	if *length >= time.Minute && times == 0 {
		w.t.Error("no shard was given up while somebody had a lock there")
	}
}
