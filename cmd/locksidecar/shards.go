package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/backends/shards"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lock"
)

// shardsLimit bounds how long a look at the shards' records, or a change of them, takes.
const shardsLimit = 30 * time.Second

func newShards(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shards",
		Short: "Show or replace the set of shards that stores belong to",
		Long: `Shards asks each store of --store to which set of shards it belongs. A sidecar serves no
locks of a store that belongs to another set than its own --store names. Otherwise two sidecars
could look for one lock at two places.

To change the set, stop all sidecars that use it, run this with --replace and the new
--store, and start the sidecars with the new --store. They get leases after 15 seconds. If you
name only one store, it is no shard any more.
Locks that are detached or kept by min_hold, and what was done once, stay at the store where they are:
the sidecars do not find those whose names have another shard now.

Exit status: 0 all belong to the set of --store, or to none yet; 1 not, or a store does not answer; 2 wrong settings.`,
		Example: `  # to which set does each belong?
  locksidecar shards --store ` + backends.Example1 + ` --store ` + backends.Example2 + `

  # a third one from now on; all sidecars are stopped
  locksidecar shards --replace --store ` + backends.Example1 + ` --store ` + backends.Example2 + ` --store ` + backends.Example3,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	store := addStoreURL(cmd, "", "the shards: URLs, or this flag several times")
	cmd.Flags().Lookup("namespace").Hidden = true // it does not matter here
	replace := cmd.Flags().Bool("replace", false, "have each store belong to the set of --store from now on; all sidecars must be stopped")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !store.given() {
			return usage("--store is needed: the URLs of the shards")
		}
		urls, err := store.resolve()
		if err != nil {
			return err
		}
		return showShards(cmd.Context(), urls, *replace, io)
	}
	return cmd
}

func showShards(ctx context.Context, urls string, replace bool, io streams) (err error) {
	ctx, cancel := context.WithTimeout(ctx, shardsLimit)
	defer cancel()
	list, err := backends.OpenShards(urls, nil)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range list {
			if e := s.Backend.Close(); err == nil && e != nil {
				err = fmt.Errorf("shard %s: %w", s.Name, e)
			}
		}
	}()
	if replace {
		if err := shards.Replace(ctx, list); err != nil {
			return err
		}
	}
	sets, err := shards.Sets(ctx, list)
	if err != nil {
		return err
	}
	for i, s := range list {
		belongs := "to no set of shards"
		if len(sets[i]) > 0 {
			belongs = "to " + strings.Join(sets[i], " ")
		}
		if _, err := fmt.Fprintf(io.out, "%s belongs %s\n", s.Name, belongs); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return shards.Agree(list, sets)
}

// arbiters are those of the stores, one for each.
type arbiters struct {
	tracing *telemetry.Tracing // nil: not asked for
	o       arbiter.Options
	all     []*arbiter.Backend
}

// wrap puts an arbiter in front of a store.
func (a *arbiters) wrap(b lock.Backend) lock.Backend {
	if a.tracing != nil {
		b = a.tracing.Backend(b)
	}
	own := arbiter.New(b, a.o)
	a.all = append(a.all, own)
	return own
}

func (a *arbiters) stats() (sum arbiter.Stats) {
	for _, own := range a.all {
		st := own.Stats()
		sum.Saved += st.Saved
		sum.Contended += st.Contended
		sum.Parked += st.Parked
	}
	return sum
}

// maxShardNews bounds the news that are not logged yet; more are dropped.
const maxShardNews = 4 * shards.Max

// shardLog knows which shards are away, and logs it.
type shardLog struct {
	urls string // without secrets
	log  hclog.Logger
	news chan shards.News

	mu sync.Mutex
	up map[string]bool
}

func newShardLog(store string, log hclog.Logger) *shardLog {
	return &shardLog{urls: backends.Redact(store), log: log, news: make(chan shards.News, maxShardNews), up: make(map[string]bool)}
}

// tell takes news. It does not block, as the log may.
func (s *shardLog) tell(n shards.News) {
	s.mu.Lock()
	s.up[n.Shard] = n.Why == nil
	s.mu.Unlock()
	select {
	case s.news <- n:
	default:
	}
}

// run logs.
func (s *shardLog) run(ctx context.Context) error {
	for {
		select {
		case n := <-s.news:
			if n.Why == nil {
				s.log.Info("lease opened", keyShard, n.Shard)
			} else {
				s.log.Warn("the shard is away: will keep trying", keyShard, n.Shard, keyLost, n.Holds, keyError, n.Why)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// levels tells which shards are there.
func (s *shardLog) levels() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.up)
}

// store names the store for people, and what of it is away.
func (s *shardLog) store() string {
	var away []string
	for name, up := range s.levels() {
		if !up {
			away = append(away, name)
		}
	}
	if len(away) == 0 {
		return s.urls
	}
	slices.Sort(away)
	return s.urls + " (away: " + strings.Join(away, ", ") + ")"
}
