package testengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// etcdMembers is how many members a cluster has: the least that keeps a majority when
// one is lost.
const etcdMembers = 3

// startEtcd starts one member, or a cluster when there are more ports.
func startEtcd(ctx context.Context, m machine, ports []int) (Server, error) {
	if _, err := find(ctx, m, "etcd", "command -v etcd || :"); err != nil {
		return nil, err
	}
	peers, err := freePorts(ctx, len(ports))
	if err != nil {
		return nil, err
	}
	s := &store{m: m, kind: "one server", ports: ports}
	if len(ports) > 1 {
		s.kind = fmt.Sprintf("cluster of %d", len(ports))
	}
	name := func(i int) string { return fmt.Sprintf("member-%d", peers[i]) }
	var cluster, all []string
	for i, p := range peers {
		cluster = append(cluster, fmt.Sprintf("%s=http://%s", name(i), hostPort(p)))
	}
	for i, p := range ports {
		n := &node{m: m, dir: fmt.Sprintf("etcd%d", i+1), port: p, program: etcdServer{name(i)}}
		args := []string{
			"etcd", "--name", name(i), "--data-dir", "./data", "--log-level", "warn", "--logger", "zap",
			"--listen-client-urls", fmt.Sprintf("http://%s:%d", m.bind(), p), "--advertise-client-urls", "http://" + n.Addr(),
			"--listen-peer-urls", "http://" + hostPort(peers[i]), "--initial-advertise-peer-urls", "http://" + hostPort(peers[i]),
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			// A busy machine lets members wait for each other.
			"--heartbeat-interval", "200", "--election-timeout", "2000",
		}
		if !onDisk { // programs that measure leave it as it is
			args = append([]string{"env", fmt.Sprint("GOGC=", gcPercent)}, args...)
		}
		n.argv = func(context.Context) ([]string, error) { return args, nil }
		s.nodes = append(s.nodes, n)
		all = append(all, n.Addr())
	}
	s.url = "etcd://" + strings.Join(all, ",")
	return &etcdStore{s}, s.Start(ctx)
}

// etcdStore can go back to a backup.
type etcdStore struct{ *store }

var _ Backuper = (*etcdStore)(nil)

// BackUp implements Backuper.
func (s *etcdStore) BackUp(ctx context.Context) error {
	return s.swap(ctx, "rm -rf backup && cp -a data backup")
}

// Restore implements Backuper.
func (s *etcdStore) Restore(ctx context.Context) error {
	return s.swap(ctx, "rm -rf data && cp -a backup data")
}

// swap does something to the folder of each member while none runs.
func (s *etcdStore) swap(ctx context.Context, do string) error {
	if err := s.Crash(ctx, KeepData); err != nil {
		return err
	}
	err := s.each(func(n *node) error {
		_, err := n.m.sh(ctx, "cd "+quote(n.dir)+" && "+do)
		return err
	})
	return errors.Join(err, s.Start(ctx))
}

// etcdServer is the program, by the name that it has in its cluster.
type etcdServer struct{ name string }

func (etcdServer) String() string { return "etcd" }

// ready implements program: the member is in a majority.
func (e etcdServer) ready(ctx context.Context, n *node) (string, error) {
	var list struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Members []struct{ ID, Name string }
	}
	if err := etcdAsks(ctx, n.Addr(), "/v3/cluster/member/list", struct{}{}, &list); err != nil {
		return "", err
	}
	for _, m := range list.Members {
		if m.ID == list.Header.Member && m.Name != e.name {
			return "", stop(errPortTaken)
		}
	}
	// What is read here, a majority has.
	if err := etcdAsks(ctx, n.Addr(), "/v3/kv/range", map[string][]byte{"key": []byte("x")}, &struct{}{}); err != nil {
		return "", err
	}
	var status struct{ Version string }
	err := etcdAsks(ctx, n.Addr(), "/v3/maintenance/status", struct{}{}, &status)
	return status.Version, err
}

// keep implements program: it writes to disk before it answers.
func (etcdServer) keep(context.Context, *node) error { return nil }

// drop implements program. Only a whole cluster can start with nothing.
func (etcdServer) drop(ctx context.Context, n *node) error {
	_, err := n.m.sh(ctx, "rm -rf "+quote(n.dir+"/data"))
	return err
}

// etcdAsks sends a request in etcd's JSON to a member.
func etcdAsks(ctx context.Context, addr, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Close = true
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	switch {
	case err != nil:
		return fmt.Errorf("ask etcd: %w", err)
	case a.StatusCode != http.StatusOK:
		return errors.New("etcd answers " + a.Status + ": " + string(text))
	}
	return json.Unmarshal(text, answer)
}
