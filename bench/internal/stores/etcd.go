package stores

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// etcdTTL is the time to live of the peers' lease, in seconds: that of the sidecar's.
const etcdTTL = 10

// etcdStore is one etcd.
type etcdStore struct {
	url    string
	addr   string // of the first member
	pid    int    // of that member; 0: not on this machine
	client *clientv3.Client

	asked float64 // calls with which the server was asked for its numbers
}

var _ measure.Store = (*etcdStore)(nil)

// EtcdWords for tables.
var EtcdWords = measure.Words{
	Name: "etcd", Steps: "commits", Memory: "of its database", Renewal: "heartbeat",
	Notified: "delete of a key, to its watcher", Answered: "delete, round trip",
}

// Names of the subjects.
const (
	EtcdMutex  = "etcd/client/v3/concurrency, Mutex"
	EtcdWrites = "2 × put"
)

const etcdRoot = "bench/"

// ConnectEtcd reads a URL of the form etcd://host:port,… and makes the one client that all
// peers share.
func ConnectEtcd(_ context.Context, url string) (measure.Store, error) {
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "etcd://"), ",")
	_, port, _ := strings.Cut(addr, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("find the port in %s: %w", url, err)
	}
	s := &etcdStore{url: url, addr: addr, pid: proc.Listener(n)}
	if s.client, err = s.connect(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *etcdStore) connect() (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return c, nil
}

// URL implements measure.Store.
func (s *etcdStore) URL() string { return s.url }

// Close implements measure.Store.
func (s *etcdStore) Close() error { return s.client.Close() }

// Subjects implements measure.Store.
func (s *etcdStore) Subjects() []measure.Subject {
	return []measure.Subject{s.mutexes(), s.writes()}
}

// mutexes are the library's own recipe. All callers share one session, which is one lease,
// as the goroutines of an app do.
func (s *etcdStore) mutexes() measure.Subject {
	return measure.Subject{Name: EtcdMutex, Open: func(_ context.Context, callers int) ([]measure.Pair, func() error, error) {
		session, err := concurrency.NewSession(s.client, concurrency.WithTTL(etcdTTL))
		if err != nil {
			return nil, nil, fmt.Errorf("open a session: %w", err)
		}
		var pairs []measure.Pair
		for i := range callers {
			m := concurrency.NewMutex(session, etcdRoot+"mutex/"+strconv.Itoa(i))
			pairs = append(pairs, func(ctx context.Context) error {
				if err := m.Lock(ctx); err != nil {
					return fmt.Errorf("lock: %w", err)
				}
				if err := m.Unlock(ctx); err != nil {
					return fmt.Errorf("unlock: %w", err)
				}
				return nil
			})
		}
		return pairs, session.Close, nil
	}}
}

// writes are the least that two changes which last can cost.
func (s *etcdStore) writes() measure.Subject {
	return measure.Each(EtcdWrites, func(caller int) measure.Pair {
		key := etcdRoot + "put/" + strconv.Itoa(caller)
		return func(ctx context.Context) error {
			for range 2 {
				if _, err := s.client.Put(ctx, key, "x"); err != nil {
					return fmt.Errorf("put: %w", err)
				}
			}
			return nil
		}
	})
}

// CPU implements measure.Store.
func (s *etcdStore) CPU(context.Context) (float64, error) {
	if s.pid == 0 {
		return 0, nil
	}
	d, err := proc.CPU(s.pid)
	return float64(d) / float64(time.Microsecond), err
}

// Memory implements measure.Store: what is in use of its database. What was deleted counts
// until the history is compacted.
func (s *etcdStore) Memory(ctx context.Context) (float64, error) {
	a, err := s.client.Status(ctx, s.addr)
	if err != nil {
		return 0, fmt.Errorf("ask etcd for its size: %w", err)
	}
	s.asked++
	return float64(a.DbSizeInUse), nil
}

// Count implements measure.Store: calls, without the messages of streams, and what the
// members agreed on.
func (s *etcdStore) Count(ctx context.Context) (measure.Count, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/metrics", http.NoBody)
	if err != nil {
		return measure.Count{}, err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return measure.Count{}, fmt.Errorf("ask etcd for its numbers: %w", err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return measure.Count{}, fmt.Errorf("ask etcd for its numbers: %w", err)
	}
	calls, err := etcdSum(string(text), "grpc_server_msg_received_total{")
	if err != nil {
		return measure.Count{}, err
	}
	steps, err := etcdSum(string(text), "etcd_server_proposals_applied_total ")
	return measure.Count{Requests: calls - s.asked, Steps: steps}, err
}

var errNoNumber = errors.New("etcd does not tell it")

// etcdSum adds up the series whose line begins like that.
func etcdSum(text, begins string) (sum float64, err error) {
	found := false
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, begins) {
			continue
		}
		f := strings.Fields(line)
		n, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("read a number of etcd: %w", err)
		}
		found, sum = true, sum+n
	}
	if !found {
		return 0, fmt.Errorf("%s: %w", begins, errNoNumber)
	}
	return sum, nil
}

// Notify implements measure.Store: one client deletes a key, which the other watches.
func (s *etcdStore) Notify(ctx context.Context, d time.Duration) (n measure.Notices, err error) {
	const key = etcdRoot + "notice"
	waiter, err := s.connect()
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, waiter.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan time.Time, 1)
	watch := waiter.Watch(ctx, key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	if a := <-watch; a.Err() != nil || !a.Created {
		return n, fmt.Errorf("watch a key: %w", errors.Join(a.Err(), ctx.Err()))
	}
	go func() {
		for range watch {
			told <- time.Now()
		}
	}()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := s.client.Put(ctx, key, "x"); err != nil {
			return n, fmt.Errorf("put: %w", err)
		}
		before := time.Now()
		_, err := s.client.Delete(ctx, key)
		answered := time.Now()
		if err != nil {
			return n, fmt.Errorf("delete: %w", err)
		}
		select {
		case at := <-told:
			n.Delivered = append(n.Delivered, at.Sub(before))
			n.Answered = append(n.Answered, answered.Sub(before))
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
	return n, nil
}
